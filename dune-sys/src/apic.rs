//! The local APIC, whose page the module maps into the process: sending an interrupt, and ending
//! one.
//!
//! The register page answers only while the host has its APICs in xAPIC mode; with x2APIC the page
//! is dead and reads as all ones. Linux must therefore be started with `nox2apic`.

use x86_64::registers::model_specific::Msr;

/// Guest-virtual address at which libdune maps the APIC page.
pub const VIRTUAL_ADDRESS: u64 = 0xffff_ffff_ffff_f000;
/// Guest-physical address that the module backs with the host's APIC page.
pub const GUEST_PHYSICAL: u64 = (1 << 46) - 4096;
/// The host-physical address where the module finds the page.
pub const HOST_PHYSICAL: u64 = 0xfee0_0000;

/// The notification's vector, which the module writes to the VMCS. Shinjuku uses the same number
/// for its interrupt.
pub const NOTIFICATION_VECTOR: u8 = 0xf2;

/// A register, by its offset in the page (Intel SDM, volume 3, table "Local APIC register address
/// map").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Register {
    /// The APIC's number, in the upper 8 bits.
    Id = 0x20,
    /// Never 0 and never all ones where there is an APIC.
    Version = 0x30,
    /// End of interrupt.
    EndOfInterrupt = 0xb0,
    /// Interrupt command, lower half: writing it sends.
    Command = 0x300,
    /// Interrupt command, upper half: the destination.
    CommandDestination = 0x310,
}

/// An interrupt is still on its way out of this APIC.
const DELIVERY_PENDING: u32 = 1 << 12;
/// How often [`Register::Command`] is read before sending is given up: some microseconds at least.
const PATIENCE: u32 = 10_000;

/// Access to the registers of the calling CPU's APIC.
pub trait Registers {
    /// Reads a register.
    fn read(&self, register: Register) -> u32;
    /// Writes a register.
    fn write(&self, register: Register, value: u32);
}

/// The registers in a page of memory.
#[derive(Clone, Copy, Debug)]
pub struct RegisterPage(*mut u32);

// SAFETY: the page shows each CPU its own APIC, and accesses are single, volatile loads and stores.
unsafe impl Send for RegisterPage {}
// SAFETY: as above.
unsafe impl Sync for RegisterPage {}

impl RegisterPage {
    /// The registers at `page`.
    ///
    /// # Safety
    /// `page` is aligned to 4 KiB, and its 4 KiB can be read and written as long as this value or a
    /// copy of it is used. If it is the APIC's page, no interrupt sent through it may upset the
    /// machine: code that can write there can reset other CPUs.
    #[must_use]
    pub const unsafe fn new(page: *mut u32) -> Self {
        Self(page)
    }

    /// The page where libdune maps it.
    ///
    /// # Safety
    /// Every use must be in Dune mode, under libdune's page tables.
    #[must_use]
    pub unsafe fn of_libdune() -> Self {
        Self(std::ptr::with_exposed_provenance_mut(
            VIRTUAL_ADDRESS as usize,
        ))
    }

    fn at(self, register: Register) -> *mut u32 {
        self.0.wrapping_byte_add(register as usize)
    }
}

impl Registers for RegisterPage {
    fn read(&self, register: Register) -> u32 {
        // SAFETY: within the page, as `new`'s caller promised.
        unsafe { self.at(register).read_volatile() }
    }

    fn write(&self, register: Register, value: u32) {
        // SAFETY: as above.
        unsafe { self.at(register).write_volatile(value) }
    }
}

/// The number of a local APIC, which is how interrupts name a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApicId(pub u8);

/// Why the APIC cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApicError {
    /// The page is dead.
    #[error(
        "the APIC's page reads {version:#x} as its version: the host runs its APICs in x2APIC mode, in which Dune's page is \
         dead. Start the host with `nox2apic` on the kernel's command line"
    )]
    Dead {
        /// What was read.
        version: u32,
    },
    /// The previous interrupt is still on its way.
    #[error(
        "the APIC has not sent its last interrupt in {PATIENCE} looks; it is asked again later"
    )]
    Busy,
}

/// The calling CPU's local APIC.
#[derive(Clone, Copy, Debug)]
pub struct LocalApic<R>(pub R);

impl<R: Registers> LocalApic<R> {
    /// The number by which others send to this CPU.
    ///
    /// # Errors
    /// [`ApicError::Dead`] where the page does not answer like an APIC.
    pub fn id(&self) -> Result<ApicId, ApicError> {
        let version = self.0.read(Register::Version);
        if version == 0 || version == u32::MAX {
            return Err(ApicError::Dead { version });
        }
        Ok(ApicId((self.0.read(Register::Id) >> 24) as u8))
    }

