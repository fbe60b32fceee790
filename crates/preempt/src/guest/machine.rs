//! The virtual machine that a process's workers share.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::{
    CpuId, KVM_CAP_SYNC_REGS, KVM_CAP_X2APIC_API, KVM_CAP_X86_DISABLE_EXITS, KVM_CAP_XSAVE2,
    KVM_IRQ_ROUTING_MSI, KVM_MAX_CPUID_ENTRIES, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS,
    KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS,
    KVM_X86_DISABLE_EXITS_HLT, KvmIrqRouting, kvm_enable_cap, kvm_irq_routing_entry,
    kvm_irq_routing_entry__bindgen_ty_1, kvm_irq_routing_msi, kvm_irq_routing_msi__bindgen_ty_1,
};
use kvm_ioctls::{Cap, Kvm, VmFd};
use vmm_sys_util::eventfd::EventFd;
use x86_64::structures::gdt::SegmentSelector;
use x86_64::structures::idt::{Entry, HandlerFunc};
use x86_64::{PrivilegeLevel, VirtAddr};

use super::error::GuestError;
use super::link::msi_address;
use super::mapping::Mapping;
use super::memory::Memory;
use super::vcpu::{EXCEPTION_STACK, INTERRUPT_STACK, RING_0_CODE};
use super::{native, ring0, system_call};
use crate::trampoline;

/// The interrupt's vector.
pub(super) const VECTOR: u8 = 0x60;
const SPURIOUS: usize = 0xff;
/// Numbers up to this fit into an MSI's address.
const MOST_VCPUS: u32 = 255;

/// How the dispatcher's thread posts an interrupt. The first two are one system call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Sending {
    /// A write to an eventfd that KVM watches (KVM_IRQFD).
    #[default]
    Irqfd,
    /// An ioctl with the message (KVM_SIGNAL_MSI).
    Msi,
    /// A write to the thread's own APIC, if the thread is [in guest
    /// mode](super::Guest::post_from_this_thread); otherwise as `Irqfd`.
    Apic,
}

/// Where the interrupt controllers are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Irqchip {
    /// Only the local APICs are in the kernel, which is enough here.
    #[default]
    Split,
    /// All of a PC's.
    Kernel,
}

/// How guest mode is set up. The default suits all but comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GuestConfig {
    /// How interrupts are posted.
    pub sending: Sending,
    /// Where the interrupt controllers are.
    pub irqchip: Irqchip,
}

/// The virtual machine.
pub(super) struct Machine {
    /// The process that owns the machine. Children inherit its descriptors, but not its memory.
    pub(super) process: u32,
    pub(super) vm: VmFd,
    pub(super) memory: Memory,
    pub(super) cpuid: CpuId,
    /// The vector registers that guest mode has, as bits of XCR0, and the bytes that they take.
    pub(super) vector_state: u64,
    pub(super) vector_bytes: usize,
    pub(super) sending: Sending,
    gates: Mapping,
    vcpus: AtomicU32,
    most_vcpus: u32,
    routes: Mutex<Vec<kvm_irq_routing_entry>>,
}

impl Machine {
    pub(super) fn new(config: GuestConfig) -> Result<Arc<Self>, GuestError> {
        let kvm = open()?;
        if !(system_call::gate_is_as_drawn() && ring0::post_is_as_drawn()) {
            return Err(GuestError::Assembled);
        }
        check_capabilities(&kvm)?;
        let most_vcpus =
            u32::try_from(kvm.get_max_vcpus()).map_or(MOST_VCPUS, |most| most.min(MOST_VCPUS));
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(GuestError::kvm("reading what CPUs KVM supports"))?;
        let physical_bits = match leaf(&cpuid, 0x8000_0008).eax & 0xff {
            0 => 36,
            bits => bits,
        };
        let vectors = leaf(&cpuid, 0xd);
        let supported = u64::from(vectors.eax) | u64::from(vectors.edx) << 32;
        let (vector_state, vector_bytes) = trampoline::prepare(supported & native::VECTORS);
        let vm = create(&kvm, config.irqchip)?;
        let memory = Memory::new(vm.as_raw_fd(), physical_bits)?;
        let gates = gates()?;
        // Without them the CPU delivers no exception, so no page fault could ask for them.
        for address in ring0::code().into_iter().chain([gates.start()]) {
            memory.give_or_say(address)?;
        }
        Ok(Arc::new(Self {
            process: std::process::id(),
            vm,
            memory,
            cpuid,
            vector_state,
            vector_bytes,
            sending: config.sending,
            gates,
            vcpus: AtomicU32::new(0),
            most_vcpus,
            routes: Mutex::default(),
        }))
    }

