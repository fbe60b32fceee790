//! The process's own address space as the guest's memory: guest-virtual address = the process's
//! address.
//!
//! ```text
//!   address of the process        guest-physical                      (a memory slot of KVM's each)
//!   GiB 0x5555 (program, heap) ──▶ GiB 8
//!   GiB 0x7ffd (libraries …)   ──▶ GiB 9     in the order in which they are first used
//!   GiB 0x7fff (stack, vdso)   ──▶ GiB 10
//! ```
//!
//! The guest gets a GiB as a whole when it first needs a page of it, holes included. KVM follows
//! the mappings in it, their rights, and their changes by `mmap`, `munmap`, `mremap`, `brk` and
//! `mprotect`, in the kernel's own page tables. So this module need not track mappings, and KVM
//! finds out that a page is missing. Guest-physical addresses are small, since CPUs have 40 to 52
//! bits of them, and congruent to the process's, so that 2 MiB pages fit.
//!
//! Rights to execute are not followed: in guest mode code can run from any readable page.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvm_bindings::kvm_userspace_memory_region;
use x86_64::PhysAddr;
use x86_64::structures::paging::PageTableFlags;
use x86_64::structures::paging::page_table::PageTableEntry;

use super::error::GuestError;
use super::mapping::Mapping;
use super::system_call;

const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;
/// The start of the kernel's half, less the page that Linux never maps.
const USER_END: u64 = 0x7fff_ffff_f000;
/// The first 8 GiB of guest-physical addresses hold the interrupt controllers and KVM's own pages.
const FIRST: u64 = 8;
/// The most GiB that the guest can get: page tables are reserved for them.
const MOST: u64 = 2048;
/// The tables of the upper two levels: the root, and one for every 512 GiB, of which a process uses
/// four or five.
const UPPER: u64 = 64;
/// `KVM_SET_USER_MEMORY_REGION`
const SET_MEMORY: u64 = 0x4020_ae46;

/// The guest's page tables and memory slots.
pub(super) struct Memory {
    vm: i32,
    tables: Mapping,
    /// Guest-physical address of the tables.
    tables_at: u64,
    /// Tables in use.
    used: AtomicU64,
    /// GiB given to the guest.
    given: AtomicU64,
    /// The most GiB to give: the CPU's guest-physical address bits may allow fewer than the tables.
    most: u64,
    locked: AtomicBool,
}

impl Memory {
    /// Only the page tables' own memory. `physical_bits` is the width of guest-physical addresses.
    pub(super) fn new(vm: i32, physical_bits: u32) -> Result<Self, GuestError> {
        // Twice the size needed, so that one half lies within a GiB.
        let bytes = ((MOST + UPPER) * PAGE) as usize;
        let tables = Mapping::within_a_gib(bytes)?;
        let most = ((1u64 << physical_bits.min(52)) / GIB)
            .saturating_sub(FIRST)
            .min(MOST);
        let memory = Self {
            vm,
            tables,
            tables_at: 0,
            used: AtomicU64::new(1),
            given: AtomicU64::new(0),
            most,
            locked: AtomicBool::new(false),
        };
        // The first GiB given is that of the tables, so their own address is known from here on.
        let memory = Self {
            tables_at: FIRST * GIB + memory.tables.start() as u64 % GIB,
            ..memory
        };
        memory.give_or_say(memory.tables.start())?;
        Ok(memory)
    }

    /// The guest-physical address of the topmost table, for CR3.
    pub(super) fn root(&self) -> u64 {
        self.tables_at
    }

