//! The work: libraries as programs use them. Each job takes some tens of microseconds or more, and
//! makes a number of what it computed, so that nothing is left out.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use aho_corasick::AhoCorasick;
use anyhow::{Context, Result, ensure};
use etherparse::{PacketBuilder, SlicedPacket};
use hdrhistogram::Histogram;
use indexmap::IndexMap;
use plotters::prelude::*;
use rand::SeedableRng;
use rand_distr::{Distribution, Gamma, LogNormal, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, TableDefinition};
use regex::Regex;

use crate::sqlite::Table;

/// A job, to be done again and again. What it makes is above 0.
pub type Job = Box<dyn FnMut() -> Result<u64> + Send>;

/// Sets a job up.
type Prepare = fn() -> Result<Job>;

/// All works, by name.
pub const WORKS: [(&str, Prepare); 15] = [
    ("redb, range of 1000", redb_range),
    ("redb, 100 lookups", redb_lookups),
    ("SQLite, range of 1000", sqlite_range),
    ("regex, captures", regex_captures),
    ("serde_json, parse", json_parse),
    ("toml, parse", toml_parse),
    ("syn, parse a file", syn_parse),
    ("miniz_oxide, deflate", deflate),
    ("aho-corasick, search", search),
    ("httparse, 100 heads", http_heads),
    ("etherparse, 200 packets", packets),
    ("hdrhistogram, 2000 records", histogram),
    ("rand_distr, 2000 samples", samples),
    ("indexmap, 2000 entries", index),
    ("plotters, SVG", plot),
];

/// How long `job` takes, done again and again for `length`.
///
/// # Errors
/// It fails, or computes nothing: then it would be fast.
pub fn duration(mut job: Job, length: Duration) -> Result<crate::Duration> {
    let start = Instant::now();
    let mut least = Duration::MAX;
    while least == Duration::MAX || start.elapsed() < length {
        let before = Instant::now();
        let computed = black_box(job());
        least = least.min(before.elapsed());
        ensure!(computed? > 0, "the job computed nothing");
    }
    Ok(crate::Duration {
        least_us: least.as_nanos() as f64 / 1_000.0,
    })
}

pub(crate) const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("values");
pub(crate) const KEYS: u64 = 20_000;

/// Keys with values of 100 bytes.
pub(crate) fn database() -> Result<Database> {
    let database = Database::builder().create_with_backend(InMemoryBackend::new())?;
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for key in 0..KEYS {
            table.insert(key, [key as u8; 100].as_slice())?;
        }
    }
    transaction.commit()?;
    Ok(database)
}

fn redb_range() -> Result<Job> {
    let database = database()?;
    Ok(Box::new(move || {
        let table = database.begin_read()?.open_table(TABLE)?;
        let mut sum = 0;
        for entry in table.range(5_000..6_000)? {
            let (key, value) = entry?;
            sum += key.value() + u64::from(value.value()[3]);
        }
        Ok(sum)
    }))
}

fn redb_lookups() -> Result<Job> {
    let database = database()?;
    Ok(Box::new(move || {
        let table = database.begin_read()?.open_table(TABLE)?;
        let mut sum = 0;
        for key in 0..100 {
            let found = table.get(key * 191)?.context("the store's own key")?;
            sum += u64::from(found.value()[0]);
        }
        Ok(sum)
    }))
}

fn sqlite_range() -> Result<Job> {
    let table = Table::new()?;
    Ok(Box::new(move || table.sum::<false>(5_000..6_000)))
}

/// Words with an address here and there.
pub(crate) fn text() -> String {
    (0..400).fold(String::new(), |mut text, number| {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "user{number}@host{}.com lorem ipsum {number} ",
            number * 7 % 13
        );
        text
    })
}

/// A pattern for these.
pub(crate) fn addresses() -> &'static str {
    r"(\w+)@(\w+)\.com"
}

fn regex_captures() -> Result<Job> {
    let (text, addresses) = (text(), Regex::new(addresses())?);
    Ok(Box::new(move || {
        let captures = addresses.captures_iter(&text);
        Ok(captures.map(|found| found[1].len() as u64).sum())
    }))
}

/// An array of objects, as JSON.
pub(crate) fn entries() -> String {
    let entries = (0..500).map(|key| format!("{{\"k{key}\": [{}, \"{key}\"]}}", key * 37));
    format!("[{}]", entries.collect::<Vec<_>>().join(", "))
}

fn json_parse() -> Result<Job> {
    let text = entries();
    Ok(Box::new(move || {
        let value: serde_json::Value = serde_json::from_str(&text)?;
        Ok(value.as_array().map_or(0, Vec::len) as u64)
    }))
}