    /// Waits, for a bounded time, until the last interrupt is out.
    ///
    /// # Errors
    /// [`ApicError::Busy`] if the interrupt is still not out.
    pub fn wait_until_idle(&self) -> Result<(), ApicError> {
        for _ in 0..PATIENCE {
            if self.0.read(Register::Command) & DELIVERY_PENDING == 0 {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        Err(ApicError::Busy)
    }

    /// Sends `vector` to the CPU `to`. Writes the destination first, since the second write sends.
    /// The APIC must be idle.
    ///
    /// The host uses the same register pair. If the host takes this CPU between the two writes and
    /// sends an interrupt of its own, this one goes to the host's destination, and the target never
    /// gets it.
    #[inline]
    pub fn send(&self, vector: u8, to: ApicId) {
        self.0
            .write(Register::CommandDestination, u32::from(to.0) << 24);
        // Fixed delivery, physical destination, edge: all zero.
        self.0.write(Register::Command, u32::from(vector));
    }

    /// Ends the interrupt being served, through the page.
    #[inline]
    pub fn end_of_interrupt(&self) {
        self.0.write(Register::EndOfInterrupt, 0);
    }
}

/// MSR by which a guest ends a posted interrupt. The CPU virtualises it: no exit.
pub const END_OF_INTERRUPT_MSR: u32 = 0x80b;

/// Ends the interrupt being served, as libdune does.
///
/// # Safety
/// Only in Dune mode, in ring 0, from an interrupt handler that has not yet ended its interrupt.
#[inline]
pub unsafe fn end_of_interrupt() {
    // SAFETY: the caller is in ring 0, and the register takes 0 only.
    unsafe { Msr::new(END_OF_INTERRUPT_MSR).write(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Ordinary memory instead of the APIC's page.
    #[repr(align(4096))]
    struct Page([u32; 1024]);

    fn page() -> Box<Page> {
        let mut page = Box::new(Page([0; 1024]));
        page.0[0x20 / 4] = 7 << 24;
        page.0[0x30 / 4] = 0x0106_0015;
        page
    }

    fn apic(page: &mut Page) -> LocalApic<RegisterPage> {
        // SAFETY: ordinary memory, which outlives the tests' use.
        LocalApic(unsafe { RegisterPage::new(page.0.as_mut_ptr()) })
    }

    #[test]
    fn the_registers_are_where_the_manual_has_them() {
        let mut page = page();
        let apic = apic(&mut page);
        assert_eq!(apic.id(), Ok(ApicId(7)));
        assert_eq!(apic.wait_until_idle(), Ok(()));
        apic.send(0xf2, ApicId(3));
        apic.end_of_interrupt();
        let written = page.0.iter().enumerate().filter(|(_, value)| **value != 0);
        assert_eq!(
            written
                .map(|(at, value)| (at * 4, *value))
                .collect::<Vec<_>>(),
            [
                (0x20, 7 << 24),
                (0x30, 0x0106_0015),
                (0x300, 0xf2),
                (0x310, 3 << 24)
            ]
        );
    }

    #[test]
    fn a_dead_page_is_told_from_an_apic() {
        for version in [0, u32::MAX] {
            let mut page = page();
            page.0[0x30 / 4] = version;
            let error = apic(&mut page).id().unwrap_err();
            assert_eq!(error, ApicError::Dead { version });
            assert!(error.to_string().contains("nox2apic"));
        }
    }

    /// Records every write, and is busy for some reads.
    #[derive(Default)]
    struct Watched {
        busy: Cell<u32>,
        writes: RefCell<Vec<(Register, u32)>>,
    }

    impl Registers for Watched {
        fn read(&self, _: Register) -> u32 {
            let left = self.busy.get();
            self.busy.set(left.saturating_sub(1));
            if left > 0 {
                DELIVERY_PENDING | 0xf2
            } else {
                0xf2
            }
        }

        fn write(&self, register: Register, value: u32) {
            self.writes.borrow_mut().push((register, value));
        }
    }

    #[test]
    fn the_destination_is_written_before_the_command() {
        let apic = LocalApic(Watched::default());
        apic.send(0x40, ApicId(255));
        assert_eq!(
            *apic.0.writes.borrow(),
            [
                (Register::CommandDestination, 0xff00_0000),
                (Register::Command, 0x40)
            ]
        );
    }

    #[test]
    fn waiting_for_a_busy_apic_has_an_end() {
        let apic = LocalApic(Watched::default());
        apic.0.busy.set(5);
        assert_eq!(apic.wait_until_idle(), Ok(()));
        apic.0.busy.set(u32::MAX);
        assert_eq!(apic.wait_until_idle(), Err(ApicError::Busy));
        assert!(apic.0.writes.borrow().is_empty(), "looking writes nothing");
    }
}
