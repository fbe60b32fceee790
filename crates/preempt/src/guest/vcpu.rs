//! One worker's vCPU: its pages, and its first registers.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvm_bindings::{
    KVM_MP_STATE_RUNNABLE, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, KVM_VCPU_TSC_CTRL,
    KVM_VCPU_TSC_OFFSET, Msrs, kvm_device_attr, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_run,
    kvm_segment, kvm_sregs, kvm_xcrs,
};
use kvm_ioctls::VcpuFd;
use x86_64::VirtAddr;
use x86_64::registers::control::{Cr0Flags, Cr4Flags, EferFlags};
use x86_64::structures::gdt::{DescriptorFlags, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use super::error::GuestError;
use super::link::GuestLink;
use super::machine::Machine;
use super::mapping::Mapping;
use super::ring0::{self, Block};
use super::system_call::ioctl;

/// Linux's selectors, which code may read.
pub(super) const RING_0_CODE: u16 = 0x10;
const RING_0_DATA: u16 = 0x18;
pub(super) const RING_3_DATA: u16 = 0x2b;
pub(super) const RING_3_CODE: u16 = 0x33;
const TASK_STATE: u16 = 0x40;
/// Its limit tells `getcpu` the CPU's number, on CPUs without RDPID.
const CPU_NUMBER: usize = 15;

/// Stack numbers in the interrupt stack table.
pub(super) const INTERRUPT_STACK: u16 = 0;
pub(super) const EXCEPTION_STACK: u16 = 1;

/// Bytes of the stack that the host side and the program's signal handlers run on, touched lazily.
const HOST_STACK: usize = 512 * 1024;

const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const SYSCALL_MASK: u32 = 0xc000_0084;
const TSC_AUX: u32 = 0xc000_0103;
/// Direction, interrupt and trap flag are cleared on the way into the stub.
const MASKED_FLAGS: u64 = 0x700;

/// The words that an exception, or the way into ring 3, leaves on a stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub(super) rip: u64,
    pub(super) cs: u64,
    pub(super) rflags: u64,
    pub(super) rsp: u64,
    pub(super) ss: u64,
}

/// An exception as its stub leaves it at the end of the exception stack.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Exception {
    pub(super) vector: u64,
    pub(super) error: u64,
    pub(super) frame: Frame,
}

/// The parts of a vCPU that the CPU reads in the process's memory. They take one page, so that
/// nothing crosses one.
#[repr(C, align(4096))]
pub(super) struct Page {
    interrupt_stack: [u64; 64],
    pub(super) block: Block,
    exception_stack: [u64; 64 - 7],
    pub(super) exception: Exception,
    /// The frame of `enter_ring_3`.
    pub(super) entry: Frame,
    descriptors: GlobalDescriptorTable<16>,
    task_state: TaskStateSegment,
    /// A bit for each port from 0 on, clear if ring 3 may write to the port. The last byte is the
    /// end mark.
    ports: [u8; 17],
}

// The handler finds the block at the interrupt stack's end.
const _: () = assert!(std::mem::offset_of!(Page, block) == 512);
// The CPU aligns the stack before it pushes.
const _: () =
    assert!((std::mem::offset_of!(Page, exception) + size_of::<Exception>()).is_multiple_of(16));

/// A worker's vCPU, its pages and its host stack.
pub(super) struct Vcpu {
    pub(super) machine: Arc<Machine>,
    pub(super) link: Arc<GuestLink>,
    pub(super) file: VcpuFd,
    pub(super) run: *mut kvm_run,
    /// In the link's memory.
    pub(super) page: *mut Page,
    pub(super) host_stack: Mapping,
    /// The frame through which the worker leaves guest mode.
    pub(super) way_out: Mapping,
    /// The segment and control registers at every entry, except FS and GS base.
    pub(super) registers: kvm_sregs,
    /// The CPU number that the guest has now.
    pub(super) told_cpu: Cell<u32>,
    /// Whether guest mode was left for good.
    pub(super) broken: Cell<bool>,
}

