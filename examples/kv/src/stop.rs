//! Requests to end: by SIGINT (control-C), SIGTERM, or a client's SHUTDOWN. It is a separate file
//! because the program, the server's state and the command all use it.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Waits for a request to end.
#[derive(Debug)]
pub struct Stop(Signals);

/// Requests the end.
#[derive(Clone, Debug)]
pub struct Stopper(Handle);

impl Stop {
    /// From now on these signals do not kill the process.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn listen() -> std::io::Result<Self> {
        Signals::new([SIGINT, SIGTERM]).map(Self)
    }

    /// A handle to request the end from anywhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.0.handle())
    }

    /// Blocks until the end is requested.
    pub fn wait(mut self) {
        self.0.forever().next();
    }
}

impl Stopper {
    /// Ends the wait.
    pub fn now(&self) {
        self.0.close();
    }
}
