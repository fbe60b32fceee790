//! Why guest mode cannot be used.

use crate::backend::BackendError;

/// Why guest mode cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// There is no /dev/kvm.
    #[error(
        "there is no /dev/kvm: load kvm_intel or kvm_amd, switch virtualisation on in the firmware, or, in a virtual \
         machine, have the host pass it on"
    )]
    NoDevice,
    /// This user may not use /dev/kvm.
    #[error(
        "no permission for /dev/kvm: add the user to the group `kvm` (or whichever owns the device), or run as root"
    )]
    NoPermission,
    /// KVM lacks a feature.
    #[error("this kernel's KVM lacks {what}, which guest mode needs: it takes Linux 5.16 or later")]
    Lacking {
        /// The feature.
        what: &'static str,
    },
    /// KVM leaves registers open to the guest that guest mode does not save.
    #[error(
        "this kernel's KVM leaves workers registers that guest mode would lose (XCR0 {components:#x}; bits 17 and 18 are \
         AMX's), as software virtualisation does on CPUs that have them: preempt by signal, or run on a kernel with \
         kvm_intel or kvm_amd"
    )]
    Unsaved {
        /// Their bits in XCR0.
        components: u64,
    },
    /// There are as many vCPUs as this kernel allows a virtual machine.
    #[error(
        "this kernel's KVM allows a virtual machine {most} vCPUs, one for each worker: run fewer workers"
    )]
    TooManyWorkers {
        /// How many there can be.
        most: u32,
    },
    /// This build is damaged.
    #[error("this build has assembly that is not as it should be: build it anew")]
    Assembled,
    /// KVM refused something.
    #[error("{what} failed: {cause}")]
    Kvm {
        /// The action.
        what: &'static str,
        /// The kernel's answer.
        cause: std::io::Error,
    },
    /// The signal handler for workers in host mode could not be installed.
    #[error(transparent)]
    Signal(#[from] crate::SignalError),
}

impl GuestError {
    /// A refusal of KVM's.
    pub(super) fn kvm(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm {
            what,
            cause: std::io::Error::from_raw_os_error(error.errno()),
        }
    }
}

impl From<GuestError> for BackendError {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::NoDevice | GuestError::NoPermission | GuestError::Unsaved { .. } => {
                Self::Unavailable(error.into())
            }
            _ => Self::Failed(error.into()),
        }
    }
}
