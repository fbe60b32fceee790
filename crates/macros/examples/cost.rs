//! What a probe costs per iteration of loops of several kinds: without probes, probed each
//! iteration, probed each 64th.
//!
//! `cargo run --release -p shinjuku-macros --example cost`. The contenders take turns, and each
//! cell is the median of all turns with the middle half's spread. All data fit into the first-level
//! cache, so that nothing hides the probe.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use shinjuku_macros::preemptible;

/// A probe as the runtime's: load the worker's line by way of a thread-local, take the cold path
/// when asked to.
mod probe {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    static LINE: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        static WORKER: Cell<&'static AtomicU64> = const { Cell::new(&LINE) };
    }

    #[inline(always)]
    pub fn preempt_point() {
        if WORKER.get().load(Ordering::Relaxed) != 0 {
            preempted();
        }
    }

    #[cold]
    #[inline(never)]
    fn preempted() {
        LINE.store(0, Ordering::Relaxed);
    }
}

const ITEMS: usize = 2048;
const RUNS: u32 = 200;
const TURNS: usize = 101;

/// What the loops work on: some numbers, and a cyclic walk through the indices of all of them.
struct Data {
    numbers: Vec<u64>,
    output: Vec<u64>,
    next: Vec<u32>,
}

/// Defines the loops three times, in a module for each contender.
macro_rules! contenders {
    ($($(#[$attribute:meta])* mod $name:ident;)*) => {$(
        mod $name {
            use super::Data;

            contenders!(@ ($(#[$attribute])*)
                fn sum(data: &mut Data) -> u64 {
                    let mut sum = 0u64;
                    for number in &data.numbers { sum = sum.wrapping_add(*number); }
                    sum
                }
                fn sum_by_index(data: &mut Data) -> u64 {
                    let numbers = &data.numbers[..];
                    let mut sum = 0u64;
                    for i in 0..numbers.len() { sum = sum.wrapping_add(numbers[i]); }
                    sum
                }
                fn sum_by_while(data: &mut Data) -> u64 {
                    let numbers = &data.numbers[..];
                    let (mut sum, mut i) = (0u64, 0);
                    while i < numbers.len() { sum = sum.wrapping_add(numbers[i]); i += 1; }
                    sum
                }
                fn map(data: &mut Data) -> u64 {
                    for (to, from) in data.output.iter_mut().zip(&data.numbers) { *to = (*from << 1) ^ 5; }
                    data.output[0]
                }
                fn hash(data: &mut Data) -> u64 {
                    let mut hash = 0xcbf2_9ce4_8422_2325u64;
                    for number in &data.numbers { hash = (hash ^ number).wrapping_mul(0x100_0000_01b3); }
                    hash
                }
                fn chase(data: &mut Data) -> u64 {
                    let next = &data.next[..];
                    let mut at = 0u32;
                    for _ in 0..next.len() { at = next[at as usize]; }
                    u64::from(at)
                }
            );
        }
    )*};
    (@ $attributes:tt $(fn $name:ident($($argument:tt)*) -> u64 $body:block)*) => {$(
        contenders!(@one $attributes #[allow(clippy::needless_range_loop)] #[inline(never)]
            pub fn $name($($argument)*) -> u64 $body);
    )*};
    (@one ($(#[$attribute:meta])*) $item:item) => { $(#[$attribute])* $item };
}

contenders! {
    mod without;
    #[super::preemptible(crate = super::probe)] mod each;
    #[super::preemptible(crate = super::probe, every = 64)] mod each_64th;
}

type Kernel = fn(&mut Data) -> u64;

/// Each loop with its three contenders.
const KERNELS: [(&str, [Kernel; 3]); 6] = [
    ("sum of a slice", [without::sum, each::sum, each_64th::sum]),
    (
        "sum by index",
        [
            without::sum_by_index,
            each::sum_by_index,
            each_64th::sum_by_index,
        ],
    ),
    (
        "sum by while",
        [
            without::sum_by_while,
            each::sum_by_while,
            each_64th::sum_by_while,
        ],
    ),
    (
        "map into a slice",
        [without::map, each::map, each_64th::map],
    ),
    ("hash", [without::hash, each::hash, each_64th::hash]),
    (
        "pointer chase",
        [without::chase, each::chase, each_64th::chase],
    ),
];

/// Nanoseconds per iteration.
fn time(kernel: Kernel, data: &mut Data) -> f64 {
    let start = Instant::now();
    for _ in 0..RUNS {
        black_box(kernel(black_box(data)));
    }
    start.elapsed().as_nanos() as f64 / f64::from(RUNS) / ITEMS as f64
}

fn main() {
    let mut data = Data {
        numbers: (0..ITEMS as u64).collect(),
        output: vec![0; ITEMS],
        next: (0..ITEMS)
            .map(|i| ((i * 1237 + 1) % ITEMS) as u32)
            .collect(),
    };
    println!("ns per iteration: median (quartiles) of {TURNS} turns\n");
    println!(
        "{:18}{:>22}{:>22}{:>22}",
        "", "no probe", "every = 1", "every = 64"
    );
    for (name, contenders) in KERNELS {
        let results = contenders.map(|kernel| kernel(&mut data));
        assert!(
            results.iter().all(|result| *result == results[0]),
            "{name}: a probe changed the result"
        );
        let mut times = contenders.map(|_| Vec::with_capacity(TURNS));
        for _ in 0..TURNS {
            for (kernel, times) in contenders.into_iter().zip(&mut times) {
                times.push(time(kernel, &mut data));
            }
        }
        print!("{name:18}");
        for mut times in times {
            times.sort_by(f64::total_cmp);
            let [low, median, high] = [1, 2, 3].map(|quarter| times[TURNS * quarter / 4]);
            print!("{:>22}", format!("{median:.3} ({low:.3}-{high:.3})"));
        }
        println!();
    }
}
