//! Mixes: many short lookups, and long jobs of a library that knows nothing of preemption.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redb::ReadableDatabase;
use regex::Regex;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use shinjuku::preempt_point;
use shinjuku_workload::repeat::median;

use crate::Times;
use crate::sqlite::Table;
use crate::works::{KEYS, TABLE, addresses, database, entries, text};

#[derive(Debug)]
pub struct Mix {
    pub name: &'static str,
    /// The share of long requests.
    pub long_share: f64,
    prepare: fn() -> Result<Works>,
}

/// All mixes. The long share of the first two is that of the Shinjuku paper's RocksDB (section
/// 4.4): 99.5 % GET and 0.5 % SCAN, and half each.
pub const MIXES: [Mix; 5] = [
    Mix {
        name: "store",
        long_share: 0.005,
        prepare: store,
    },
    Mix {
        name: "store-50",
        long_share: 0.5,
        prepare: store,
    },
    Mix {
        name: "sqlite",
        long_share: 0.005,
        prepare: sqlite,
    },
    Mix {
        name: "regex",
        long_share: 0.005,
        prepare: captures,
    },
    Mix {
        name: "json",
        long_share: 0.005,
        prepare: json,
    },
];

/// Serves a request, the one of this number.
type Serve = Box<dyn Fn(u64) -> Result<u64> + Send + Sync>;

/// What a mix's requests do.
pub struct Works {
    short: Serve,
    long: Serve,
    /// The long one with a probe at each turn of the loop that is the program's own.
    long_with_probes: Serve,
}

impl std::fmt::Debug for Works {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Works").finish_non_exhaustive()
    }
}

impl Mix {
    /// Sets its data up.
    ///
    /// # Errors
    /// The data cannot be made.
    pub fn prepare(&self) -> Result<Works> {
        (self.prepare)()
    }
}

impl Works {
    /// Serves a short request; the result depends on what it found.
    ///
    /// # Errors
    /// The library's.
    pub fn short(&self, number: u64) -> Result<u64> {
        (self.short)(number)
    }

    /// Serves a long request.
    ///
    /// # Errors
    /// The library's.
    pub fn long(&self, number: u64, with_probes: bool) -> Result<u64> {
        match with_probes {
            true => (self.long_with_probes)(number),
            false => (self.long)(number),
        }
    }

    /// How long requests take in a loop on this thread: medians over `length`.
    ///
    /// # Errors
    /// The library's.
    pub fn times(&self, length: Duration) -> Result<Times> {
        let median_us = |serve: &Serve, batch: u64| -> Result<f64> {
            let mut times = Vec::new();
            let start = Instant::now();
            for number in 0.. {
                let before = Instant::now();
                for one in 0..batch {
                    black_box(serve(number * batch + one)?);
                }
                times.push(before.elapsed().as_nanos() as f64 / 1e3 / batch as f64);
                if start.elapsed() > length / 2 {
                    break;
                }
            }
            median(&times).context("no time was taken")
        };
        Ok(Times {
            short_us: median_us(&self.short, 100)?,
            long_us: median_us(&self.long, 1)?,
        })
    }
}

/// Keys out of order.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS
}

fn lookup() -> Result<Serve> {
    let database = database()?;
    Ok(Box::new(move |number| {
        let table = database.begin_read()?.open_table(TABLE)?;
        let found = table.get(key(number))?.context("the store's own key")?;
        Ok(u64::from(found.value()[0]))
    }))
}

/// Three quarters of the table.
fn range<const PROBES: bool>() -> Result<Serve> {
    let database = database()?;
    Ok(Box::new(move |_| {
        let table = database.begin_read()?.open_table(TABLE)?;
        let mut sum = 0;
        for entry in table.range(..KEYS / 4 * 3)? {
            let (key, value) = entry?;
            sum += key.value() + u64::from(value.value()[3]);
            if PROBES {
                preempt_point();
            }
        }
        Ok(sum)
    }))
}

fn store() -> Result<Works> {
    Ok(Works {
        short: lookup()?,
        long: range::<false>()?,
        long_with_probes: range::<true>()?,
    })
}

/// A row, and a fifth of the table.
fn sqlite() -> Result<Works> {
    let table = Table::new()?;
    const ROWS: u64 = KEYS / 5;
    let (short, long, long_with_probes) = (table.clone(), table.clone(), table);
    Ok(Works {
        short: Box::new(move |number| short.sum::<false>(key(number)..key(number) + 1)),
        long: Box::new(move |_| long.sum::<false>(0..ROWS)),
        long_with_probes: Box::new(move |_| long_with_probes.sum::<true>(0..ROWS)),
    })
}

/// All addresses of a text, one match after another.
fn matches<const PROBES: bool>() -> Result<Serve> {
    let (text, addresses) = (text().repeat(10), Regex::new(addresses())?);
    Ok(Box::new(move |_| {
        let captures = addresses.captures_iter(&text).map(|found| {
            if PROBES {
                preempt_point();
            }
            found[1].len() as u64
        });
        Ok(captures.sum())
    }))
}

fn captures() -> Result<Works> {
    Ok(Works {
        short: lookup()?,
        long: matches::<false>()?,
        long_with_probes: matches::<true>()?,
    })
}

/// The values of an array, read with a probe behind each: what a program can do that leaves the
/// parsing to a library.
struct Probed(Vec<Value>);

impl<'de> Deserialize<'de> for Probed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;

        impl<'de> Visitor<'de> for Elements {
            type Value = Probed;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Probed, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = array.next_element()? {
                    values.push(value);
                    preempt_point();
                }
                Ok(Probed(values))
            }
        }

        deserializer.deserialize_seq(Elements)
    }
}

fn json() -> Result<Works> {
    let (text, same) = (entries(), entries());
    Ok(Works {
        short: lookup()?,
        long: Box::new(move |_| {
            let value: Value = serde_json::from_str(&text)?;
            Ok(value.as_array().map_or(0, Vec::len) as u64)
        }),
        long_with_probes: Box::new(move |_| {
            let Probed(values) = serde_json::from_str(&same)?;
            Ok(values.len() as u64)
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_serves_both_kinds_and_the_long_one_is_longer() {
        for mix in &MIXES {
            let works = mix.prepare().unwrap();
            works.short(7).unwrap();
            let long = works.long(0, false).unwrap();
            assert!(long > 0, "{}", mix.name);
            assert_eq!(works.long(0, true).unwrap(), long, "{}", mix.name);
            let times = works.times(Duration::from_millis(50)).unwrap();
            assert!(times.long_us > 10.0 * times.short_us, "{times:?}");
        }
    }
}
