//! Entering Dune mode, and the interrupt's set-up there.
//!
//! libdune's gates keep the interrupted code's stack and leave interrupts enabled. Our gate has an
//! entry of its own in the interrupt stack table, so that the red zone stays intact, and disables
//! interrupts, so that a second one cannot come onto the same stack.

use std::cell::Cell;
use std::sync::Arc;

use dune_sys::apic::{LocalApic, RegisterPage};
use dune_sys::{DESCRIPTOR_STRIDE, DESCRIPTORS, MAX_CPUS, PostedInterruptDescriptor};

use super::interrupt::STACK;
use super::{DuneError, Target};
use crate::backend::Mode;
use crate::context::Head;
use crate::signal;
use crate::trampoline::Window;

/// The memory that a thread in Dune mode can reach.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) apic: LocalApic<RegisterPage>,
    descriptors: *const u8,
}

impl Memory {
    /// The descriptor of a CPU, of which there are [`MAX_CPUS`].
    pub(super) fn descriptor(&self, cpu: u32) -> &PostedInterruptDescriptor {
        debug_assert!(cpu < MAX_CPUS, "checked on entering");
        let at = cpu as usize * DESCRIPTOR_STRIDE as usize;
        // SAFETY: libdune maps a page for each CPU there, for good; all shared words in it are
        // atomic.
        unsafe { &*self.descriptors.add(at).cast() }
    }
}

thread_local! {
    /// Whether this thread entered. Constant initialiser, no destructor.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Descriptors and APIC, if the calling thread is in Dune mode.
pub(super) fn memory() -> Option<Memory> {
    ENTERED.get().then(|| Memory {
        // SAFETY: the thread is in Dune mode for good, under libdune's page tables, and only it
        // gets this value.
        apic: LocalApic(unsafe { RegisterPage::of_libdune() }),
        descriptors: std::ptr::with_exposed_provenance(DESCRIPTORS as usize),
    })
}

/// A thread that has entered, as other threads see it.
pub(super) struct Entered {
    cpu: u32,
    apic: dune_sys::apic::ApicId,
}

/// A worker's side: its interrupt stack, and its window.
#[derive(Debug)]
pub(super) struct Receiver {
    window: &'static Window,
    pub(super) target: Arc<Target>,
}

impl Receiver {
    pub(super) fn new(entered: Entered) -> Result<Self, DuneError> {
        let memory = memory().ok_or(DuneError::NotLinked)?;
        // Vectors posted here long ago have no receiver.
        let _stale = memory.descriptor(entered.cpu).take();
        let stack = interrupt_stack()?;
        // SAFETY: in Dune mode, where the tables are libdune's; the stack lives forever.
        unsafe { tables::use_interrupt_stack(stack as u64 + STACK as u64) };
        Ok(Self {
            // SAFETY: the stack's lower end, zeroed memory that is never unmapped; all its fields
            // are atomic.
            window: unsafe { &*std::ptr::with_exposed_provenance(stack) },
            target: Arc::new(Target::new(entered.cpu, entered.apic)),
        })
    }
}

impl Mode for Receiver {
    #[inline]
    unsafe fn before_entering(&self, head: &Head) -> u64 {
        let low = head.stack_low.get() + signal::frame_room();
        self.window.set(low, head.stack_high.get());
        self.window.take_elsewhere()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The thread stays in Dune mode with its interrupt stack; from now on its interrupts have
        // no effect.
        self.window.close();
    }
}

/// Zeroed memory of [`STACK`] bytes, aligned to that size, for good: the CPU uses it until the
/// thread's end. It is not on the heap, whose first part libdune may not have mapped.
fn interrupt_stack() -> Result<usize, DuneError> {
    // SAFETY: makes a new mapping.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * STACK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(DuneError::Memory(std::io::Error::last_os_error()));
    }
    Ok(memory.expose_provenance().next_multiple_of(STACK))
}

/// The one CPU that the calling thread may run on, if libdune can map its descriptor.
#[cfg(any(test, feature = "libdune"))]
fn pinned_cpu() -> Option<u32> {
    let only = crate::Affinity::of_current().ok()?.only_core()?;
    u32::try_from(only).ok().filter(|&cpu| cpu < MAX_CPUS)
}

#[cfg(not(feature = "libdune"))]
pub(super) fn set_up() -> Result<(), DuneError> {
    Err(DuneError::NotLinked)
}

#[cfg(not(feature = "libdune"))]
pub(super) fn enter() -> Result<Entered, DuneError> {
    Err(DuneError::NotLinked)
}

#[cfg(feature = "libdune")]
pub(super) use linked::{enter, set_up};

#[cfg(feature = "libdune")]
mod linked {
    use std::ffi::c_int;
    use std::sync::{Mutex, PoisonError};

    use super::super::interrupt::handler;
    use super::super::target::VECTOR;
    use super::{DuneError, ENTERED, Entered, memory, pinned_cpu};
    use dune_sys::libdune;

    fn answered(function: &'static str, answer: c_int) -> Result<(), DuneError> {
        match answer {
            0 => Ok(()),
            _ => Err(DuneError::Libdune {
                function,
                cause: std::io::Error::from_raw_os_error(answer.saturating_neg()),
            }),
        }
    }

    /// libdune's own set-up, once a process.
    pub(in super::super) fn set_up() -> Result<(), DuneError> {
        static DONE: Mutex<bool> = Mutex::new(false);
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !*done {
            crate::trampoline::prepare(u64::MAX);
            // SAFETY: once a process; no thread has entered.
            answered("dune_init", unsafe { libdune::dune_init(true) })?;
            // SAFETY: the handler does only what libdune allows handlers to do, and does not
            // unwind.
            let registered =
                unsafe { libdune::dune_register_intr_handler(c_int::from(VECTOR), Some(handler)) };
            answered("dune_register_intr_handler", registered)?;
            *done = true;
        }
        Ok(())
    }

