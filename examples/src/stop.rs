//! Waiting for a request to end. A file of its own, so that a server can be copied with it.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Catches the signals that ask a server to end: SIGINT (control-C) and SIGTERM.
#[derive(Debug)]
pub struct Stop(Signals);

impl Stop {
    /// From now on these signals do not kill the process. Call this before the server starts, so
    /// that they never do.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn listen() -> std::io::Result<Self> {
        Signals::new([SIGINT, SIGTERM]).map(Self)
    }

    /// Blocks until one of the signals has come.
    pub fn wait(mut self) {
        self.0.forever().next();
    }
}
