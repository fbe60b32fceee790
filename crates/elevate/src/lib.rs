//! Schedules any threads and processes of the machine from user space, by SCHED_FIFO priorities
//! alone: no kernel module, no change to the scheduled, slices of microseconds.
//!
//! The idea and the figures it is measured against are Yasukata's and Ishiguro's, *Developing
//! Process Scheduling Policies in User Space with Common OS Features* ("the priority elevation
//! trick"). SCHED_FIFO always runs the ready thread of the highest priority. So a thread of high
//! priority schedules all others of a core: it gives one of them a middle priority and leaves the
//! others at a low one.
//!
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use shinjuku_elevate::{Config, Elevation, Table, Target};
//!
//! let table = Table::named("A-B-A-C", &["A", "B", "C"])?;
//! let config = Config::new(1, table).slice(Duration::from_micros(50));
//! let targets = [Target::Process(4711), Target::Process(4712), Target::Thread(4820)];
//! let mut supervisor = Command::new("shinjuku-elevate");
//! supervisor.arg("supervise");
//! let elevation = Elevation::start(config, &targets, Some(supervisor))?;
//! std::thread::sleep(Duration::from_secs(10));
//! println!("{:?}", elevation.stop()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Whatever happens to the scheduler, the scheduled get the class and the cores back that they had:
//! a second process, the [supervisor](supervise), sees to that after `kill -9`, too. It takes the
//! permission for SCHED_FIFO (CAP_SYS_NICE, or `ulimit -r`), and threads of other users take root.
//!
//! | module | what it holds |
//! |---|---|
//! | `table` `target` | the order of the slots; the threads and processes that are scheduled |
//! | `scheduler` | the scheduler with its patterns, and the sentinel that notices when one sleeps |
//! | `member` `supervisor` | what a thread is to get back; the process that gives it back if the scheduler cannot |
//! | [`server`] | preemptive scheduling in a server of ordinary threads: dispatcher, workers, switcher |
//! | `reserve` | what Linux keeps for ordinary threads: throttling, the fair server |

#![forbid(unsafe_code)]

mod error;
mod member;
mod reserve;
mod scheduler;
pub mod server;
mod supervisor;
mod table;
mod target;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: shinjuku_preempt::stress::CountingAllocator =
    shinjuku_preempt::stress::CountingAllocator;

pub use error::ElevateError;
pub use reserve::Reserve;
pub use scheduler::{Config, Elevation, OnSleep, Pattern, Report};
pub use supervisor::{SupervisorEnd, supervise};
pub use table::{MOST_SLOTS, Table, TableError};
pub use target::{NoTarget, Target};
