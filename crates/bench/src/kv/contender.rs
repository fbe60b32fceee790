//! The servers that compete, and their options.

/// A server with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Its name in reports.
    pub name: &'static str,
    /// What it is.
    pub program: Program,
}

/// A server's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// redis-server, keeping everything in memory.
    Redis,
    /// The server of `examples/kv`, with these options.
    Kv {
        /// Which request runs next.
        policy: &'static str,
        /// `inline` has one core, the others two.
        layout: &'static str,
        /// How requests are preempted.
        preemption: Preemption,
        /// `memory`, or RocksDB's plain tables.
        engine: &'static str,
    },
}

/// How our server preempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// Not at all.
    None,
    /// As the runtime thinks best, after a quantum if one is given.
    Auto {
        /// As the option `--quantum` takes it.
        quantum: Option<&'static str>,
    },
    /// By signal, wherever the code is, after a quantum. The quantum is long, as it stays as it is
    /// given: one as long as a probe's would go to the signals.
    Signal {
        /// As the option `--quantum` takes it.
        quantum: &'static str,
    },
}

/// As the runtime thinks best, with a quantum of its own choice.
const AUTO: Preemption = Preemption::Auto { quantum: None };
/// The same with the paper's quantum for RocksDB (section 4.4).
const AUTO_15_US: Preemption = Preemption::Auto {
    quantum: Some("15us"),
};
/// The paper's tables (section 4.4).
const PLAIN: &str = "rocksdb-plain";
/// What stands here for the paper's posted interrupts every 15 us (section 4.4): a quantum of some
/// three times a signal's cost.
const SIGNAL: Preemption = Preemption::Signal { quantum: "50us" };

const fn kv(
    name: &'static str,
    policy: &'static str,
    layout: &'static str,
    preemption: Preemption,
    engine: &'static str,
) -> Contender {
    let program = Program::Kv {
        policy,
        layout,
        preemption,
        engine,
    };
    Contender { name, program }
}

impl Contender {
    /// The real thing.
    pub const REDIS: Self = Self {
        name: "redis",
        program: Program::Redis,
    };
    /// Ours, in memory, one core.
    pub const MQ: Self = kv("mq", "c-pre-mq", "inline", AUTO, "memory");
    /// The same with one queue.
    pub const SQ: Self = kv("sq", "c-pre-sq", "inline", AUTO, "memory");
    /// The same, first come, first served.
    pub const FCFS: Self = kv("fcfs", "c-fcfs", "inline", Preemption::None, "memory");
    /// Ours with a dispatcher's core of its own.
    pub const THREADS: Self = kv("mq-threads", "c-pre-mq", "threads", AUTO, "memory");
    /// The same with a loop on each core. All of them serve one listening socket.
    pub const SYMMETRIC: Self = kv("mq-symmetric", "c-pre-mq", "symmetric", AUTO, "memory");
    /// Ours over RocksDB, never preempting.
    pub const ROCKSDB_NONE: Self = kv("rocksdb-none", "c-fcfs", "inline", Preemption::None, PLAIN);
    /// Ours over RocksDB, one queue, preempting as the runtime thinks best: by the probes between a
    /// SCAN's steps, and by signal within a step that takes too long.
    pub const ROCKSDB_SQ: Self = kv("rocksdb-sq", "c-pre-sq", "inline", AUTO_15_US, PLAIN);
    /// Ours over RocksDB, a queue a class.
    pub const ROCKSDB_MQ: Self = kv("rocksdb-mq", "c-pre-mq", "inline", AUTO_15_US, PLAIN);
    /// The same two by signal alone, as a store without probes would have it.
    pub const ROCKSDB_SQ_SIGNAL: Self =
        kv("rocksdb-sq-signal", "c-pre-sq", "inline", SIGNAL, PLAIN);
    /// See above.
    pub const ROCKSDB_MQ_SIGNAL: Self =
        kv("rocksdb-mq-signal", "c-pre-mq", "inline", SIGNAL, PLAIN);

    /// Whether it needs RocksDB.
    pub fn needs_rocksdb(&self) -> bool {
        matches!(self.program, Program::Kv { engine: PLAIN, .. })
    }

    /// Whether it has the client's core besides its own.
    pub fn spreads(&self) -> bool {
        matches!(
            self.program,
            Program::Kv {
                layout: "threads" | "symmetric",
                ..
            }
        )
    }
}