// SAFETY: the pointers' targets move with it: the page in the link's memory, and the kernel's page
// for the vCPU. The vCPU runs on one thread at a time, that of the worker that has it.
unsafe impl Send for Vcpu {}

impl Vcpu {
    /// Makes the machine's next vCPU for the calling thread.
    pub(super) fn new(machine: &Arc<Machine>) -> Result<Self, GuestError> {
        let id = machine.next_vcpu()?;
        let mut file = machine
            .vm
            .create_vcpu(u64::from(id))
            .map_err(GuestError::kvm("making a vCPU"))?;
        let pages = Mapping::new(size_of::<Page>())?;
        let page = pages.start() as *mut Page;
        // SAFETY: the page is fresh and ours, of this size and alignment; the CPU reads it only
        // once it runs.
        unsafe { (*page).fill() };
        let run: *mut kvm_run = file.get_kvm_run();
        let registers = Self::start(&file, machine, page)?;
        // SAFETY: the kernel's page for this vCPU, mapped as long as `file` lives.
        unsafe { (*run).kvm_valid_regs = u64::from(KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS) };
        // As for the machine's tables.
        machine.memory.give_or_say(pages.start())?;
        Ok(Self {
            link: GuestLink::new(machine, id, file.as_raw_fd(), pages)?,
            machine: Arc::clone(machine),
            file,
            run,
            page,
            host_stack: Mapping::stack(HOST_STACK)?,
            way_out: Mapping::new(super::native::WAY_OUT)?,
            registers,
            told_cpu: Cell::new(u32::MAX),
            broken: Cell::new(false),
        })
    }

    pub(super) fn block(&self) -> &Block {
        self.link.block()
    }

