//! An ordinary process that shares its cores: short requests among long ones, on a work-stealing
//! pool, on threads for blocking work, and on this runtime's layouts.
//!
//! Run: `cargo run --release --example service` (about a minute), or with loads, in cores:
//! `cargo run --release --example service -- 0.4 0.8`
//!
//! Expect: for each load a line for each contender, in turn, with latencies from the moment a
//! request was due. The generator's thread is scheduled as any other, so all contenders wait for
//! Linux now and then: on two cores of an Intel Xeon guest the short requests' p99 was 2.5 to
//! 3.3 ms with `symmetric` and 3.7 to 5.1 ms with rayon, at loads 0.4 and 0.8. The last column is
//! the process's time on the CPU.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use shinjuku::policy::ClassId;
use shinjuku::{Config, LayoutKind, PolicyConfig, Runtime, handler_fn};
use shinjuku_examples::work::{spin, spin_with_probes, steps_per_nano};

const SECONDS: f64 = 3.0;
const SHORT_NANOS: f64 = 20e3;
const LONG_NANOS: f64 = 5e6;
const LONG_SHARE: f64 = 0.01;
const QUANTUM_US: f64 = 20.0;

/// One request.
#[derive(Clone)]
struct Request {
    is_long: bool,
    steps: u64,
    due: Instant,
    latencies: Arc<Latencies>,
}

/// The latencies of short and of long requests.
#[derive(Default)]
struct Latencies([Mutex<Vec<Duration>>; 2]);

impl Request {
    fn serve(self, work: fn(u64)) {
        work(self.steps);
        let latency = self.due.elapsed();
        let latencies = &self.latencies.0[usize::from(self.is_long)];
        shinjuku::without_preemption(|| latencies.lock().expect("no panics").push(latency));
    }
}

/// Takes a request and has it served.
type Submit = Box<dyn FnMut(Request)>;

/// A contender's name, and what starts it.
type Contender = (&'static str, fn() -> Result<Submit, Box<dyn Error>>);

const CONTENDERS: [Contender; 5] = [
    ("rayon", || {
        let pool = rayon::ThreadPoolBuilder::new().build()?;
        Ok(Box::new(move |request| {
            pool.spawn(|| request.serve(spin));
        }))
    }),
    ("spawn_blocking", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
        Ok(Box::new(move |request| {
            drop(runtime.spawn_blocking(|| request.serve(spin)));
        }))
    }),
    ("threads", || shinjuku(LayoutKind::Threads)),
    ("inline", || shinjuku(LayoutKind::Inline)),
    ("symmetric", || shinjuku(LayoutKind::Symmetric)),
];

fn shinjuku(layout: LayoutKind) -> Result<Submit, Box<dyn Error>> {
    let config = Config::default()
        .layout(layout)
        .policy(PolicyConfig::new("c-pre-sq").quantum_us(QUANTUM_US));
    let serve = |request: Request| request.serve(spin_with_probes);
    let runtime = Runtime::builder(handler_fn(serve)).config(config).start()?;
    let handle = runtime.handle();
    Ok(Box::new(move |request| {
        // The runtime lives as long as this closure, which never waits for an answer.
        let _ = &runtime;
        drop(handle.submit(ClassId(0), request));
    }))
}

/// When each request is due, in seconds, and whether it is long: the same for all contenders.
fn schedule(load: f64) -> Vec<(f64, bool)> {
    let mean = (1.0 - LONG_SHARE) * SHORT_NANOS + LONG_SHARE * LONG_NANOS;
    let rate = load / (mean * 1e-9);
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let mut at = 0.0;
    let arrivals = std::iter::from_fn(|| {
        at -= random().ln() / rate;
        Some((at, random() < LONG_SHARE))
    });
    arrivals.take_while(|(at, _)| *at < SECONDS).collect()
}

fn measure((name, start): Contender, load: f64, steps_per_nano: f64) -> Result<(), Box<dyn Error>> {
    let mut submit = start()?;
    let latencies = Arc::new(Latencies::default());
    let schedule = schedule(load);
    let cpu_before = time_on_cpu();
    let begin = Instant::now() + Duration::from_millis(20);
    for &(at, is_long) in &schedule {
        let due = begin + Duration::from_secs_f64(at);
        sleep(due.saturating_duration_since(Instant::now()));
        let nanos = if is_long { LONG_NANOS } else { SHORT_NANOS };
        submit(Request {
            is_long,
            steps: (nanos * steps_per_nano) as u64,
            due,
            latencies: Arc::clone(&latencies),
        });
    }
    let count = |of: &Mutex<Vec<Duration>>| of.lock().expect("no panics").len();
    let answered = || latencies.0.iter().map(count).sum::<usize>();
    let patience = Instant::now() + Duration::from_secs(3);
    while answered() < schedule.len() && Instant::now() < patience {
        sleep(Duration::from_millis(5));
    }
    let cpu = time_on_cpu() - cpu_before;
    let quantile = |of: usize, share: f64| {
        let mut latencies = latencies.0[of].lock().expect("no panics");
        latencies.sort_unstable();
        let place = (latencies.len() as f64 * share) as usize;
        let latency = latencies.get(place.min(latencies.len().saturating_sub(1)));
        latency.map_or(f64::NAN, Duration::as_secs_f64) * 1e6
    };
    println!(
        "{load:4} {name:15} {:6}/{:6} {:10.0} {:10.0} {:10.0} {:10.0} {:8.2}",
        answered(),
        schedule.len(),
        quantile(0, 0.5),
        quantile(0, 0.99),
        quantile(1, 0.5),
        quantile(1, 0.99),
        cpu.as_secs_f64(),
    );
    Ok(())
}

fn time_on_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn Error>> {
    let loads = std::env::args().skip(1).map(|load| load.parse());
    let mut loads: Vec<f64> = loads.collect::<Result<_, _>>()?;
    if loads.is_empty() {
        loads = vec![0.2, 0.4, 0.8, 1.2];
    }
    println!(
        "{} cores; latencies in us, CPU time in s",
        available_parallelism()?
    );
    println!(
        "load contender           answered  short p50  short p99   long p50   long p99      CPU"
    );
    let steps_per_nano = steps_per_nano();
    for load in loads {
        for contender in CONTENDERS {
            measure(contender, load, steps_per_nano)?;
        }
    }
    Ok(())
}
