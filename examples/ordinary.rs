//! Code that knows nothing of preemption, preempted in microseconds: a database from crates.io,
//! whose every function entry is a probe.
//!
//! Run: `cargo shinjuku run --release -p shinjuku-examples --example ordinary`
//!
//! Expect: each class's latencies, and how requests were preempted: nearly all by compiled probe.
//! Run by plain `cargo run`, the same program is preempted by interrupt, at longer intervals, and
//! lookups wait longer.

use std::error::Error;
use std::time::Duration;

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, TableDefinition};
use shinjuku::policy::ClassId;
use shinjuku::{ClassConfig, CoresConfig, HardPreemption, LayoutKind, Runtime, handler_fn};

const TABLE: TableDefinition<u64, u64> = TableDefinition::new("squares");
const KEYS: u64 = 5_000;
const LOOKUP: ClassId = ClassId(0);
const SCAN: ClassId = ClassId(1);

/// The sum of the values of some keys.
type Query = std::ops::Range<u64>;

fn fill() -> Result<Database, redb::Error> {
    let database = Database::builder().create_with_backend(InMemoryBackend::new())?;
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for key in 0..KEYS {
            table.insert(key, key * key)?;
        }
    }
    transaction.commit()?;
    Ok(database)
}

/// Nothing here polls, and neither does redb.
fn sum(database: &Database, keys: Query) -> Result<u64, redb::Error> {
    let table = database.begin_read()?.open_table(TABLE)?;
    let mut sum = 0;
    for entry in table.range(keys)? {
        sum += entry?.1.value();
    }
    Ok(sum)
}

fn main() -> Result<(), Box<dyn Error>> {
    let database = fill()?;
    let handler = handler_fn(move |keys: Query| sum(&database, keys).ok());
    let runtime = Runtime::builder(handler)
        .class([ClassConfig::new("lookup"), ClassConfig::new("scan")])
        // A dispatcher's thread raises the gate without a signal. Its core may do other things.
        .layout(LayoutKind::Threads)
        .cores(CoresConfig::default().share(true))
        // SAFETY: redb relies neither on its kernel thread nor on priority inheritance, and a
        // database in memory makes no system calls of its own.
        .allow_hard_preemption(unsafe { HardPreemption::allow() })
        .start()?;
    println!("{}", runtime.description());

    let handle = runtime.handle();
    for _ in 0..200 {
        let scans = [(); 2].map(|()| handle.submit(SCAN, 0..KEYS));
        for key in 1..=10 {
            let square = handle.submit(LOOKUP, key..key + 1)?.wait()?;
            assert_eq!(square, Some(key * key));
        }
        for scan in scans {
            let squares = (0..KEYS).map(|key| key * key).sum();
            assert_eq!(scan?.wait()?, Some(squares));
        }
    }
    // The report has the final statistics.
    let report = runtime.shutdown(Duration::from_secs(5));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{report}");
    Ok(())
}
