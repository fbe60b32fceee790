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

/// SCHED_FIFO on the calling thread, from [`enter`](Realtime::enter) until it is dropped. Keep it under half a
/// second at a time: Linux throttles longer bursts (kernel.sched_rt_runtime_us) and the gap is 50 ms.
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
        set_policy(libc::SCHED_FIFO, priority).map_err(RealtimeError::Refused)?;
        Ok(Self {
            not_send: std::marker::PhantomData,
        })
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        // Back to ordinary scheduling is always permitted.
        let _ = set_policy(libc::SCHED_OTHER, 0);
    }
}

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
        // SAFETY: only reads the calling thread's policy.
        assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER);
    }

    #[test]
    fn a_priority_out_of_range_is_refused() {
        assert!(Realtime::enter(1000).is_err());
    }
}
