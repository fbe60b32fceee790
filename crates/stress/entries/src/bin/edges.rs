//! Operations at the edges of a program, where entries find the gate up and nothing may be
//! preempted: before `main`, in destructors of thread-locals, and after `main`. A closure of one
//! pool keeps the gate up from before `main` to the end. A second pool preempts its own closures
//! meanwhile.
//!
//! Each line on standard output says of a place whether the gate was up there and the results were
//! those that the operations have undisturbed. The last line comes after `main`.

use std::error::Error;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use shinjuku::{
    Config, CoresConfig, HardPreemption, LayoutKind, MechanismKind, Pool, PreemptionConfig,
    without_preemption,
};
use shinjuku_preempt::CompiledProbes;
use shinjuku_stress_entries::operate_alone;

const SEEDS: u64 = 16;
/// Preemptions of the second pool that are enough.
const WANTED: u64 = 50;
/// For each step.
const PATIENCE: Duration = Duration::from_secs(30);

static UNDISTURBED: OnceLock<Vec<u64>> = OnceLock::new();
/// Its one worker runs what keeps the gate up.
static HOLDER: OnceLock<Pool> = OnceLock::new();
static HOLDS: AtomicBool = AtomicBool::new(false);
/// Preemptions of that pool before it held.
static PREEMPTED_BEFORE: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    /// libc's.
    safe fn atexit(function: extern "C" fn()) -> i32;
}

// SAFETY: what starts the program calls each function that this section names before `main`, when
// libc works.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// A panic in here ends the process, since it may not leave.
extern "C" fn before_main() {
    UNDISTURBED.get_or_init(|| (0..SEEDS).map(operate_alone).collect());
    let holder = HOLDER.get_or_init(|| pool(1).expect("the pool starts"));
    let hold = || {
        without_preemption(|| {
            HOLDS.store(true, Relaxed);
            while !std::hint::black_box(false) {
                std::hint::spin_loop();
            }
        });
    };
    holder.run("only", hold).detach();
    wait_until(|| HOLDS.load(Relaxed));
    PREEMPTED_BEFORE.store(holder.statistics().preemptions.taken(), Relaxed);
    // This one waits, so the first is asked to give way, and never does.
    holder.run("only", || ()).detach();
    wait_until(|| CompiledProbes::outstanding() > 0);
    look("before main");
}

fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn after_main() {
    look("after main");
}

/// Looks at its end.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        look("a thread-local's destructor");
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd };
}

fn look(place: &str) {
    let is_up = || CompiledProbes::outstanding() > 0;
    let up_before = is_up();
    let is_right = is_undisturbed();
    println!("{place}: up {} right {is_right}", up_before && is_up());
}

fn is_undisturbed() -> bool {
    let undisturbed = UNDISTURBED.get().expect("it was set before `main`");
    (0..)
        .zip(undisturbed)
        .all(|(seed, result)| operate_alone(seed) == *result)
}

/// As [`is_undisturbed`], and once more when the thread's locals go.
fn is_undisturbed_here_and_at_the_end() -> bool {
    AT_END.with(|_| is_undisturbed())
}

fn pool(workers: usize) -> Result<Pool, shinjuku::StartError> {
    // SAFETY: the operations rely on nothing that the token's contract excludes.
    let token = unsafe { HardPreemption::allow() };
    let config = Config::default()
        .layout(LayoutKind::Threads)
        .workers(Some(workers))
        .cores(CoresConfig::default().share(true))
        .contexts(8)
        .strict(true)
        .preemption(PreemptionConfig::new(MechanismKind::CompiledProbe));
    Pool::builder(["only"])
        .config(config)
        .allow_hard_preemption(token)
        .start()
}

/// Preempts closures in a pool of its own, whose contexts then end.
fn in_a_second_pool() -> Result<(), Box<dyn Error>> {
    let pool = pool(2)?;
    let preempted = || pool.statistics().preemptions.by_compiled_probe;
    let (start, mut is_right) = (Instant::now(), true);
    while preempted() < WANTED && start.elapsed() < PATIENCE {
        let run = |_| pool.run("only", is_undisturbed_here_and_at_the_end);
        let jobs: Vec<_> = (0..6).map(run).collect();
        for job in jobs {
            is_right &= job.wait()?;
        }
    }
    let enough = preempted() >= WANTED;
    let clean = pool.shutdown(PATIENCE).is_clean();
    println!("a second pool: enough {enough} right {is_right} clean {clean}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if atexit(after_main) != 0 {
        return Err("no function can be called at the end".into());
    }
    let thread = std::thread::spawn(is_undisturbed_here_and_at_the_end);
    let is_right = thread.join().map_err(|_| "the thread panicked")?;
    println!("a thread of the program's: right {is_right}");
    in_a_second_pool()?;
    let holder = HOLDER.get().ok_or("there is no first pool")?;
    let preempted = holder.statistics().preemptions.taken() - PREEMPTED_BEFORE.load(Relaxed);
    println!("the first pool: preempted {preempted}");
    Ok(())
}
