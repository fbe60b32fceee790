//! Who competes, and with which options.

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
        /// `inline` has one core, `threads` all.
        layout: &'static str,
        /// How requests are preempted.
        preemption: &'static str,
        /// `memory` or `rocksdb`.
        engine: &'static str,
    },
}

const fn kv(
    name: &'static str,
    policy: &'static str,
    layout: &'static str,
    preemption: &'static str,
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
    pub const MQ: Self = kv("mq", "mq", "inline", "auto", "memory");
    /// The same with one queue.
    pub const SQ: Self = kv("sq", "sq", "inline", "auto", "memory");
    /// The same, first come, first served.
    pub const FCFS: Self = kv("fcfs", "fcfs", "inline", "none", "memory");
    /// Ours with a dispatcher's core of its own.
    pub const THREADS: Self = kv("mq-threads", "mq", "threads", "auto", "memory");
    /// Ours over RocksDB, never preempting.
    pub const ROCKSDB_NONE: Self = kv("rocksdb-none", "fcfs", "inline", "none", "rocksdb");
    /// Ours over RocksDB, one queue, preempting inside RocksDB by signal.
    pub const ROCKSDB_SQ: Self = kv("rocksdb-sq", "sq", "inline", "signal", "rocksdb");
    /// Ours over RocksDB, a queue a class.
    pub const ROCKSDB_MQ: Self = kv("rocksdb-mq", "mq", "inline", "signal", "rocksdb");

    /// Whether it needs RocksDB.
    pub fn needs_rocksdb(&self) -> bool {
        matches!(
            self.program,
            Program::Kv {
                engine: "rocksdb",
                ..
            }
        )
    }

    /// Whether it runs on more cores than one.
    pub fn spreads(&self) -> bool {
        matches!(
            self.program,
            Program::Kv {
                layout: "threads",
                ..
            }
        )
    }
}