    pub(super) fn file(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Sets the registers that stay the same for the vCPU's life, and returns those that are set at
    /// every entry.
    fn start(file: &VcpuFd, machine: &Machine, page: *mut Page) -> Result<kvm_sregs, GuestError> {
        file.set_cpuid2(&machine.cpuid)
            .map_err(GuestError::kvm("setting CPUID"))?;
        let mut registers = file
            .get_sregs()
            .map_err(GuestError::kvm("reading registers"))?;
        // SAFETY: the page belongs to the caller.
        let (descriptors, task_state) = unsafe {
            (
                &raw const (*page).descriptors,
                &raw const (*page).task_state,
            )
        };
        let null = kvm_segment {
            unusable: 1,
            ..kvm_segment::default()
        };
        registers.cs = segment(RING_0_CODE, true);
        registers.ss = segment(RING_0_DATA, false);
        (registers.ds, registers.es) = (null, null);
        (registers.fs, registers.gs) = (null, null);
        registers.tr = kvm_segment {
            base: task_state as u64,
            limit: (size_of::<TaskStateSegment>() + size_of::<[u8; 17]>() - 1) as u32,
            selector: TASK_STATE,
            type_: 11,
            present: 1,
            ..kvm_segment::default()
        };
        registers.ldt = kvm_segment { type_: 2, ..null };
        registers.gdt.base = descriptors as u64;
        registers.gdt.limit = 16 * 8 - 1;
        registers.idt.base = machine.gates_at();
        registers.idt.limit = 256 * 16 - 1;
        registers.cr0 = (Cr0Flags::PAGING
            | Cr0Flags::ALIGNMENT_MASK
            | Cr0Flags::WRITE_PROTECT
            | Cr0Flags::NUMERIC_ERROR
            | Cr0Flags::EXTENSION_TYPE
            | Cr0Flags::MONITOR_COPROCESSOR
            | Cr0Flags::PROTECTED_MODE_ENABLE)
            .bits();
        registers.cr3 = machine.memory.root();
        registers.cr4 = (Cr4Flags::PHYSICAL_ADDRESS_EXTENSION
            | Cr4Flags::PAGE_GLOBAL
            | Cr4Flags::OSFXSR
            | Cr4Flags::OSXMMEXCPT_ENABLE
            | Cr4Flags::FSGSBASE
            | Cr4Flags::OSXSAVE)
            .bits();
        registers.efer = (EferFlags::SYSTEM_CALL_EXTENSIONS
            | EferFlags::LONG_MODE_ENABLE
            | EferFlags::LONG_MODE_ACTIVE
            | EferFlags::NO_EXECUTE_ENABLE)
            .bits();
        // Enabled, in x2APIC mode.
        registers.apic_base |= 0xc00;
        file.set_sregs(&registers)
            .map_err(GuestError::kvm("setting registers"))?;
        lead_system_calls(file)?;
        enable_vectors(file, machine.vector_state)?;
        share_hosts_clock(file)?;
        enable_apic(file)?;
        file.set_mp_state(kvm_mp_state {
            mp_state: KVM_MP_STATE_RUNNABLE,
        })
        .map_err(GuestError::kvm("making the vCPU runnable"))?;
        Ok(registers)
    }

    /// Tells the guest which CPU it runs on, for `getcpu`.
    pub(super) fn tell_cpu(&self, cpu: u32, node: u32) {
        if self.told_cpu.replace(cpu) == cpu {
            return;
        }
        let number = u64::from(node << 12 | cpu);
        let limit = (number & 0xffff) | (number >> 16 & 0xf) << 48;
        let descriptor = cpu_number_descriptor() | limit;
        // SAFETY: the vCPU does not run now, and a descriptor is 8 bytes, which the CPU reads on
        // request.
        unsafe {
            (&raw mut (*self.page).descriptors)
                .cast::<u64>()
                .add(CPU_NUMBER)
                .write_volatile(descriptor);
        }
        #[repr(C)]
        struct One {
            count: u32,
            padding: u32,
            entry: kvm_msr_entry,
        }
        let one = One {
            count: 1,
            padding: 0,
            entry: kvm_msr_entry {
                index: TSC_AUX,
                data: number,
                ..kvm_msr_entry::default()
            },
        };
        const SET_MSRS: u64 = 0x4008_ae89;
        // SAFETY: sets a register of the guest's. A CPU without it does not use it either.
        unsafe { ioctl(self.file(), SET_MSRS, (&raw const one) as usize) };
    }
}

impl Page {
    fn fill(&mut self) {
        let flags = |flags: DescriptorFlags| flags.bits();
        let unused = 0;
        let mut entries = [unused; 16];
        entries[usize::from(RING_0_CODE / 8)] = flags(DescriptorFlags::KERNEL_CODE64);
        entries[usize::from(RING_0_DATA / 8)] = flags(DescriptorFlags::KERNEL_DATA);
        entries[usize::from(RING_3_DATA / 8)] = flags(DescriptorFlags::USER_DATA);
        entries[usize::from(RING_3_CODE / 8)] = flags(DescriptorFlags::USER_CODE64);
        entries[CPU_NUMBER] = cpu_number_descriptor();
        self.descriptors = GlobalDescriptorTable::from_raw_entries(&entries);
        self.task_state = TaskStateSegment::new();
        let end = |of: *const u8, bytes: usize| VirtAddr::from_ptr(of.wrapping_add(bytes));
        let interrupt_end = end((&raw const self.interrupt_stack).cast(), 64 * 8);
        let exception_end = end((&raw const self.exception).cast(), size_of::<Exception>());
        self.task_state.interrupt_stack_table[usize::from(INTERRUPT_STACK)] = interrupt_end;
        self.task_state.interrupt_stack_table[usize::from(EXCEPTION_STACK)] = exception_end;
        self.task_state.iomap_base = size_of::<TaskStateSegment>() as u16;
        self.ports = [0xff; 17];
    }

