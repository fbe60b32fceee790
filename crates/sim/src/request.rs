//! What moves through a simulation: requests, and what becomes of them.

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
    /// Whatever its sender wants to know it by; the server leaves it alone.
    pub tag: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran to its end at this time, in ns.
    Finished {
        /// The request.
        request: Request,
        /// When it ended.
        at_ns: u64,
    },
    /// There was no room for it.
    Refused {
        /// The request.
        request: Request,
    },
}
