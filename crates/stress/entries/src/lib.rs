//! Operations of all kinds that know nothing of preemption. Each makes a number of its seed, the
//! same each time, or panics.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Mutex;

/// One operation, as the seed says.
pub fn operate(seed: u64) -> u64 {
    const OPERATIONS: [fn(u64) -> u64; 8] = [
        strings, maps, locals, unwinds, locks, recursion, floats, shared,
    ];
    let operation = OPERATIONS[(seed % OPERATIONS.len() as u64) as usize];
    (0..8).fold(seed, |sum, round| {
        sum.rotate_left(7) ^ operation(seed + round)
    })
}

/// An operation that waits for nobody, and takes a fraction of the others' time.
pub fn operate_alone(seed: u64) -> u64 {
    strings(seed)
}

#[inline(never)]
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 32)
}

#[inline(never)]
fn name(value: u64) -> String {
    format!("{:016x}", mix(value))
}

fn strings(seed: u64) -> u64 {
    let mut names: Vec<String> = (0..60).map(|at| name(seed ^ at)).collect();
    names.sort_by(|one, other| one.as_bytes()[3..].cmp(&other.as_bytes()[3..]));
    names.iter().fold(0, |sum, name| {
        mix(sum ^ u64::from_str_radix(name, 16).unwrap())
    })
}

fn maps(seed: u64) -> u64 {
    let mut ordered = BTreeMap::new();
    let mut hashed = HashMap::new();
    for at in 0..60 {
        let key = mix(seed + at) % 40;
        *ordered.entry(key).or_insert(0) += at;
        hashed.entry(key).or_insert_with(Vec::new).push(at);
    }
    ordered.retain(|key, sum| hashed[key].iter().sum::<u64>() == *sum && key % 3 != 0);
    ordered
        .iter()
        .fold(0, |sum, (key, value)| mix(sum ^ key ^ value))
}

thread_local! {
    static DEPTH: Cell<u64> = const { Cell::new(0) };
    static NOTES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Another request on the same thread-locals would be seen.
fn locals(seed: u64) -> u64 {
    fn deeper(seed: u64, left: u64) {
        DEPTH.set(DEPTH.get() + 1);
        NOTES.with_borrow_mut(|notes| notes.push(mix(seed + left)));
        if left > 0 {
            deeper(seed, left - 1);
        }
        DEPTH.set(DEPTH.get() - 1);
    }
    deeper(seed, 50);
    assert_eq!(DEPTH.get(), 0);
    let notes = NOTES.take();
    assert_eq!(notes.len(), 51);
    notes.into_iter().fold(0, |sum, note| mix(sum ^ note))
}

/// Its destructor calls and allocates.
struct Dropped<'a>(&'a Cell<u64>, u64);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        let text = name(self.1);
        self.0.set(mix(self.0.get() ^ text.len() as u64 ^ self.1));
    }
}

fn unwinds(seed: u64) -> u64 {
    let sum = Cell::new(seed);
    for at in 0..4 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _outer = Dropped(&sum, at);
            let _inner = Dropped(&sum, mix(seed));
            std::panic::panic_any(mix(at));
        }));
        let payload = caught.unwrap_err();
        sum.set(sum.get() ^ *payload.downcast::<u64>().unwrap());
    }
    sum.get()
}

/// Both halves are equal whenever the lock is free.
fn locks(seed: u64) -> u64 {
    static HALVES: Mutex<(u64, u64)> = Mutex::new((0, 0));
    for at in 0..10 {
        let mut halves = HALVES.lock().unwrap();
        assert_eq!(halves.0, halves.1);
        halves.0 = mix(seed + at);
        std::hint::black_box(name(at));
        halves.1 = mix(seed + at);
    }
    mix(seed)
}

fn recursion(seed: u64) -> u64 {
    fn ackermann(m: u64, n: u64) -> u64 {
        match (m, n) {
            (0, n) => n + 1,
            (m, 0) => ackermann(m - 1, 1),
            (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
        }
    }
    ackermann(2, seed % 12)
}

#[inline(never)]
fn step(values: [f64; 8], by: f64) -> [f64; 8] {
    values.map(|value| value.mul_add(0.75, by))
}

/// Vectors live in registers across calls, and as arguments.
fn floats(seed: u64) -> u64 {
    let mut values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    for at in 0..200 {
        values = step(values, f64::from((seed + at) as u8) / 3.0);
    }
    values
        .iter()
        .fold(0, |sum, value| mix(sum ^ value.to_bits()))
}

/// Counts without atomics, as a thread may.
fn shared(seed: u64) -> u64 {
    let sum = Rc::new(RefCell::new(seed));
    let holders: Vec<Rc<RefCell<u64>>> = (0..40).map(|_| Rc::clone(&sum)).collect();
    for (at, holder) in holders.iter().enumerate() {
        let mut held = holder.borrow_mut();
        *held = mix(*held ^ at as u64);
    }
    drop(holders);
    assert_eq!(Rc::strong_count(&sum), 1);
    sum.take()
}