    /// Lets ring 3 write to the system call stub's port.
    ///
    /// # Safety
    /// `page` belongs to a vCPU that does not run. (Others have references to the block in it.)
    pub(super) unsafe fn open_port(page: *mut Self) {
        let port = usize::from(ring0::SYSTEM_CALL_PORT);
        // SAFETY: the caller promises it, and the port has a bit.
        unsafe { (*page).ports[port / 8] &= !(1 << (port % 8)) };
    }
}

/// A data segment whose limit ring 3 may read; the limit is still 0.
fn cpu_number_descriptor() -> u64 {
    (DescriptorFlags::USER_SEGMENT
        | DescriptorFlags::PRESENT
        | DescriptorFlags::DPL_RING_3
        | DescriptorFlags::ACCESSED
        | DescriptorFlags::DEFAULT_SIZE)
        .bits()
}

/// Has the guest's system calls enter ring 0 at its stub.
fn lead_system_calls(file: &VcpuFd) -> Result<(), GuestError> {
    let stub = ring0::system_call_stub as *const () as u64;
    let star = (u64::from(RING_3_CODE - 16) << 48) | (u64::from(RING_0_CODE) << 32);
    let wanted = [(STAR, star), (LSTAR, stub), (SYSCALL_MASK, MASKED_FLAGS)];
    let msrs = wanted.map(|(index, data)| kvm_msr_entry {
        index,
        data,
        ..kvm_msr_entry::default()
    });
    let msrs = Msrs::from_entries(&msrs).expect("three are few");
    let set = file
        .set_msrs(&msrs)
        .map_err(GuestError::kvm("setting MSRs"))?;
    if set != wanted.len() {
        return Err(GuestError::Lacking {
            what: "the system call MSRs",
        });
    }
    Ok(())
}

/// Gives the guest the vector registers of these bits of XCR0.
fn enable_vectors(file: &VcpuFd, state: u64) -> Result<(), GuestError> {
    let mut xcrs = kvm_xcrs {
        nr_xcrs: 1,
        ..kvm_xcrs::default()
    };
    xcrs.xcrs[0].value = state;
    file.set_xcrs(&xcrs)
        .map_err(GuestError::kvm("enabling vector registers"))
}

/// Makes the guest's TSC that of the host.
fn share_hosts_clock(file: &VcpuFd) -> Result<(), GuestError> {
    const SET_DEVICE_ATTR: u64 = 0x4018_aee1;
    let no_offset = 0u64;
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: (&raw const no_offset) as u64,
        flags: 0,
    };
    // SAFETY: sets a register of the guest's from the number above.
    let answer = unsafe {
        ioctl(
            file.as_raw_fd(),
            SET_DEVICE_ATTR,
            (&raw const attribute) as usize,
        )
    };
    if answer < 0 {
        return Err(GuestError::Lacking {
            what: "control over the TSC's offset (KVM_VCPU_TSC_OFFSET)",
        });
    }
    Ok(())
}

/// Has the vCPU's APIC take interrupts.
fn enable_apic(file: &VcpuFd) -> Result<(), GuestError> {
    let mut apic = file
        .get_lapic()
        .map_err(GuestError::kvm("reading the APIC"))?;
    // The spurious-interrupt register: enabled, spurious vector 255.
    for (at, byte) in 0x1ffu32.to_le_bytes().into_iter().enumerate() {
        apic.regs[0xf0 + at] = byte as i8;
    }
    file.set_lapic(&apic)
        .map_err(GuestError::kvm("setting the APIC"))
}

fn segment(selector: u16, code: bool) -> kvm_segment {
    kvm_segment {
        selector,
        limit: u32::MAX,
        type_: if code { 11 } else { 3 },
        present: 1,
        s: 1,
        g: 1,
        l: u8::from(code),
        db: u8::from(!code),
        ..kvm_segment::default()
    }
}

/// Registers that are all 0 except these two.
pub(super) fn registers_at(rip: u64, rsp: u64) -> kvm_regs {
    kvm_regs {
        rip,
        rsp,
        // The bit that is always set; interrupts are masked.
        rflags: 2,
        ..kvm_regs::default()
    }
}
