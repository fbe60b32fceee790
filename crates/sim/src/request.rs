//! Requests, and their outcomes: what sources, servers, racks and tallies have in common.

/// A request as it reaches a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was sent, in ns from the start: latency counts from here.
    pub sent_ns: u64,
    /// How long it runs undisturbed, in ns; at least 1.
    pub service_ns: u64,
    /// The flow (client connection) that it belongs to.
    pub flow: u64,
    /// Its class: an index into the mix's classes.
    pub class: u16,
    /// The sender's own mark; the server does not read it.
    pub tag: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request ran to its end.
    Finished {
        /// The request.
        request: Request,
        /// When it ended.
        at_ns: u64,
    },
    /// There was no room for the request.
    Refused {
        /// The request.
        request: Request,
    },
}
