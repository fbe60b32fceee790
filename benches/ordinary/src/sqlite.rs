//! SQLite, which is C: a table in a file, and queries of it.
//!
//! The file does not change, and is opened as such, so SQLite takes no lock on it. Each query has a
//! connection of its own, as threads have. Two locks are left by default: SQLite counts its memory
//! and its cached pages under locks of the process. The workspace's `.cargo/config.toml` has SQLite
//! built without these counts (`SQLITE_DEFAULT_MEMSTATUS`,
//! `SQLITE_DISABLE_PAGECACHE_OVERFLOW_STATS`), as SQLite's manual advises for many threads.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags};
use shinjuku::preempt_point;
use tempfile::TempDir;

use crate::serving::CONTEXTS;
use crate::works::KEYS;

/// So much of the file is mapped, bytes: more than it has.
const MAPPED: i64 = 64 << 20;

/// A table of keys with values of 100 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Table(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    /// Connections that no query has. There is one for each request that can have been started, as
    /// a service has that does not want its requests to wait for connections, or to open them.
    unused: Mutex<Vec<Connection>>,
    file: PathBuf,
    /// Removed with the last query.
    _directory: TempDir,
}

impl Table {
    /// Makes the file and fills it.
    ///
    /// # Errors
    /// There is no room for it, or SQLite's.
    pub(crate) fn new() -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory for SQLite's file")?;
        let file = directory.path().join("values.sqlite");
        let mut connection = Connection::open(&file)?;
        connection.execute(
            "CREATE TABLE entries (key INTEGER PRIMARY KEY, value BLOB NOT NULL)",
            (),
        )?;
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare("INSERT INTO entries VALUES (?1, ?2)")?;
            for key in 0..KEYS {
                insert.execute((key as i64, [key as u8; 100]))?;
            }
        }
        transaction.commit()?;
        connection.close().map_err(|(_, error)| error)?;
        let opened = Opened {
            unused: Mutex::new(Vec::with_capacity(CONTEXTS)),
            file,
            _directory: directory,
        };
        for _ in 0..CONTEXTS {
            let connection = opened.open()?;
            // All pages are mapped, and the statement compiled.
            sum::<false>(&connection, 0..KEYS)?;
            opened.put(connection);
        }
        Ok(Self(Arc::new(opened)))
    }

    /// Adds up the keys in the range and a byte of each value; with a probe a row, if `PROBES`.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn sum<const PROBES: bool>(&self, keys: Range<u64>) -> Result<u64> {
        let connection = self.0.take()?;
        let sum = sum::<PROBES>(&connection, keys);
        self.0.put(connection);
        Ok(sum?)
    }
}

impl Opened {
    fn open(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let file = format!("file:{}?immutable=1", self.file.display());
        let connection = Connection::open_with_flags(file, flags)?;
        // Mapped, or each connection would have a copy of the pages in a cache of its own.
        connection.pragma_update(None, "mmap_size", MAPPED)?;
        Ok(connection)
    }

    fn take(&self) -> Result<Connection> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let unused_one = unused.pop();
        drop(unused);
        unused_one.map_or_else(|| self.open(), Ok)
    }

    fn put(&self, connection: Connection) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(connection);
    }
}

fn sum<const PROBES: bool>(connection: &Connection, keys: Range<u64>) -> rusqlite::Result<u64> {
    let query = "SELECT key, value FROM entries WHERE key >= ?1 AND key < ?2";
    // Compiled once a connection, as programs do that look up single rows.
    let mut statement = connection.prepare_cached(query)?;
    let mut rows = statement.query((keys.start as i64, keys.end as i64))?;
    let mut sum = 0;
    while let Some(row) = rows.next()? {
        let value = row.get_ref(1)?.as_blob()?;
        sum += row.get::<_, i64>(0)? as u64 + u64::from(value[3]);
        if PROBES {
            preempt_point();
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_its_keys_and_no_others() {
        let table = Table::new().unwrap();
        let expected: u64 = (250..260).map(|key| key + key % 256).sum();
        assert_eq!(table.sum::<false>(250..260).unwrap(), expected);
        assert_eq!(table.sum::<true>(250..260).unwrap(), expected);
        assert_eq!(table.sum::<false>(KEYS..KEYS + 9).unwrap(), 0);
        let connections = table.0.unused.lock().unwrap().len();
        assert_eq!(connections, CONTEXTS, "each query gives its own back");
    }
}
