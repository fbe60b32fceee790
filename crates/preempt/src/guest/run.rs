//! Entering guest mode, and the host side while the worker is in it.
//!
//! ```text
//!      the worker's thread           its own stack                     its host stack
//!      enter ─────────────────────▶  frame, as `switch` has it  ─────▶ host_side: KVM_RUN ◀──┐
//!                                                                        │ exit              │
//!      (guest mode) returns from `enter`, runs contexts, system calls ──▶├─ forwarded ───────┤
//!                                                                        ├─ memory given ────┤
//!                                                                        ├─ a signal came ───┘
//!      (natively) goes on where it was ◀──────── native::leave ──────────┴─ anything else
//! ```
//!
//! The host side runs with the worker's own FS base, also while the guest's code is a context's. It
//! neither allocates nor writes `errno`: the guest's code may be at any instruction.

use std::arch::naked_asm;
use std::sync::atomic::Ordering;

use kvm_bindings::{
    KVM_EXIT_INTR, KVM_EXIT_IO, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_regs, kvm_run,
    kvm_sync_regs,
};

use super::native::{self, State};
use super::policy::{LEAVE, Policy, policy};
use super::ring0::{self, EXCEPTION_PORT, OUT_LENGTH, SYSCALL_LENGTH, SYSTEM_CALL_PORT};
use super::system_call::{self, Call, ioctl, system_call};
use super::vcpu::{Frame, Page, RING_3_CODE, RING_3_DATA, Vcpu, registers_at};
use crate::switch::fs_base;

const KVM_RUN: u64 = 0xae80;
const BREAKPOINT: u64 = 3;
const PROTECTION_FAULT: u64 = 13;
const PAGE_FAULT: u64 = 14;
/// Interrupts are enabled.
const INTERRUPT_FLAG: u64 = 1 << 9;

/// Puts the calling thread into guest mode: returns in it; or natively if KVM refuses, or in
/// another process, which breaks the vCPU.
///
/// # Safety
/// The thread is the vCPU's, is not in guest mode, and runs its own code on its own stack.
#[inline(never)]
pub(super) unsafe fn enter(vcpu: &Vcpu) {
    if vcpu.machine.process != std::process::id() {
        // A forked child. The machine is its parent's, and so is the page of registers, which they
        // share.
        vcpu.broken.set(true);
        return;
    }
    // SAFETY: the caller promises it; the host stack is the vCPU's own and not in use, since the
    // thread is not in guest mode.
    unsafe { enter_on(vcpu, vcpu.host_stack.end()) };
    touch(vcpu);
}

/// Makes KVM find the pages that the CPU needs to deliver an exception, so that it need not during
/// one: not every implementation restarts an `int3` after that.
fn touch(vcpu: &Vcpu) {
    for address in ring0::code()
        .into_iter()
        .chain([vcpu.machine.gates_at() as usize])
    {
        // SAFETY: a table or code of ours, which can be read.
        unsafe { (address as *const u8).read_volatile() };
    }
    // The stacks are in the block's page, and must be writable.
    vcpu.block().touched.store(1, Ordering::Relaxed);
}

/// Saves the caller as `switch` does and runs the host side on the stack that ends at `host_stack`.
#[unsafe(naked)]
unsafe extern "C" fn enter_on(vcpu: *const Vcpu, host_stack: usize) {
    naked_asm!(
        push_frame!(),
        "mov rax, rsp",
        "mov rsp, rsi",
        "mov rsi, rax",
        "call {host_side}",
        "ud2",
        host_side = sym host_side,
    )
}

/// Where guest mode begins: returns from `enter_on`, through the frame on the worker's stack.
#[unsafe(naked)]
unsafe extern "C" fn entered() {
    naked_asm!("fninit", pop_frame!())
}

/// Returns from `enter_on` without guest mode, through its frame.
///
/// # Safety
/// `frame` must be that of the `enter_on` which the caller runs under.
#[unsafe(naked)]
unsafe extern "C" fn return_natively(frame: u64) -> ! {
    naked_asm!("mov rsp, rdi", "fninit", pop_frame!())
}

