//! Operations that exclude others. (One file for each subject; `job` lists all operations.)

use std::io::Write as _;
use std::sync::PoisonError;

use super::job::{State, hold, spin};
use super::world::World;
use crate::{current_worker, without_preemption};

pub(super) fn std_mutex(_: &mut State, world: &World) -> bool {
    let _lock = world
        .std_mutex
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    world.std_pair.pass(|| hold(10))
}

pub(super) fn parking_lot_mutex(_: &mut State, world: &World) -> bool {
    let _lock = world.parking_lot_mutex.lock();
    world.parking_lot_pair.pass(|| hold(10))
}

/// A worker's own data needs no lock, only that no context is preempted in the middle.
pub(super) fn guard(state: &mut State, world: &World) -> bool {
    let spins = state.below(40);
    without_preemption(|| {
        let Some(worker) = current_worker() else {
            return false;
        };
        let alone = world.worker_pairs[worker as usize].pass(|| {
            spin(spins);
            without_preemption(|| spin(10));
        });
        alone && current_worker() == Some(worker)
    })
}

/// The thread that has its lock may take it again, so this depends on the thread's identity for
/// std.
pub(super) fn stdout(state: &mut State, world: &World) -> bool {
    let mut stdout = std::io::stdout().lock();
    world.stdout_pair.pass(|| hold(10))
        && (!world.write_stdout
            || writeln!(stdout, "context {}", state.context)
                .and_then(|()| writeln!(std::io::stdout().lock(), "again"))
                .is_ok())
}
