//! A port in service: opened with a device for each dispatcher, and looked after by a thread.
//!
//! Asking for the link and resetting may allocate, lock and take long, so that no dispatcher can do
//! it.

use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shinjuku_dpdk_sys::{DpdkError, Eal, Mempool, PoolGauge, Port, PortStatistics, RunningPort};

use super::NicConfig;
use super::counters::{NicCounts, PortCounters, QueueCounters, QueueCounts};
use super::device::{DpdkDevice, Side};
use super::spread::{Detour, SoftwareRss, detours};
use crate::packet::MacAddr;

/// How often the port is looked after.
const EVERY: Duration = Duration::from_millis(10);
/// What the queues may take to come to rest for a reset.
const REST: Duration = Duration::from_secs(1);
/// After a reset that failed, how long until the next.
const RETRY: Duration = Duration::from_secs(1);

/// A port that is open: what it is, how it does, and its thread, which ends when this is dropped.
/// Without it the devices go on, but are not reset.
#[derive(Debug)]
pub struct Nic {
    name: String,
    driver: String,
    mac: MacAddr,
    spread_by_device: bool,
    supervised: Arc<Supervised>,
    queues: Vec<Arc<QueueCounters>>,
    pools: Vec<PoolGauge>,
    // In this order: the thread ends when the sender is gone.
    stop: Option<mpsc::Sender<()>>,
    supervisor: Option<JoinHandle<()>>,
}

/// What the thread and the handle share.
#[derive(Debug)]
struct Supervised {
    port: Mutex<RunningPort>,
    asked_for_reset: AtomicBool,
    counters: PortCounters,
}

impl Supervised {
    fn port(&self) -> MutexGuard<'_, RunningPort> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the device counts. Waits for a look at the link, but not for a reset, which may wait
    /// for this thread to poll.
    fn statistics(&self) -> Option<PortStatistics> {
        const TRIES: u32 = 50;
        (0..TRIES)
            .find_map(|again| {
                if again > 0 {
                    thread::sleep(Duration::from_micros(100));
                }
                self.port.try_lock().ok()
            })?
            .statistics()
            .ok()
    }

    /// Once around.
    fn look(&self, seen: &mut Seen) {
        let mut port = self.port();
        let gone = port.is_gone();
        if gone && !std::mem::replace(&mut seen.gone, gone) {
            self.counters.losses.count();
            tracing::warn!(
                target: "shinjuku",
                "DPDK: port {:?}: its interface has gone; it is looked for every second", port.name()
            );
        }
        seen.gone = gone;
        let wanted =
            self.asked_for_reset.load(Relaxed) || port.wants_reset() || gone || port.is_halted();
        let failed = seen.failure.is_some_and(|at| at.elapsed() < RETRY);
        if wanted && !failed {
            let asked = self.asked_for_reset.swap(false, Relaxed);
            let result = self.reset(&mut port);
            if result.is_err() && asked {
                self.asked_for_reset.store(true, Relaxed);
            }
            say(port.name(), &result, seen.failure.is_some());
            seen.failure = result.is_err().then(Instant::now);
        }
        let up = port.link().is_ok_and(|link| link.up);
        if self.counters.up.load(Relaxed) != up {
            self.counters.link_changes.count();
            // Release: a thread that sees the new state sees the change counted.
            self.counters.up.store(up, Release);
        }
    }

    fn reset(&self, port: &mut RunningPort) -> Result<(), DpdkError> {
        let result = port.reset(REST);
        match result {
            Ok(()) => self.counters.resets.count(),
            Err(_) => self.counters.failed_resets.count(),
        }
        result
    }
}

/// What the thread knows from its last look.
#[derive(Default)]
struct Seen {
    gone: bool,
    /// When the last reset failed.
    failure: Option<Instant>,
}

/// Tells what came of a reset; of failures in a row once.
fn say(port: &str, result: &Result<(), DpdkError>, failed_before: bool) {
    match result {
        Ok(()) => tracing::info!(target: "shinjuku", "DPDK: port {port:?} was reset"),
        Err(error) if !failed_before => {
            tracing::warn!(target: "shinjuku", "{error}; tried again every second");
        }
        Err(_) => {}
    }
}