    /// The number of a new vCPU.
    pub(super) fn next_vcpu(&self) -> Result<u32, GuestError> {
        let id = self.vcpus.fetch_add(1, Ordering::Relaxed);
        if id < self.most_vcpus {
            return Ok(id);
        }
        Err(GuestError::TooManyWorkers {
            most: self.most_vcpus,
        })
    }

    /// Address of the interrupt descriptor table.
    pub(super) fn gates_at(&self) -> u64 {
        self.gates.start() as u64
    }

    /// Makes a write to `kick` post the vector to the CPU with this APIC number.
    pub(super) fn route(&self, apic: u32, kick: &EventFd) -> Result<(), GuestError> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        routes.push(kvm_irq_routing_entry {
            gsi: apic,
            type_: KVM_IRQ_ROUTING_MSI,
            u: kvm_irq_routing_entry__bindgen_ty_1 {
                msi: kvm_irq_routing_msi {
                    address_lo: msi_address(apic),
                    address_hi: 0,
                    data: u32::from(VECTOR),
                    __bindgen_anon_1: kvm_irq_routing_msi__bindgen_ty_1::default(),
                },
            },
            ..kvm_irq_routing_entry::default()
        });
        let table = KvmIrqRouting::from_entries(&routes).map_err(|_| GuestError::Lacking {
            what: "room for interrupt routes",
        })?;
        self.vm
            .set_gsi_routing(&table)
            .map_err(GuestError::kvm("routing interrupts"))?;
        self.vm
            .register_irqfd(kick, apic)
            .map_err(GuestError::kvm("binding an eventfd to an interrupt"))
    }
}

/// Opens /dev/kvm.
fn open() -> Result<Kvm, GuestError> {
    Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => GuestError::NoDevice,
        libc::EACCES | libc::EPERM => GuestError::NoPermission,
        _ => GuestError::kvm("opening /dev/kvm")(error),
    })
}

/// Says what KVM lacks of what a machine needs.
fn check_capabilities(kvm: &Kvm) -> Result<(), GuestError> {
    let registers = (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS) as i32;
    let halting = KVM_X86_DISABLE_EXITS_HLT as i32;
    let needed = [
        (
            kvm.check_extension_raw(KVM_CAP_SYNC_REGS.into()) & registers == registers,
            "KVM_CAP_SYNC_REGS",
        ),
        (kvm.check_extension(Cap::Xcrs), "KVM_CAP_XCRS"),
        (
            kvm.check_extension_raw(KVM_CAP_X2APIC_API.into()) > 0,
            "KVM_CAP_X2APIC_API",
        ),
        (
            kvm.check_extension(Cap::SplitIrqchip),
            "KVM_CAP_SPLIT_IRQCHIP",
        ),
        (kvm.check_extension(Cap::SignalMsi), "KVM_CAP_SIGNAL_MSI"),
        (
            kvm.check_extension_raw(KVM_CAP_X86_DISABLE_EXITS.into()) & halting != 0,
            "KVM_X86_DISABLE_EXITS_HLT (which kvm.mitigate_smt_rsb takes away)",
        ),
        (kvm.check_extension(Cap::Irqfd), "KVM_CAP_IRQFD"),
        (
            usize::try_from(kvm.check_extension_raw(KVM_CAP_XSAVE2.into()))
                .is_ok_and(|bytes| bytes <= native::MOST_VECTOR_BYTES),
            "vector state of a size known here (KVM_CAP_XSAVE2)",
        ),
    ];
    match needed.into_iter().find(|(there, _)| !there) {
        Some((_, what)) => Err(GuestError::Lacking { what }),
        None => Ok(()),
    }
}

