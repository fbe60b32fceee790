//! Whole servers, from a client's request to its reply.
//!
//! | module | what it shows |
//! |---|---|
//! | `udp` | short requests overtake long ones, every reply goes to its client |
//! | `networker` | the same with a networker's thread, whose rings lose nothing |
//! | `dispatchers` | several servers on one address: clients are spread, and stay with their server |
//! | `dataplane` | over a wire that loses, duplicates and reorders frames, every request that arrives is answered once |
//! | `progress` | a request that spins for a lock cannot starve the lock's holder |

mod dataplane;
mod dispatchers;
mod networker;
mod progress;
mod udp;