fn toml_parse() -> Result<Job> {
    let text = include_str!("../Cargo.toml");
    Ok(Box::new(move || {
        let table: toml::Table = text.parse()?;
        Ok(table.len() as u64)
    }))
}

fn syn_parse() -> Result<Job> {
    let text = include_str!("works.rs");
    Ok(Box::new(move || {
        Ok(syn::parse_file(text)?.items.len() as u64)
    }))
}

fn deflate() -> Result<Job> {
    let text = text();
    Ok(Box::new(move || {
        let packed = miniz_oxide::deflate::compress_to_vec(text.as_bytes(), 6);
        let unpacked = miniz_oxide::inflate::decompress_to_vec(&packed);
        let unpacked = unpacked.ok().context("it cannot unpack what it packed")?;
        Ok((packed.len() + unpacked.len()) as u64)
    }))
}

fn search() -> Result<Job> {
    let patterns = ["ipsum", "host3", "user17", "user399", "dolor", "m 12"];
    let (text, automaton) = (text(), AhoCorasick::new(patterns)?);
    Ok(Box::new(move || {
        let found = automaton.find_iter(&text);
        Ok(found.map(|found| found.start() as u64).sum())
    }))
}

fn http_heads() -> Result<Job> {
    let head = "GET /search?q=preemption HTTP/1.1\r\nHost: example.com\r\nAccept: text/html\r\n\
                User-Agent: bench/1.0\r\nCookie: a=1; b=2; c=3\r\nConnection: keep-alive\r\n\r\n";
    Ok(Box::new(move || {
        let parsed = (0..100).map(|_| {
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let mut request = httparse::Request::new(&mut headers);
            request.parse(black_box(head.as_bytes()))?;
            Ok(request.headers.len() as u64)
        });
        parsed.sum()
    }))
}

fn packets() -> Result<Job> {
    let mut packet = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 20)
        .udp(21, 1234)
        .write(&mut packet, &[7; 64])?;
    Ok(Box::new(move || {
        let parsed = (0..200).map(|_| {
            let sliced = SlicedPacket::from_ethernet(black_box(&packet))?;
            Ok(u64::from(sliced.transport.is_some()))
        });
        parsed.sum()
    }))
}

fn histogram() -> Result<Job> {
    let mut histogram = Histogram::<u64>::new(3)?;
    Ok(Box::new(move || {
        histogram.reset();
        for value in 0..2_000 {
            // Any value fits: the histogram grows.
            histogram.record(value * value)?;
        }
        Ok(histogram.value_at_quantile(0.99))
    }))
}

fn samples() -> Result<Job> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let (zipf, gamma) = (Zipf::new(1e6, 0.99)?, Gamma::new(2.0, 3.0)?);
    let log_normal = LogNormal::new(0.0, 1.0)?;
    Ok(Box::new(move || {
        let sums = (0..2_000).map(|number| match number % 3 {
            0 => zipf.sample(&mut random),
            1 => gamma.sample(&mut random),
            _ => log_normal.sample(&mut random),
        });
        Ok(sums.sum::<f64>() as u64)
    }))
}

fn index() -> Result<Job> {
    Ok(Box::new(|| {
        let mut map = IndexMap::new();
        for key in 0..2_000u64 {
            *map.entry(key.wrapping_mul(0x9e37_79b9) % 997).or_insert(0) += key;
        }
        map.sort_unstable_keys();
        Ok(map.values().take(10).sum())
    }))
}

fn plot() -> Result<Job> {
    Ok(Box::new(|| {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (640, 480)).into_drawing_area();
            for at in 0..200 {
                let place = (at * 3, (at * at) % 480);
                area.draw(&PathElement::new(
                    [place, (place.0 + 9, 240)],
                    BLUE.stroke_width(2),
                ))?;
            }
            area.present()?;
        }
        Ok(svg.len() as u64)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_computes_something() {
        for (name, prepare) in WORKS {
            let mut job = prepare().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(job().unwrap() > 0, "{name}");
        }
    }

    #[test]
    fn a_job_that_fails_or_computes_nothing_has_no_duration() {
        // The second time: what failed is not the fastest.
        let second = |job: fn() -> Result<u64>| -> Job {
            let mut times = 0;
            Box::new(move || {
                times += 1;
                if times < 2 { Ok(1) } else { job() }
            })
        };
        let long = Duration::from_secs(60);
        let failed = duration(second(|| anyhow::bail!("no such key")), long);
        assert_eq!(failed.unwrap_err().to_string(), "no such key");
        let nothing = duration(second(|| Ok(0)), long);
        let error = nothing.unwrap_err().to_string();
        assert_eq!(error, "the job computed nothing");
        assert!(duration(second(|| Ok(1)), Duration::ZERO).unwrap().least_us < 1e6);
    }
}
