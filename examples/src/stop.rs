//! Waiting to be asked to end.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Catches the signals that ask a server to end: SIGINT (control-C) and SIGTERM.
#[derive(Debug)]
pub struct Stop(Signals);

impl Stop {
    /// From now on these signals do not kill the process. Call it before the server starts, so that
    /// there is no moment in which they would.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn listen() -> std::io::Result<Self> {
        Signals::new([SIGINT, SIGTERM]).map(Self)
    }

    /// Blocks until one of them has come.
    pub fn wait(mut self) {
        self.0.forever().next();
    }
}
