//! The interrupt's handler in ring 0.
//!
//! It runs on a stack of its own (see `mode`), so that the red zone of the interrupted code stays
//! intact, and touches general registers only, since libdune saves no others. It sends the
//! interrupted code into the [save trampoline](crate::trampoline), where all decisions are made,
//! and returns. The window for that is at the lower end of the handler's stack, whose size is a
//! power of two and which is aligned to that size.

use std::arch::naked_asm;
use std::mem::offset_of;

use dune_sys::apic::END_OF_INTERRUPT_MSR;
use dune_sys::trap_frame::TrapFrame;

use crate::trampoline::{RED_ZONE, Window, save};

/// Size and alignment of the interrupt's stack.
pub(super) const STACK: usize = 16 * 1024;

/// The handler registered with libdune, whose stub has saved the general registers to `frame`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn handler(frame: *mut TrapFrame) {
    naked_asm!(
        "mov rsi, rsp",
        "and rsi, {mask}",
        "call {redirect}",
        "mov ecx, {eoi}",
        "xor eax, eax",
        "xor edx, edx",
        "wrmsr",
        "ret",
        mask = const -(STACK as i64),
        redirect = sym redirect,
        eoi = const END_OF_INTERRUPT_MSR,
    )
}

/// Sends the code in `frame` into the trampoline, if its stack pointer is in `window`.
///
/// # Safety
/// `frame` belongs to interrupted code; the window lies on a context's stack with room below.
#[unsafe(naked)]
unsafe extern "C" fn redirect(frame: *mut TrapFrame, window: *const Window) {
    naked_asm!(
        "mov rax, [rdi + {rsp}]",
        "cmp rax, [rsi + {low}]",
        "jb 2f",
        "cmp rax, [rsi + {high}]",
        "ja 2f",
        "sub rax, {red_zone} + 8",
        "mov rcx, [rdi + {rip}]",
        "mov [rax], rcx",
        "mov [rdi + {rsp}], rax",
        "lea rcx, [rip + {save}]",
        "mov [rdi + {rip}], rcx",
        "ret",
        "2:",
        "inc qword ptr [rsi + {elsewhere}]",
        "ret",
        rsp = const offset_of!(TrapFrame, rsp),
        rip = const offset_of!(TrapFrame, rip),
        low = const offset_of!(Window, low),
        high = const offset_of!(Window, high),
        elsewhere = const offset_of!(Window, elsewhere),
        red_zone = const RED_ZONE,
        save = sym save,
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{
        Completion, HandBack, Outcome, Pool, PoolConfig, Runnable, Sender, Worker, mailbox, signal,
        trampoline,
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    fn frame(rsp: usize, rip: u64) -> TrapFrame {
        TrapFrame {
            rsp: rsp as u64,
            rip,
            ..TrapFrame::default()
        }
    }

    #[test]
    fn code_in_the_window_goes_on_in_the_trampoline_below_its_red_zone() {
        let mut stack = [0_u64; 64];
        let top = std::ptr::from_mut(&mut stack[60]) as usize;
        let window = Window {
            low: AtomicUsize::new(top),
            high: AtomicUsize::new(top),
            elsewhere: AtomicU64::new(0),
        };
        let mut interrupted = frame(top, 0x1234);
        // SAFETY: the array has room below.
        unsafe { redirect(&mut interrupted, &window) };
        assert_eq!(interrupted.rip, save as *const () as u64);
        assert_eq!(interrupted.rsp, top as u64 - 136);
        assert_eq!(stack[60 - 17], 0x1234);
        assert_eq!(stack.iter().filter(|word| **word != 0).count(), 1);
        assert_eq!(window.elsewhere.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn code_elsewhere_goes_on_as_it_was() {
        let window = Window {
            low: AtomicUsize::new(0x2000),
            high: AtomicUsize::new(0x3000),
            elsewhere: AtomicU64::new(0),
        };
        for rsp in [0x1fff, 0x3001] {
            let mut interrupted = frame(rsp, 0x1234);
            // SAFETY: nothing is written outside of the window.
            unsafe { redirect(&mut interrupted, &window) };
            assert_eq!(interrupted, frame(rsp, 0x1234));
        }
        assert_eq!(window.elsewhere.load(Ordering::Relaxed), 2);
    }

    /// The worker's window for the signal handler below.
    static WINDOW: AtomicPtr<Window> = AtomicPtr::new(std::ptr::null_mut());
    static STARTED: AtomicBool = AtomicBool::new(false);
    static GO_ON: AtomicBool = AtomicBool::new(false);

    /// Stands in for the CPU and libdune's stub: a signal on a stack of its own, with the registers
    /// in a trap frame.
    extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: installed with SA_SIGINFO.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let mut interrupted = frame(
            registers[libc::REG_RSP as usize] as usize,
            registers[libc::REG_RIP as usize] as u64,
        );
        // SAFETY: the window is of the context that the worker runs.
        unsafe { redirect(&mut interrupted, WINDOW.load(Ordering::Relaxed)) };
        registers[libc::REG_RSP as usize] = interrupted.rsp as i64;
        registers[libc::REG_RIP as usize] = interrupted.rip as i64;
    }

    fn install() {
        // SAFETY: `sigaction` is plain data; the signal is this test's own.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            assert_eq!(
                libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()),
                0
            );
        }
    }

    /// Fills registers and red zone, waits for `go_on`, and compares. Returns the differences.
    fn hold_everything() -> u64 {
        let different: u64;
        // SAFETY: all changes are declared; the red zone is the function's own, since the assembly
        // says nothing of the stack, and nothing is called.
        unsafe {
            std::arch::asm!(
                "mov [rsp - 8], {a}",
                "mov [rsp - 128], {b}",
                "movq xmm0, {a}",
                "movq xmm15, {b}",
                "mov r8, {a}",
                "mov r9, {b}",
                "mov r12, {a}",
                "mov r15, {b}",
                "2:",
                "pause",
                "cmp byte ptr [{go_on}], 0",
                "je 2b",
                "xor r8, {a}",
                "xor r9, {b}",
                "xor r12, {a}",
                "xor r15, {b}",
                "or r8, r9",
                "or r8, r12",
                "or r8, r15",
                "mov r9, [rsp - 8]",
                "xor r9, {a}",
                "or r8, r9",
                "mov r9, [rsp - 128]",
                "xor r9, {b}",
                "or r8, r9",
                "movq r9, xmm0",
                "xor r9, {a}",
                "or r8, r9",
                "movq r9, xmm15",
                "xor r9, {b}",
                "or r8, r9",
                a = in(reg) 0x0123_4567_89ab_cdef_u64,
                b = in(reg) 0xfedc_ba98_7654_3210_u64,
                go_on = in(reg) GO_ON.as_ptr(),
                out("r8") different,
                out("r9") _,
                out("r12") _,
                out("r15") _,
                out("xmm0") _,
                out("xmm15") _,
            );
        }
        different
    }

    /// Runs `runnable` on a worker of its own thread, interrupted by signals until it has ended or
    /// is preempted. Returns it and how often an interrupt took it.
    fn run_on_a_worker(
        runnable: Runnable<(), u64>,
        interrupt: bool,
        id: u32,
    ) -> (Completion<(), u64>, u64) {
        let (mut sender, mut receiver): (Sender<(), u64>, _) = mailbox(1);
        let (send_link, links) = mpsc::channel();
        let worker = std::thread::spawn(move || {
            let mut worker = Worker::bind(id).unwrap();
            let window: &Window = Box::leak(Box::default());
            WINDOW.store(std::ptr::from_ref(window).cast_mut(), Ordering::Relaxed);
            send_link.send(worker.link()).unwrap();
            let until = Instant::now() + PATIENCE;
            let (runnable, generation) = loop {
                assert!(Instant::now() < until, "nothing came");
                if let Some(next) = receiver.poll() {
                    break next;
                }
                std::thread::yield_now();
            };
            let head = match &runnable {
                Runnable::Ready(ready) => ready.0.head(),
                Runnable::Suspended(suspended) => suspended.0.head(),
            };
            let low = head.stack_low.get() + signal::frame_room();
            window.set(low, head.stack_high.get());
            receiver.answer(match worker.run(runnable, generation) {
                Outcome::Finished(finished) => Completion::Finished(finished.take().0),
                Outcome::Preempted(suspended) => Completion::Preempted(suspended),
            });
            worker.link().counters().taken_by_interrupt
        });
        let link = links.recv_timeout(PATIENCE).unwrap();
        let dispatched = sender.send(runnable).unwrap_or_else(|_| panic!("no room"));
        let until = Instant::now() + PATIENCE;
        let answer = loop {
            assert!(Instant::now() < until, "the worker did not answer");
            if let Some((_, answer)) = sender.poll() {
                break answer;
            }
            // Earlier, the request would be found on the way in.
            if interrupt && STARTED.load(Ordering::Relaxed) {
                dispatched.request();
                // SAFETY: sends a signal with a handler to a thread that is joined below.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, link.process, link.thread, libc::SIGUSR2)
                };
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        (answer, worker.join().unwrap())
    }

    #[test]
    fn interrupted_code_goes_on_elsewhere_with_all_registers_and_its_red_zone() {
        trampoline::prepare(u64::MAX);
        install();
        let results = std::sync::Arc::new(AtomicU64::new(u64::MAX));
        let (config, theirs) = (
            PoolConfig::default().contexts(1),
            std::sync::Arc::clone(&results),
        );
        let Pool { handles, mut idle } = Pool::new(config, move |(): ()| {
            STARTED.store(true, Ordering::Relaxed);
            let different = hold_everything();
            theirs.store(different, Ordering::Relaxed);
            different
        })
        .unwrap();
        let ready = idle.pop().unwrap().load(());
        let (answer, taken) = run_on_a_worker(ready.into(), true, 0);
        let Completion::Preempted(suspended) = answer else {
            panic!("it waits to be told, so only an interrupt ends its run");
        };
        assert_eq!(taken, 1);
        GO_ON.store(true, Ordering::Relaxed);
        let (answer, _) = run_on_a_worker(suspended.into(), false, 1);
        let Completion::Finished(context) = answer else {
            panic!("no preemption was requested");
        };
        assert_eq!(
            results.load(Ordering::Relaxed),
            0,
            "registers or red zone differ"
        );
        let HandBack { leaked, .. } = handles.hand_back(vec![context], PATIENCE);
        assert_eq!(leaked, 0);
    }
}