/// Leaves guest mode: resumes natively after the call.
///
/// # Safety
/// The caller runs in guest mode, in the worker's own code.
pub(super) unsafe fn leave() {
    // SAFETY: the host side answers the call by leaving.
    unsafe { system_call(LEAVE as libc::c_long, [0; 4]) };
}

/// # Safety
/// Called by `enter_on` only, with the stack pointer of the frame that it pushed.
unsafe extern "C" fn host_side(vcpu: *const Vcpu, frame: u64) -> ! {
    // SAFETY: the worker that called `enter` keeps its vCPU until it has left guest mode.
    let vcpu = unsafe { &*vcpu };
    let mut host = Host {
        vcpu,
        last_given: usize::MAX,
    };
    host.begin(frame);
    loop {
        host.run();
    }
}

struct Host<'a> {
    vcpu: &'a Vcpu,
    /// The last address for which memory was given: no memory can be missing there again.
    last_given: usize,
}

impl Host<'_> {
    fn shared(&self) -> *mut kvm_run {
        self.vcpu.run
    }

    fn registers(&self) -> &kvm_sync_regs {
        // SAFETY: the kernel's page; the kernel reads and writes it only within KVM_RUN, which only
        // this thread calls.
        unsafe { &(*self.shared()).s.regs }
    }

    fn registers_mut(&mut self) -> &mut kvm_sync_regs {
        // SAFETY: as above.
        unsafe { &mut (*self.shared()).s.regs }
    }

    /// Makes the next KVM_RUN take over what was written to `registers`.
    fn changed(&self, which: u32) {
        // SAFETY: as above.
        unsafe { (*self.shared()).kvm_dirty_regs |= u64::from(which) };
    }

    /// Starts the guest's code at `entered`, on the worker's stack.
    fn begin(&mut self, frame: u64) {
        let vcpu = self.vcpu;
        self.read_mask();
        let (mut cpu, mut node) = (0u32, 0u32);
        // SAFETY: writes the two numbers.
        unsafe {
            system_call(
                libc::SYS_getcpu,
                [(&raw mut cpu) as usize, (&raw mut node) as usize, 0, 0],
            )
        };
        vcpu.tell_cpu(cpu, node);
        let entry = Frame {
            rip: entered as *const () as u64,
            cs: u64::from(RING_3_CODE),
            rflags: INTERRUPT_FLAG | 2,
            rsp: frame,
            ss: u64::from(RING_3_DATA),
        };
        // SAFETY: the vCPU does not run.
        let entry_at = unsafe {
            (*vcpu.page).entry = entry;
            &raw const (*vcpu.page).entry
        };
        let mut special = vcpu.registers;
        special.fs.base = fs_base() as u64;
        special.gs.base = gs_base();
        let registers = self.registers_mut();
        registers.sregs = special;
        registers.regs = registers_at(ring0::enter_ring_3 as *const () as u64, entry_at as u64);
        self.changed(KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS);
        vcpu.link.mode.to_guest();
    }

    /// Runs the guest's code until it exits, and handles the exit.
    fn run(&mut self) {
        let link = &self.vcpu.link;
        // SAFETY: the guest's code is the process's own, with its own memory.
        let answer = unsafe { ioctl(self.vcpu.file(), KVM_RUN, 0) };
        link.returns.fetch_add(1, Ordering::Relaxed);
        match -answer as i32 {
            0 => {}
            libc::EINTR | libc::EAGAIN => return,
            // The page is missing, or forbids the access: the code meets the fault itself,
            // natively.
            libc::EFAULT => self.go_native(),
            _ => self.fail(),
        }
        // SAFETY: as for `registers`; the reason says which member of the union is there.
        let (reason, port) = unsafe {
            let run = &*self.shared();
            (run.exit_reason, run.__bindgen_anon_1.io.port)
        };
        match (reason, port) {
            (KVM_EXIT_IO, SYSTEM_CALL_PORT) if at_stub(&self.registers().regs) => {
                self.system_call()
            }
            (KVM_EXIT_IO, EXCEPTION_PORT) if self.in_ring_0() => self.exception(),
            (KVM_EXIT_INTR, _) => {}
            // An instruction that KVM could not emulate, or an access without memory.
            _ if !self.in_ring_0() => {
                let state = self.state();
                self.conclude_exit();
                self.go_native_at(state)
            }
            _ => self.fail(),
        }
    }

    /// KVM may have half of an instruction left to do, and must not do it to the registers of the
    /// next entry.
    fn conclude_exit(&mut self) {
        /// A vector register is 64 bytes, of which KVM asks for 8 at a time; with some reserve.
        const MOST_PARTS: usize = 32;
        // SAFETY: as for `registers`; with this flag KVM_RUN completes the instruction and does no
        // more. It answers EINTR when nothing is left.
        unsafe {
            (*self.shared()).immediate_exit = 1;
            for _ in 0..MOST_PARTS {
                if ioctl(self.vcpu.file(), KVM_RUN, 0) != 0 {
                    break;
                }
            }
            (*self.shared()).immediate_exit = 0;
        }
    }

    fn in_ring_0(&self) -> bool {
        self.registers().sregs.cs.selector & 3 == 0
    }

    fn system_call(&mut self) {
        let registers = self.registers().regs;
        let call = Call {
            number: registers.rax,
            arguments: [
                registers.rdi,
                registers.rsi,
                registers.rdx,
                registers.r10,
                registers.r8,
                registers.r9,
            ],
        };
        let decision = policy(call.number);
        match decision {
            Policy::Forward | Policy::ForwardAndReadMask => {
                let answer = self.forward(&call);
                if decision == Policy::ForwardAndReadMask {
                    self.read_mask();
                }
                self.after_call(answer);
            }
            Policy::Refuse(errno) => self.after_call(Some(-i64::from(errno))),
            Policy::Native => {
                let mut state = self.state();
                state.general = calling(registers, registers.rcx - SYSCALL_LENGTH);
                self.go_native_at(state);
            }
            Policy::Leave => {
                let mut state = self.state();
                state.general = calling(registers, registers.rcx);
                state.general.rax = 0;
                self.go_native_at(state);
            }
        }
    }

    fn forward(&mut self, call: &Call) -> Option<i64> {
        let link = &self.vcpu.link;
        link.mode.to_forwarding();
        // SAFETY: the guest's code is the process's own, and may make calls.
        let answer = unsafe { system_call::forward(call, link.mode.addresses().1) };
        link.mode.to_guest();
        if answer.is_some() {
            link.forwarded.fetch_add(1, Ordering::Relaxed);
        } else {
            link.given_up.fetch_add(1, Ordering::Relaxed);
            link.mode.nothing_is_pending();
        }
        answer
    }

    /// Makes the guest resume behind its call or, if the interrupt came first, make the call again.
    fn after_call(&mut self, answer: Option<i64>) {
        let in_ring_0 = self.in_ring_0();
        let registers = &mut self.registers_mut().regs;
        match answer {
            Some(answer) => registers.rax = answer as u64,
            None => registers.rcx -= SYSCALL_LENGTH,
        }
        if !in_ring_0 {
            // The stub has no way back from ring 3.
            registers.rip = registers.rcx;
            registers.rflags = registers.r11;
        }
        self.changed(KVM_SYNC_X86_REGS);
    }

    /// Two kinds are handled here: a page fault where no memory was given yet, and the system call
    /// stub's where it runs in ring 3 (under software virtualisation), which may then use its port.
    /// All others are executed natively.
    fn exception(&mut self) {
        // SAFETY: the stub has left the exception there, and the vCPU does not run.
        let exception = unsafe { (*self.vcpu.page).exception };
        if exception.vector == PAGE_FAULT {
            const PRESENT: u64 = 1;
            let address = self.registers().sregs.cr2 as usize;
            let is_missing = exception.error & PRESENT == 0 && address != self.last_given;
            if is_missing && self.vcpu.machine.memory.give(address) {
                self.last_given = address;
                return;
            }
        }
        if exception.frame.cs & 3 == 0 {
            self.fail();
        }
        let stub = ring0::system_call_stub as *const () as u64;
        if exception.vector == PROTECTION_FAULT && exception.frame.rip == stub {
            // SAFETY: as above.
            unsafe { Page::open_port(self.vcpu.page) };
            return;
        }
        let mut state = self.state();
        state.general.rip = exception.frame.rip;
        state.general.rsp = exception.frame.rsp;
        state.general.rflags = exception.frame.rflags;
        if exception.vector == BREAKPOINT {
            // Software virtualisation treats the gate as open. The frame is then behind the
            // instruction.
            state.general.rip -= 1;
        }
        self.go_native_at(state);
    }

    fn state(&self) -> State {
        let registers = self.registers();
        State {
            general: registers.regs,
            fs: registers.sregs.fs.base,
            gs: registers.sregs.gs.base,
        }
    }

    /// Leaves with the present registers, in ring 3.
    fn go_native(&mut self) -> ! {
        if self.in_ring_0() {
            self.fail();
        }
        self.go_native_at(self.state())
    }

    fn go_native_at(&mut self, mut state: State) -> ! {
        if at_stub(&state.general) {
            state.general = calling(state.general, state.general.rcx - SYSCALL_LENGTH);
        }
        state.general.rip = ring0::natively(state.general.rip);
        // SAFETY: the guest's code is at `state`, and the vCPU does not run until `enter` sets it
        // up again.
        unsafe { native::leave(self.vcpu, &state) }
    }

    /// KVM fails. The worker resumes natively, for good; if its code's registers cannot be had, the
    /// process ends.
    fn fail(&mut self) -> ! {
        self.vcpu.broken.set(true);
        let state = self.state();
        if self.in_ring_0() {
            let not_entered = state.general.rip == ring0::enter_ring_3 as *const () as u64;
            if not_entered {
                // The posted request is checked when a context is entered.
                self.vcpu.link.mode.to_native();
                // SAFETY: the frame is that of `enter_on`, and this stack is not used again before
                // the next `enter_on`.
                unsafe { return_natively((*self.vcpu.page).entry.rsp) }
            }
            if !at_stub(&state.general) {
                super::fatal("KVM failed within the interrupt handler", &state);
            }
        }
        self.go_native_at(state)
    }

    fn read_mask(&self) {
        let mut mask = 0u64;
        // SAFETY: only asks for the thread's mask.
        unsafe {
            system_call(
                libc::SYS_rt_sigprocmask,
                [libc::SIG_BLOCK as usize, 0, (&raw mut mask) as usize, 8],
            );
        }
        self.vcpu.block().mask.store(mask, Ordering::Relaxed);
    }
}

/// Whether the guest is at the system call stub's exit, or just behind it (KVM may or may not have
/// stepped over it).
fn at_stub(registers: &kvm_regs) -> bool {
    let stub = ring0::system_call_stub as *const () as u64;
    (stub..=stub + OUT_LENGTH).contains(&registers.rip)
}

/// The registers of code that has executed `syscall`, at `rip`.
fn calling(registers: kvm_regs, rip: u64) -> kvm_regs {
    kvm_regs {
        rip,
        rflags: registers.r11,
        ..registers
    }
}

fn gs_base() -> u64 {
    let base;
    // SAFETY: reads a register; `check_platform` has seen FSGSBASE.
    unsafe {
        std::arch::asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags))
    };
    base
}

/// Whether the thread of `vcpu` is out of guest mode. Only that thread can ask.
pub(super) fn is_native(vcpu: &Vcpu) -> bool {
    vcpu.link.mode.is_native()
}
