//! Being asked to end: by SIGINT (control-C), SIGTERM, or a client's SHUTDOWN.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Waits for it.
#[derive(Debug)]
pub struct Stop(Signals);

/// Asks for it.
#[derive(Clone, Debug)]
pub struct Stopper(Handle);

impl Stop {
    /// From now on these signals do not kill the process.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn listen() -> std::io::Result<Self> {
        Signals::new([SIGINT, SIGTERM]).map(Self)
    }

    /// To ask for it from anywhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.0.handle())
    }

    /// Blocks until it is asked for.
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