    /// Gives the guest the GiB that contains `address`, unless it has it. Returns whether it then
    /// has it. Neither allocates nor writes `errno`; takes a lock that no code in a context ever
    /// holds.
    pub(super) fn give(&self, address: usize) -> bool {
        let address = address as u64;
        if address >= USER_END {
            return false;
        }
        while self.locked.swap(true, Ordering::Acquire) {
            // Sleeps, since yielding lets no thread of lower priority run, and such a thread may
            // have the lock.
            let some_time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 20_000,
            };
            let argument = (&raw const some_time) as usize;
            // SAFETY: reads the time.
            unsafe { system_call::system_call(libc::SYS_nanosleep, [argument, 0, 0, 0]) };
        }
        let given = self.give_locked(address / GIB);
        self.locked.store(false, Ordering::Release);
        given
    }

    /// [`give`](Self::give) for memory that the guest needs, with an error.
    pub(super) fn give_or_say(&self, address: usize) -> Result<(), GuestError> {
        if self.give(address) {
            Ok(())
        } else {
            Err(GuestError::Kvm {
                what: "giving the process's memory to the virtual machine",
                cause: std::io::Error::from_raw_os_error(libc::ENOMEM),
            })
        }
    }

    /// Gives the guest each GiB in which the process has memory now, the lowest ones first and only
    /// up to a limit. Without that, the kernel takes a while for each missing GiB, and forever if
    /// real-time threads keep its own threads off their cores.
    pub(super) fn give_what_is_there(&self) {
        const MOST_AHEAD: usize = 64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut gibs: Vec<u64> = maps
            .lines()
            .filter_map(|line| {
                let (start, rest) = line.split_once('-')?;
                let (end, rights) = rest.split_once(' ')?;
                let number = |text| u64::from_str_radix(text, 16).ok();
                // Reserved memory may be large, and is not needed.
                let gibs = number(start)? / GIB..=(number(end)? - 1) / GIB;
                (!rights.starts_with("---")).then_some(gibs)
            })
            .flat_map(|gibs| gibs.take(MOST_AHEAD))
            .collect();
        gibs.dedup();
        for gib in gibs.into_iter().take(MOST_AHEAD) {
            self.give((gib * GIB) as usize);
        }
    }

    fn give_locked(&self, gib: u64) -> bool {
        let root = self.tables_at;
        let Some(directory) = self.table_below(root, gib >> 9) else {
            return false;
        };
        if !self.entry(directory, gib % 512).is_unused() {
            return true;
        }
        let number = self.given.load(Ordering::Relaxed);
        if number >= self.most {
            return false;
        }
        let physical = (FIRST + number) * GIB;
        let region = kvm_userspace_memory_region {
            slot: number as u32,
            flags: 0,
            guest_phys_addr: physical,
            memory_size: GIB.min(USER_END - gib * GIB),
            userspace_addr: gib * GIB,
        };
        let argument = (&raw const region) as usize;
        // SAFETY: the region is the process's own memory, and its code has that memory already.
        if unsafe { system_call::ioctl(self.vm, SET_MEMORY, argument) } < 0 {
            return false;
        }
        self.given.store(number + 1, Ordering::Relaxed);
        let Some(pages) = self.table_below(directory, gib % 512) else {
            return false;
        };
        let flags = PageTableFlags::PRESENT
            | PageTableFlags::WRITABLE
            | PageTableFlags::USER_ACCESSIBLE
            | PageTableFlags::ACCESSED
            | PageTableFlags::DIRTY
            | PageTableFlags::HUGE_PAGE;
        for page in 0..512 {
            self.entry(pages, page)
                .set_addr(PhysAddr::new(physical + page * (GIB / 512)), flags);
        }
        true
    }

    /// The table that entry `index` of `table` refers to, made if there is none. Addresses are
    /// guest-physical.
    fn table_below(&self, table: u64, index: u64) -> Option<u64> {
        let entry = self.entry(table, index);
        if entry.is_unused() {
            let used = self.used.load(Ordering::Relaxed);
            if used == MOST + UPPER {
                return None;
            }
            self.used.store(used + 1, Ordering::Relaxed);
            let flags = PageTableFlags::PRESENT
                | PageTableFlags::WRITABLE
                | PageTableFlags::USER_ACCESSIBLE
                | PageTableFlags::ACCESSED;
            entry.set_addr(PhysAddr::new(self.tables_at + used * PAGE), flags);
        }
        Some(entry.addr().as_u64())
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "the lock is held, or no other code knows the tables"
    )]
    fn entry(&self, table: u64, index: u64) -> &mut PageTableEntry {
        let table = self.tables.start() + (table - self.tables_at) as usize;
        let entries = table as *mut PageTableEntry;
        // SAFETY: a table of ours: zeroed or filled in memory of the right size and alignment. Only
        // the lock's holder writes; CPUs read entries as they are written, whole.
        unsafe { &mut *entries.add(index as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::GuestConfig;
    use crate::guest::machine::Machine;

    impl Memory {
        fn has(&self, address: usize) -> bool {
            let gib = address as u64 / GIB;
            self.table_below(self.tables_at, gib >> 9)
                .is_some_and(|directory| !self.entry(directory, gib % 512).is_unused())
        }
    }

    #[test]
    fn what_is_mapped_is_given_ahead_and_what_is_reserved_is_not() {
        let machine = match Machine::new(GuestConfig::default()) {
            Ok(machine) => machine,
            Err(error) => {
                println!(
                    "SKIPPED what_is_mapped_is_given_ahead_and_what_is_reserved_is_not: {error}"
                );
                return;
            }
        };
        let map = |bytes: u64, rights| {
            // SAFETY: new memory, with no other user.
            let address = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    bytes as usize,
                    rights,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            assert_ne!(address, libc::MAP_FAILED);
            address as usize
        };
        let (large, reserved) = (
            map(3 * GIB, libc::PROT_READ | libc::PROT_WRITE),
            map(100 * GIB, libc::PROT_NONE),
        );
        let on_heap = Box::new(0u64);
        let mine = [
            large,
            large + 2 * GIB as usize,
            (&raw const machine) as usize,
            (&raw const *on_heap) as usize,
            Memory::has as *const () as usize,
        ];
        machine.memory.give_what_is_there();
        for address in mine {
            assert!(machine.memory.has(address), "{address:#x}");
        }
        assert!(!machine.memory.has(reserved + 50 * GIB as usize));
        // SAFETY: as mapped above, and not used any more.
        unsafe {
            libc::munmap(large as *mut _, 3 * GIB as usize);
            libc::munmap(reserved as *mut _, 100 * GIB as usize);
        }
    }
}