    /// Takes the calling thread into Dune mode.
    pub(in super::super) fn enter() -> Result<Entered, DuneError> {
        let cpu = pinned_cpu().ok_or(DuneError::NotPinned)?;
        if !ENTERED.get() {
            // SAFETY: libdune is set up: there is a `Dune`.
            answered("dune_enter", unsafe { libdune::dune_enter() })?;
            ENTERED.set(true);
        }
        let memory = memory().ok_or(DuneError::NotLinked)?;
        Ok(Entered {
            cpu,
            apic: memory.apic.id()?,
        })
    }
}

/// The CPU's tables, which are the process's own memory in Dune mode.
mod tables {
    use dune_sys::trap_frame::TASK_STATE;
    use x86_64::instructions::tables::{sgdt, sidt};
    use x86_64::structures::tss::TaskStateSegment;

    use super::super::target::VECTOR;

    /// libdune uses the first entry of the interrupt stack table, and gives all the others the same
    /// page.
    const STACK_TABLE_ENTRY: u8 = 2;

    /// Makes our interrupt come on the stack that ends at `top`, with interrupts disabled.
    ///
    /// # Safety
    /// In Dune mode, under libdune's tables; the stack belongs to this thread alone for the
    /// thread's life.
    pub(super) unsafe fn use_interrupt_stack(top: u64) {
        // SAFETY: libdune's tables have all these entries; the first write is to this thread's own,
        // and all threads write the same to the shared one, whose interrupt no thread sends before
        // a worker has a target.
        unsafe {
            let gdt: *const u64 = std::ptr::with_exposed_provenance(sgdt().base.as_u64() as usize);
            let at = usize::from(TASK_STATE.index());
            let base = task_state_base(gdt.add(at).read(), gdt.add(at + 1).read());
            let task_state: *mut TaskStateSegment =
                std::ptr::with_exposed_provenance_mut(base as usize);
            let slot = usize::from(STACK_TABLE_ENTRY) - 1;
            (&raw mut (*task_state).interrupt_stack_table[slot])
                .write_unaligned(x86_64::VirtAddr::new(top));
            let idt: *mut [u8; 16] =
                std::ptr::with_exposed_provenance_mut(sidt().base.as_u64() as usize);
            let gate = idt.add(usize::from(VECTOR));
            gate.write(with_own_stack(gate.read()));
        }
    }

    /// The base in a task state's descriptor, which takes two entries of the table.
    fn task_state_base(low: u64, high: u64) -> u64 {
        (low >> 16 & 0xff_ffff) | (low >> 56) << 24 | high << 32
    }

    /// A gate with our entry of the interrupt stack table that disables interrupts (an interrupt
    /// gate, no trap gate).
    fn with_own_stack(mut gate: [u8; 16]) -> [u8; 16] {
        gate[4] = gate[4] & !7 | STACK_TABLE_ENTRY;
        gate[5] &= !1;
        gate
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use x86_64::VirtAddr;
        use x86_64::structures::gdt::Descriptor;
        use x86_64::structures::idt::InterruptDescriptorTable;

        #[test]
        fn a_task_states_base_is_read_as_it_was_written() {
            let state = Box::leak(Box::new(TaskStateSegment::new()));
            let Descriptor::SystemSegment(low, high) = Descriptor::tss_segment(state) else {
                panic!("a task state is a system segment");
            };
            assert_eq!(task_state_base(low, high), std::ptr::from_ref(state) as u64);
        }

        #[test]
        fn the_gate_gets_its_stack_and_closes_interrupts() {
            let table = |index: Option<u16>| {
                let mut table = InterruptDescriptorTable::new();
                // SAFETY: the table is never loaded.
                unsafe {
                    let options = table[VECTOR].set_handler_addr(VirtAddr::new(0x1234_5678_9abc));
                    options.disable_interrupts(index.is_some());
                    if let Some(index) = index {
                        options.set_stack_index(index);
                    }
                }
                let gates: *const [u8; 16] = std::ptr::from_ref(&table).cast();
                // SAFETY: the table is 256 gates of 16 bytes.
                unsafe { gates.add(usize::from(VECTOR)).read() }
            };
            let mut libdunes = table(None);
            assert_eq!(libdunes[5] & 0xf, 0xf, "a trap gate");
            // As libdune has it for exceptions of the first entry.
            libdunes[4] |= 1;
            let wanted = table(Some(u16::from(STACK_TABLE_ENTRY) - 1));
            assert_eq!(with_own_stack(libdunes), wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_stacks_are_aligned_to_their_size() {
        let one = interrupt_stack().unwrap();
        assert_eq!(one % STACK, 0);
        assert!(size_of::<Window>() < STACK / 4);
        assert!(memory().is_none(), "this thread never entered");
    }

    #[test]
    fn only_a_pinned_thread_has_a_cpu() {
        let cpu = std::thread::spawn(|| {
            // SAFETY: changes this thread's set only, to the CPU that it runs on.
            unsafe {
                let mut one: libc::cpu_set_t = std::mem::zeroed();
                let cpu = usize::try_from(libc::sched_getcpu()).unwrap();
                libc::CPU_SET(cpu, &mut one);
                assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
                (pinned_cpu(), cpu)
            }
        });
        let (pinned, cpu) = cpu.join().unwrap();
        assert_eq!(pinned.map(|cpu| cpu as usize), Some(cpu));
        if std::thread::available_parallelism().unwrap().get() > 1 {
            assert_eq!(pinned_cpu(), None);
        }
    }
}