/// A leaf of `cpuid`, its first part; zeroes if there is none.
fn leaf(cpuid: &CpuId, function: u32) -> kvm_bindings::kvm_cpuid_entry2 {
    let mut entries = cpuid.as_slice().iter();
    let found = entries.find(|entry| entry.function == function && entry.index == 0);
    found.copied().unwrap_or_default()
}

/// Makes the virtual machine, with its interrupt controllers where they shall be.
fn create(kvm: &Kvm, irqchip: Irqchip) -> Result<VmFd, GuestError> {
    let vm = kvm
        .create_vm()
        .map_err(GuestError::kvm("making a virtual machine"))?;
    // Old Intel CPUs require these to start in real mode, which this machine never uses; others
    // may refuse.
    let _ = vm.set_identity_map_address(0xfffb_c000);
    let _ = vm.set_tss_address(0xfffb_d000);
    match irqchip {
        Irqchip::Kernel => vm
            .create_irq_chip()
            .map_err(GuestError::kvm("making interrupt controllers"))?,
        Irqchip::Split => enable(&vm, kvm_bindings::KVM_CAP_SPLIT_IRQCHIP, 24)?,
    }
    enable(
        &vm,
        KVM_CAP_X2APIC_API,
        KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK,
    )?;
    // If a guest may halt by itself, KVM does not put it to sleep while a page is fetched: the
    // thread sleeps instead, as any other. Otherwise KVM would retry forever for a page that
    // cannot be had (behind a file's end, or guarded by madvise), when a signal is due.
    enable(&vm, KVM_CAP_X86_DISABLE_EXITS, KVM_X86_DISABLE_EXITS_HLT)?;
    Ok(vm)
}

fn enable(vm: &VmFd, cap: u32, argument: u32) -> Result<(), GuestError> {
    let mut request = kvm_enable_cap {
        cap,
        ..kvm_enable_cap::default()
    };
    request.args[0] = argument.into();
    vm.enable_cap(&request)
        .map_err(GuestError::kvm("setting the virtual machine up"))
}

/// The interrupt descriptor table: all exceptions to their stubs, two vectors to their handlers,
/// nothing else. No gate is open to ring 3, so `int3` and the like cause protection faults, and are
/// executed natively.
fn gates() -> Result<Mapping, GuestError> {
    let mapping = Mapping::new(256 * size_of::<Entry<HandlerFunc>>())?;
    let table = mapping.start() as *mut Entry<HandlerFunc>;
    let gate = |vector: usize, handler: u64, stack: u16| {
        let mut entry = Entry::<HandlerFunc>::missing();
        // SAFETY: handlers and stacks were made for it, and the selector is ring 0's code of the
        // vCPU's table.
        unsafe {
            entry
                .set_handler_addr(VirtAddr::new(handler))
                .set_code_selector(SegmentSelector::new(RING_0_CODE / 8, PrivilegeLevel::Ring0))
                .set_stack_index(stack);
            // The table has 256 entries.
            table.add(vector).write(entry);
        }
    };
    for vector in 0..256 {
        // SAFETY: as above.
        unsafe { table.add(vector).write(Entry::missing()) };
    }
    let stubs = (ring0::exception_stubs as *const () as usize).next_multiple_of(16);
    for vector in 0..32 {
        gate(
            vector,
            (stubs + vector * ring0::EXCEPTION_STUB) as u64,
            EXCEPTION_STACK,
        );
    }
    for (vector, handler, stack) in [
        (
            ring0::UNDEFINED_INSTRUCTION,
            ring0::undefined_instruction_stub as *const (),
            EXCEPTION_STACK,
        ),
        (
            usize::from(VECTOR),
            ring0::interrupt_handler as *const (),
            INTERRUPT_STACK,
        ),
        (SPURIOUS, ring0::ignore as *const (), INTERRUPT_STACK),
    ] {
        gate(vector, handler as u64, stack);
    }
    Ok(mapping)
}
