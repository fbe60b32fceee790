//! The values that go into a context with a request and come out of it.

use shinjuku_net::Transport;
use shinjuku_policy::{ClassId, Nanos};

/// What the core needs to know of a request from arrival to reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    pub(crate) class: ClassId,
    pub(crate) arrival: Nanos,
}

/// Into a context: the request and the way back.
pub(crate) struct Job<Tr: Transport> {
    pub(crate) meta: Meta,
    pub(crate) request: Tr::Request,
    pub(crate) route: Tr::Route,
}

/// Out of a context: what the worker has to send.
pub(crate) struct Done<Tr: Transport> {
    pub(crate) meta: Meta,
    pub(crate) outgoing: Tr::Outgoing,
    pub(crate) failed: bool,
}