impl Nic {
    /// Takes the memory, starts the port, and makes a device for each dispatcher.
    ///
    /// # Errors
    /// A setting out of range, too little memory, or what DPDK says of the port.
    pub fn open(port: Port, config: NicConfig) -> Result<(Self, Vec<DpdkDevice>), DpdkError> {
        let info = port.info()?;
        config.check(port.name(), &info)?;
        let (queues, by_device) = config.sharing(&info);
        let dispatchers = config.dispatchers;
        let pools = pools(&config)?;
        let gauges = pools.iter().map(Mempool::gauge).collect();
        let mut pools = pools.into_iter();
        let (port, started) = port.start(&config.port, pools.by_ref().take(queues).collect())?;

        let counters: Vec<Arc<QueueCounters>> = (0..dispatchers).map(|_| Arc::default()).collect();
        let mut rss_of_each: Vec<Option<SoftwareRss>> = if by_device {
            (0..dispatchers).map(|_| None).collect()
        } else {
            SoftwareRss::new(dispatchers, queues)
                .into_iter()
                .map(Some)
                .collect()
        };
        let mut started = started.into_iter();
        let devices = detours(dispatchers, queues)
            .into_iter()
            .enumerate()
            .map(|(place, Detour { out, others })| {
                let side = match out {
                    None => Side::Queue {
                        queue: started.next().expect("as many as were asked for"),
                        others,
                    },
                    Some(out) => Side::Detour {
                        pool: pools.next().expect("one each"),
                        out,
                    },
                };
                let counters = Arc::clone(&counters[place]);
                let room = config.room(by_device);
                DpdkDevice::new(side, rss_of_each[place].take(), room, counters)
            })
            .collect();

        let name = port.name().to_owned();
        let supervised = Arc::new(Supervised {
            port: Mutex::new(port),
            asked_for_reset: AtomicBool::new(false),
            counters: PortCounters::default(),
        });
        let mut seen = Seen::default();
        supervised.look(&mut seen);
        supervised.counters.link_changes.set(0);
        let (stop, stopped) = mpsc::channel();
        let for_thread = Arc::clone(&supervised);
        let supervisor = thread::Builder::new()
            .name("dpdk-supervisor".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    for_thread.look(&mut seen);
                }
            })
            .map_err(|cause| DpdkError::Thread {
                action: "start the thread that looks after a port",
                cause,
            })?;
        let nic = Self {
            name,
            driver: info.driver,
            mac: MacAddr(info.mac),
            spread_by_device: by_device,
            supervised,
            queues: counters,
            pools: gauges,
            stop: Some(stop),
            supervisor: Some(supervisor),
        };
        Ok((nic, devices))
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its driver's name.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Its hardware address.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Whether frames stay on the queues that they come in on; else software spreads them.
    #[must_use]
    pub fn spread_by_device(&self) -> bool {
        self.spread_by_device
    }

    /// Whether there is a link, as of some milliseconds ago.
    #[must_use]
    pub fn link_up(&self) -> bool {
        self.supervised.counters.up.load(Acquire)
    }

    /// Each dispatcher's pool.
    #[must_use]
    pub fn pools(&self) -> &[PoolGauge] {
        &self.pools
    }

    /// All counters.
    #[must_use]
    pub fn counts(&self) -> NicCounts {
        let counters = &self.supervised.counters;
        NicCounts {
            queues: self.queues.iter().map(|queue| read(queue)).collect(),
            port: self.supervised.statistics(),
            link_changes: counters.link_changes.read(),
            losses: counters.losses.read(),
            resets: counters.resets.read(),
            failed_resets: counters.failed_resets.read(),
        }
    }

    /// Takes the line down or up from this side, for maintenance.
    ///
    /// # Errors
    /// What DPDK says; not every device can.
    pub fn set_link(&self, up: bool) -> Result<(), DpdkError> {
        self.supervised.port().set_link(up)
    }

    /// Has the device reset soon, as if it had asked for that. Whether it was tells
    /// [`counts`](Self::counts).
    pub fn ask_for_reset(&self) {
        self.supervised.asked_for_reset.store(true, Relaxed);
    }

    /// Resets the device now, and waits for that. Frames in its queues are lost.
    ///
    /// # Errors
    /// If a device is neither polled nor dropped, or what DPDK says.
    pub fn reset(&self) -> Result<(), DpdkError> {
        self.supervised.reset(&mut self.supervised.port())
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(supervisor) = self.supervisor.take() {
            // It looks once more at most.
            let _ = supervisor.join();
        }
    }
}

fn read(queue: &QueueCounters) -> QueueCounts {
    let mut counts = QueueCounts::default();
    queue.add_to(&mut counts);
    counts
}

/// A pool for each dispatcher, with names of their own.
fn pools(config: &NicConfig) -> Result<Vec<Mempool>, DpdkError> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let eal = Eal::current().expect("there is a port");
    (0..config.dispatchers)
        .map(|_| {
            let name = format!("shinjuku-{}", MADE.fetch_add(1, Relaxed));
            eal.pool_again(&name, config.mbufs, config.data_room())
        })
        .collect()
}
