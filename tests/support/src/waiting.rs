//! Waiting with a limit, and waiting for other tests. A short file, which all others use.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest wait of a test, for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
pub fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    assert!(comes_true(condition), "waited in vain for {what}");
}

/// Whether `condition` comes to hold within [`PATIENCE`].
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Lets one test of this process run at a time: the one that holds what this returns.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // The turn of a test that failed is over, too.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
