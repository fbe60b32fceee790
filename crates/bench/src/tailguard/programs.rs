//! Three programs whose tasks are timed: what the web service of `examples/web` computes, without
//! HTTP. Each is asked for different things, as users do, so that its tasks differ in length.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, anyhow};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_web::Data;

/// Lines of the text, and rows of the store.
const LINES: u64 = 5_000;
/// What is searched for: words and expressions, some of which take longer.
const EXPRESSIONS: [&str; 6] = ["ab", "f0", "abab", "[a-f]+9", "(ab)+[0-9]", "a.*b.*c"];
/// The most rows of a range.
const MOST_ROWS: f64 = 500.0;
/// Widths of pictures, in pixels.
const WIDTHS: [u32; 4] = [32, 48, 64, 128];

/// A task, drawn at random.
type Task = fn(&Data, &mut Xoshiro256PlusPlus) -> Result<usize>;

/// A program, by name.
pub type Program = (&'static str, Task);

/// All of them.
pub const ALL: [Program; 3] = [
    ("search over text", search),
    ("key-value store", rows),
    ("image handler", picture),
];

/// What they serve.
///
/// # Errors
/// The store's.
pub fn data() -> Result<Data> {
    Data::generate(LINES)
}

/// The lines that an expression matches, each expression as often.
fn search(data: &Data, random: &mut Xoshiro256PlusPlus) -> Result<usize> {
    let expression = EXPRESSIONS[random.random_range(0..EXPRESSIONS.len())];
    data.search(expression).map_err(|error| anyhow!(error))
}

/// Some rows, mostly few: as many as often as half of them.
fn rows(data: &Data, random: &mut Xoshiro256PlusPlus) -> Result<usize> {
    let count = MOST_ROWS.powf(random.random::<f64>()) as usize;
    let from = format!("key-{:06}", random.random_range(0..LINES));
    Ok(data.range(&from, count)?.len())
}

/// A small picture of one of several widths, each as often.
fn picture(data: &Data, random: &mut Xoshiro256PlusPlus) -> Result<usize> {
    let width = WIDTHS[random.random_range(0..WIDTHS.len())];
    Ok(data.picture(width).map_err(|error| anyhow!(error))?.len())
}

/// So many tasks of a program, one after the other on this thread: how long each took, in ns.
///
/// # Errors
/// A task fails.
pub fn timed((_, task): Program, data: &Data, tasks: usize, seed: u64) -> Result<Vec<u64>> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut times = Vec::with_capacity(tasks);
    // The first ones find cold caches.
    for number in 0..tasks + tasks / 10 {
        let start = Instant::now();
        black_box(task(data, &mut random)?);
        let nanos = start.elapsed().as_nanos() as u64;
        if number >= tasks / 10 {
            times.push(nanos.max(1));
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_every_program_are_timed_and_differ() {
        let data = data().unwrap();
        for program in ALL {
            let times = timed(program, &data, 10, 1).unwrap();
            assert_eq!(times.len(), 10, "{}", program.0);
            let [least, most] = [times.iter().min(), times.iter().max()];
            assert!(least < most, "{}: {times:?}", program.0);
        }
    }
}
