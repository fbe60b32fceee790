//! How requests reach the dispatcher, and how replies leave.
//!
//! A [`Transport`] has three sides, each on a thread of its own kind:
//!
//! | side | runs on | may |
//! |---|---|---|
//! | [`Transport::poll`], [`Transport::refuse`] | the dispatcher's thread | not allocate, free, lock, or drop a user's value |
//! | [`Transport::conclude`] | the request's context, preemptible | do whatever a handler may |
//! | [`Replier::send`] | the worker's own stack, after the context ended; or between two requests, on the context's and with its thread-locals | like the dispatcher; one non-blocking system call |
//!
//! A suspended context may hold any lock, the allocator's included, and only the dispatcher resumes
//! it. Hence the restrictions: a dispatcher that waited for such a lock would wait forever.
//!
//! [`udp`] and [`tcp`] are over the kernel's sockets; [`resp`] is Redis's protocol over [`tcp`],
//! and [`wire`] what clients of the original systems send. The crate `shinjuku-dataplane` has a
//! transport without the kernel.
#![forbid(unsafe_code)]

/// Setters of these fields, each of which takes the settings and gives them back.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$attribute:meta])* $field:ident: $type:ty;)*) => {$(
        $(#[$attribute])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}

mod classifier;
#[doc(hidden)]
pub mod counters;
mod listen;
pub mod resp;
pub mod tcp;
mod transport;
pub mod udp;
pub mod wire;

pub use classifier::{ByPort, Classifier, OneClass, due_nanos, flow_of};
pub use listen::ListenError;
pub use transport::{Arrival, Failure, Glance, Refusal, Replier, Transport, Wake};

/// A setting of a transport is out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{setting} is {value}, but must be between {least} and {most}")]
#[non_exhaustive]
pub struct OutOfRange {
    /// Its name in the transport's configuration.
    pub setting: &'static str,
    /// What it was set to; times in microseconds.
    pub value: usize,
    /// The least allowed.
    pub least: usize,
    /// The most allowed.
    pub most: usize,
}

impl OutOfRange {
    /// Checks that a setting is between `least` and `most`.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(
        setting: &'static str,
        value: usize,
        least: usize,
        most: usize,
    ) -> Result<(), Self> {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Self {
            setting,
            value,
            least,
            most,
        })
    }
}
