//! The list of operations, and the job that draws from it.

use std::collections::HashMap;
use std::thread::ThreadId;

use super::world::World;
use super::{blocking, locks, memory, registers, system, thread, unwinding, vectors};
use crate::preempt_point;

/// One kind of self-checking work.
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// The operation runs once in so many draws; expensive operations run seldom.
    one_in: u64,
    run: fn(&mut State, &World) -> bool,
}

/// All operations that this CPU supports.
pub(super) fn operations() -> Vec<Operation> {
    let operation = |name, one_in, run| Operation { name, one_in, run };
    let mut all = vec![
        operation("vec", 1, memory::vec),
        operation("boxes", 1, memory::boxes),
        operation("string", 1, memory::string),
        operation("hash-map", 1, memory::hash_map),
        operation("freed-elsewhere", 1, memory::exchange),
        operation("thread-local-value", 1, thread::local_value),
        operation("thread-local-address", 1, thread::local_address),
        operation("lazy-thread-local", 1, thread::lazy_local),
        operation("c-thread-local", 1, thread::c_locals),
        operation("thread-identity", 1, thread::identity),
        operation("errno", 1, thread::errno),
        operation("std-mutex", 1, locks::std_mutex),
        operation("parking-lot-mutex", 1, locks::parking_lot_mutex),
        operation("without-preemption", 1, locks::guard),
        operation("stdout", 4, locks::stdout),
        operation("condvar", 16, blocking::condvar),
        operation("park", 16, blocking::park),
        operation("read", 16, blocking::read),
        operation("sleep", 32, blocking::sleep),
        operation("file", 8, system::file),
        operation("socket", 8, system::socket),
        operation("mapping", 8, system::mapping),
        operation("thread", 64, system::thread),
        operation("panic", 8, unwinding::panic),
        operation("backtrace", 64, unwinding::backtrace),
        operation("deep-recursion", 8, unwinding::deep_recursion),
        operation("general-registers", 1, registers::general),
        operation("control-words", 1, registers::control_words),
        operation("x87-stack", 1, registers::x87_stack),
        operation("sse-registers", 1, vectors::sse),
    ];
    if is_x86_feature_detected!("avx") {
        all.push(operation("avx-registers", 1, vectors::avx));
    }
    if is_x86_feature_detected!("avx512bw") {
        all.push(operation("avx512-registers", 1, vectors::avx512));
    }
    if vectors::has_tiles() {
        all.push(operation("tiles", 1, vectors::tiles));
    }
    all
}

/// A context's memory from one job to the next, for comparisons.
pub(super) struct State {
    pub(super) context: usize,
    random: u64,
    /// Bytes of stack that the context's job may use, and where they begin.
    pub(super) stack_size: usize,
    pub(super) stack_top: usize,
    pub(super) local_value: u64,
    pub(super) local_address: usize,
    pub(super) lazy_values: Vec<u64>,
    pub(super) c_value: u64,
    pub(super) thread: Option<ThreadId>,
    pub(super) map: HashMap<String, u64>,
}

/// The initial value of the C variable.
const C_INITIAL: u64 = 7;

/// Operations drawn by one job.
const DRAWN: u64 = 64;

impl State {
    pub(super) fn new(context: usize, stack_size: usize) -> Self {
        Self {
            context,
            random: 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(context as u64 + 1),
            stack_size,
            stack_top: 0,
            local_value: 0,
            local_address: 0,
            lazy_values: Vec::new(),
            c_value: C_INITIAL,
            thread: None,
            map: HashMap::new(),
        }
    }

    /// The next pseudo-random number (Marsaglia's xorshift).
    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// A number from 0 to `bound - 1`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.random() >> 8) % bound
    }

    /// Draws and runs operations. Returns how many were drawn.
    pub(super) fn work(&mut self, world: &World) -> u64 {
        let top = 0u8;
        self.stack_top = (&raw const top).addr();
        for _ in 0..DRAWN {
            let number = self.below(world.operations.len() as u64) as usize;
            let operation = &world.operations[number];
            if self.below(operation.one_in) == 0 {
                let right = (operation.run)(self, world);
                world.done(self.context, number, right);
            }
        }
        DRAWN
    }
}

/// Spins, and probes at the end: a signal shall find what a probe does not.
pub(super) fn spin(times: u64) {
    hold(times);
    preempt_point();
}

/// Spins without probes, for operations that hold a lock. A probe would hand the worker to a
/// context that may block on the lock, and with probes alone nothing would take that context off
/// again.
pub(super) fn hold(times: u64) {
    for _ in 0..times {
        std::hint::spin_loop();
    }
}
