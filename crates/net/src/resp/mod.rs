//! The Redis protocol, RESP: requests on their way in, replies on their way out.
//!
//! | file | what it holds |
//! |---|---|
//! | `framing.rs` | where a request ends: on the networker's thread, as its bytes come in |
//! | `codec.rs` | that for [`tcp`](crate::tcp), with the requests' classes |
//! | `arguments.rs` `inline.rs` | the arguments of a request, for handlers |
//! | `writer.rs` | replies, in RESP2 and RESP3 |
//! | `reply.rs` | for clients: where a reply ends |
//! | `integer.rs` `protocol_error.rs` | numbers as Redis reads them; what is wrong with a request |
//!
//! A request is an array of bulk strings, `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`, or an *inline command*,
//! a line of words such as a person types. Limits and errors are those of Redis 7.0 (its
//! `networking.c`; the protocol's specification is at
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>). Like Redis, the parser looks
//! neither at the byte after the `\r` of a line nor at the two bytes after a bulk string. Unlike
//! Redis, the parser takes a zero byte in a line for a byte like any other.

mod arguments;
mod codec;
mod framing;
mod inline;
mod integer;
mod protocol_error;
pub mod reply;
mod writer;

pub use arguments::{Arguments, arguments, arguments_in_parts, arguments_of_checked};
pub use codec::Resp;
pub use framing::{Found, LONGEST_BULK, LONGEST_LINE, MOST_ARGUMENTS, Progress, find};
pub use integer::integer;
pub use protocol_error::ProtocolError;
pub use writer::{LongBulk, Protocol, Writer};
