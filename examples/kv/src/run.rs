//! Starting and ending.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use shinjuku::net::resp::Resp;
use shinjuku::net::tcp::{Tcp, TcpCounters, TcpCounts};
use shinjuku::{HardPreemption, Runtime, Server, ShutdownReport};

use crate::commands::class;
use crate::elements::Bounds;
use crate::engine::{Engine, Expiry, MemoryEngine};
use crate::options::{Configuration, EngineKind, KvTable};
use crate::server::{Codec, Handler, Kv, Settings};
use crate::stop::Stopper;
use crate::store::{Change, Store};

/// How often expired entries are removed, and how many at a time.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
const SWEEP_MOST: usize = 10_000;

/// A server that serves.
#[derive(Debug)]
pub struct Running {
    server: Server<Tcp<Codec>>,
    counters: TcpCounters,
    address: SocketAddr,
    sweeper: Sweeper,
}

impl Running {
    /// Starts the server of `configuration`. SHUTDOWN uses `stop`.
    ///
    /// # Errors
    /// Why the start failed. No thread that serves is left running then.
    pub fn start(
        configuration: Configuration,
        token: HardPreemption,
        stop: Stopper,
    ) -> Result<Self> {
        let Configuration { runtime, kv, tcp } = configuration;
        if let Some(core) = kv.core {
            pin(core)?;
        }
        let classify: fn(&[u8]) -> u16 = class;
        let codec = Resp::new(classify).longest_bulk(tcp.max_request);
        let transport = Tcp::bind(tcp.config(kv.listen)?, codec)?;
        let (address, counters) = (transport.local_addr(), transport.counters());

        let store = Store::new(engine(&kv)?)?;
        load(&store, kv.load, kv.value_size)?;
        let text = |value: &dyn ToString| value.to_string();
        let settings = Settings {
            port: address.port(),
            connections: transport.connections(),
            longest_value: tcp.max_request,
            gathered: Bounds::new(tcp.max_reply, tcp.reply_memory),
            redis: vec![
                ("save", String::new()),
                ("appendonly", "no".to_owned()),
                ("databases", "1".to_owned()),
                ("maxmemory", "0".to_owned()),
                ("maxmemory-policy", "noeviction".to_owned()),
                ("maxclients", text(&transport.connections())),
                ("proto-max-bulk-len", text(&tcp.max_request)),
                ("port", text(&address.port())),
                ("bind", text(&address.ip())),
                ("timeout", text(&tcp.idle_timeout_s.unwrap_or(0.0))),
            ],
            counters: counters.clone(),
            started: Instant::now(),
        };
        let kv = Arc::new(Kv::new(store, settings, stop));
        let sweeper = Sweeper::start(Arc::clone(&kv))?;
        let server = Runtime::builder(Handler(Arc::clone(&kv)))
            .config(runtime)
            .allow_hard_preemption(token)
            .serve(transport)?;
        kv.observe(server.observer());
        Ok(Self {
            server,
            counters,
            address,
            sweeper,
        })
    }

    /// The address where the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How the server preempts, and why.
    #[must_use]
    pub fn description(&self) -> String {
        self.server.description()
    }

    /// Lets admitted requests finish, for `patience` at most, and ends.
    #[must_use = "the report says what did not finish"]
    pub fn end(self, patience: Duration) -> (ShutdownReport, TcpCounts) {
        let (report, transport) = self.server.shutdown(patience);
        drop(transport);
        self.sweeper.end();
        (report, self.counters.read())
    }
}

/// Makes all threads started from now on run on `core`.
fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    anyhow::ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
    set.set(core);
    sched_setaffinity(None, &set)
        .with_context(|| format!("cannot run on core {core}: choose one that this process may use"))
}

fn engine(kv: &KvTable) -> Result<Box<dyn Engine>> {
    match kv.engine {
        EngineKind::Memory => Ok(Box::new(MemoryEngine::new())),
        #[cfg(feature = "rocksdb")]
        EngineKind::Rocksdb | EngineKind::RocksdbPlain => {
            use crate::engine::{RocksEngine, Tables};

            let data = kv.data.as_ref();
            let data = data.context("--engine rocksdb needs --data DIR, for its files")?;
            let tables = match kv.engine {
                EngineKind::RocksdbPlain => Tables::Plain,
                _ => Tables::Blocks,
            };
            Ok(Box::new(RocksEngine::open(data, tables)?))
        }
        #[cfg(not(feature = "rocksdb"))]
        EngineKind::Rocksdb | EngineKind::RocksdbPlain => anyhow::bail!(
            "this program was built without RocksDB: build it with --features rocksdb"
        ),
    }
}

/// Sets the keys `key:000000000000` and so on, unless they exist; files have them then.
fn load(store: &Store, keys: u64, value_size: usize) -> Result<()> {
    let value = vec![b'x'; value_size];
    for number in 0..keys {
        let key = format!("key:{number:012}");
        store.update(key.as_bytes(), |entry| match entry {
            None => (Change::Put(value[..].into(), Expiry::NEVER), ()),
            Some(_) => (Change::Keep, ()),
        })?;
    }
    if keys > 0 {
        store.settle()?;
    }
    Ok(())
}

/// Removes expired entries that no client reads.
#[derive(Debug)]
struct Sweeper {
    thread: JoinHandle<()>,
    /// Dropping it ends the thread.
    stop: mpsc::Sender<()>,
}

impl Sweeper {
    fn start(kv: Arc<Kv>) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("kv-sweeper".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(SWEEP_EVERY) == Err(RecvTimeoutError::Timeout) {
                    if let Err(error) = kv.store.sweep(SWEEP_MOST) {
                        eprintln!("expired entries stay: {error}");
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(Self { thread, stop })
    }

    fn end(self) {
        drop(self.stop);
        // If the thread panicked, the panic hook has reported it.
        let _ = self.thread.join();
    }
}
