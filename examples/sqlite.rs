//! C code, preempted in microseconds: range queries of SQLite, whose every function entry is a
//! probe.
//!
//! Run: `cargo shinjuku run --release -p shinjuku-examples --example sqlite`. It takes clang.
//!
//! Expect: each class's latencies, and how requests were preempted: nearly all by compiled probe,
//! within SQLite. Run by plain `cargo run`, the same program is preempted by interrupt, at longer
//! intervals, and lookups wait longer.

use std::cell::OnceCell;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use shinjuku::policy::ClassId;
use shinjuku::{ClassConfig, CoresConfig, HardPreemption, LayoutKind, Runtime, handler_fn};

const KEYS: i64 = 20_000;
const LOOKUP: ClassId = ClassId(0);
const SUM: ClassId = ClassId(1);

/// The sum of the squares of some keys.
type Query = std::ops::Range<i64>;

fn fill(file: &Path) -> rusqlite::Result<()> {
    let mut connection = Connection::open(file)?;
    let transaction = connection.transaction()?;
    transaction.execute(
        "CREATE TABLE squares (key INTEGER PRIMARY KEY, square INTEGER)",
        (),
    )?;
    {
        let mut insert = transaction.prepare("INSERT INTO squares VALUES (?1, ?2)")?;
        for key in 0..KEYS {
            insert.execute((key, key * key))?;
        }
    }
    transaction.commit()
}

/// The file does not change any more, so SQLite takes no lock on it.
fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("file:{}?immutable=1", file.display()), flags)
}

thread_local! {
    /// A request has its context's thread-locals, wherever it goes on: nobody else uses it.
    static CONNECTION: OnceCell<Connection> = const { OnceCell::new() };
}

/// One call of SQLite's, which computes it all: no line of this program runs meanwhile.
fn sum(file: &Path, keys: Query) -> rusqlite::Result<i64> {
    CONNECTION.with(|cell| {
        if cell.get().is_none() {
            let _ = cell.set(open(file)?);
        }
        let connection = cell.get().expect("it has just been opened");
        let query = "SELECT sum(square) FROM squares WHERE key >= ?1 AND key < ?2";
        connection.query_row(query, (keys.start, keys.end), |row| row.get(0))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("squares.sqlite");
    fill(&file)?;
    let handler = handler_fn(move |keys: Query| sum(&file, keys).ok());
    let runtime = Runtime::builder(handler)
        .class([ClassConfig::new("lookup"), ClassConfig::new("sum")])
        // A dispatcher's thread raises the gate without a signal. Its core may do other things.
        .layout(LayoutKind::Threads)
        .cores(CoresConfig::default().share(true))
        // SAFETY: SQLite relies neither on its kernel thread nor on priority inheritance, and makes
        // no system call that must not be interrupted.
        .allow_hard_preemption(unsafe { HardPreemption::allow() })
        .start()?;
    println!("{}", runtime.description());

    let handle = runtime.handle();
    for _ in 0..100 {
        let sums = [(); 2].map(|()| handle.submit(SUM, 0..KEYS));
        for key in 1..=10 {
            let square = handle.submit(LOOKUP, key..key + 1)?.wait()?;
            assert_eq!(square, Some(key * key));
        }
        for sum in sums {
            let squares = (0..KEYS).map(|key| key * key).sum();
            assert_eq!(sum?.wait()?, Some(squares));
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
