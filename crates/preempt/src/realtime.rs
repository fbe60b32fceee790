//! Real-time priority, for measurements and for servers that own their cores.

/// Why a scheduling request was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealtimeError {
    /// The process may not raise its priority.
    #[error(
        "real-time priority (SCHED_FIFO) was refused: {0}. Run as root, or give the program CAP_SYS_NICE, or raise the \
         limit (ulimit -r); in a container also allow real-time run time in its cgroup"
    )]
    Refused(std::io::Error),
}

/// SCHED_FIFO on the calling thread, from [`enter`](Realtime::enter) until it is dropped. Keep it
/// under half a second at a time: Linux throttles longer bursts (kernel.sched_rt_runtime_us) and
/// the gap is 50 ms.
///
/// Threads that it starts meanwhile have ordinary scheduling: a handler's threads shall not compete
/// with the worker.
#[derive(Debug)]
pub struct Realtime {
    not_send: std::marker::PhantomData<*mut ()>,
}

impl Realtime {
    /// Puts the calling thread under SCHED_FIFO with the given priority (1 to 99).
    ///
    /// # Errors
    /// [`RealtimeError::Refused`] without the permission.
    pub fn enter(priority: i32) -> Result<Self, RealtimeError> {
        set_policy(libc::SCHED_FIFO | RESET_ON_FORK, priority).map_err(RealtimeError::Refused)?;
        Ok(Self {
            not_send: std::marker::PhantomData,
        })
    }

    /// The calling thread's priority under SCHED_FIFO; `None` under another class.
    #[cfg(feature = "measure")]
    pub(crate) fn priority_of_current() -> Option<i32> {
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: both only read the calling thread's scheduling, the latter into a local.
        let (policy, answer) = unsafe {
            (
                libc::sched_getscheduler(0),
                libc::sched_getparam(0, &mut parameters),
            )
        };
        (policy & !RESET_ON_FORK == libc::SCHED_FIFO && answer == 0)
            .then_some(parameters.sched_priority)
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        // Returning to ordinary scheduling is always permitted; clearing the flag is not.
        if set_policy(libc::SCHED_OTHER, 0).is_err() {
            let _ = set_policy(libc::SCHED_OTHER | RESET_ON_FORK, 0);
        }
    }
}

/// New threads are under SCHED_OTHER. (A part of the policy, for the system call.)
const RESET_ON_FORK: libc::c_int = libc::SCHED_RESET_ON_FORK;

fn set_policy(policy: libc::c_int, priority: libc::c_int) -> std::io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: changes the calling thread's scheduling only.
    match unsafe { libc::sched_setscheduler(0, policy, &parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_says_what_to_do_and_permission_is_given_back() {
        match Realtime::enter(1) {
            Ok(realtime) => drop(realtime),
            Err(error) => assert!(error.to_string().contains("CAP_SYS_NICE"), "{error}"),
        }
        assert_eq!(policy() & !RESET_ON_FORK, libc::SCHED_OTHER);
    }

    fn policy() -> libc::c_int {
        // SAFETY: only reads the calling thread's policy.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn threads_that_it_starts_are_under_ordinary_scheduling() {
        let _realtime = match Realtime::enter(1) {
            Ok(realtime) => realtime,
            Err(error) => {
                eprintln!("SKIPPED threads_that_it_starts_are_under_ordinary_scheduling: {error}");
                return;
            }
        };
        assert_eq!(policy() & !RESET_ON_FORK, libc::SCHED_FIFO);
        assert_eq!(
            std::thread::spawn(policy).join().unwrap(),
            libc::SCHED_OTHER
        );
    }

    #[test]
    fn a_priority_out_of_range_is_refused() {
        assert!(Realtime::enter(1000).is_err());
    }
}
