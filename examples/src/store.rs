//! A key-value store on disk in which requests do real work: lookups of a fraction of a
//! microsecond, and ranges of hundreds.
//!
//! It is a file of [redb](https://docs.rs/redb), a B-tree in pure Rust, read-only once it is built.
//! Keys are the numbers from 0 up, and values are made from their keys ([`value_of`]), so that a
//! reader can tell what must come. All pages stay in redb's cache: a request costs its work, not
//! the disk's time.

use std::fs;
use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use redb::{Builder, Database, ReadOnlyDatabase, ReadOnlyTable, ReadableDatabase, TableDefinition};

/// Bytes of a value.
pub const VALUE_LENGTH: usize = 80;

/// Keys of the store that the example serves and the bench queries.
pub const KEYS: u64 = 100_000;

/// The value of a key.
pub type Value = [u8; VALUE_LENGTH];

const TABLE: TableDefinition<u64, &Value> = TableDefinition::new("values");

/// More than the file of [`KEYS`] keys needs (17 MB).
const CACHE_BYTES: usize = 64 << 20;

/// Why the store could not be opened, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A store without keys.
    #[error("a store needs at least one key")]
    NoKeys,
    /// The file system refused.
    #[error("cannot {action} {path}: {cause}", path = path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Another process writes to the file.
    #[error("{path} is open in another process that writes to it: wait for it, or choose another directory",
        path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file was built here and yet is damaged.
    #[error("{path} was just built and is damaged already: look at the disk", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// redb refused.
    #[error("the store failed: {0}")]
    Redb(Box<redb::Error>),
}

impl StoreError {
    fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::File {
            action,
            path: path.to_owned(),
            cause,
        }
    }
}

/// redb has an error type for each step.
fn redb<E: Into<redb::Error>>(error: E) -> StoreError {
    StoreError::Redb(Box::new(error.into()))
}

/// A store open for reading, from any number of threads.
///
/// One read transaction stays open, so that a lookup does not pay for beginning one: no thread
/// writes.
pub struct Store {
    table: ReadOnlyTable<u64, &'static Value>,
    keys: u64,
    /// The table reads through it.
    _database: ReadOnlyDatabase,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Store({} keys)", self.keys)
    }
}

impl Store {
    /// Opens the store at `path` with the keys 0 to `keys - 1`. If there is none, or one with other
    /// content (damaged, or of another size), builds it and puts it there in one step, so that no
    /// process ever finds a partial one. Reports that on standard error.
    ///
    /// # Errors
    /// [`StoreError`]: the directory cannot be written to, or the file is in use.
    pub fn open_or_build(path: &Path, keys: u64) -> Result<Self, StoreError> {
        if keys == 0 {
            return Err(StoreError::NoKeys);
        }
        if let Some(store) = Self::open(path, keys)? {
            return Ok(store);
        }
        let start = Instant::now();
        eprintln!("building a store of {keys} keys at {} ...", path.display());
        build(path, keys)?;
        eprintln!("built it in {:.1} s", start.elapsed().as_secs_f64());
        Self::open(path, keys)?.ok_or_else(|| StoreError::Damaged {
            path: path.to_owned(),
        })
    }

    /// `None` if the file is missing or damaged.
    fn open(path: &Path, keys: u64) -> Result<Option<Self>, StoreError> {
        match fs::File::open(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::file("read", path)(error)),
        }
        // On some damaged files redb panics instead of returning an error.
        let store = catch_unwind(|| match Self::open_whole(path, keys) {
            Err(redb::Error::DatabaseAlreadyOpen) => Err(StoreError::InUse {
                path: path.to_owned(),
            }),
            store => Ok(store.ok().flatten()),
        });
        store.unwrap_or(Ok(None))
    }

    fn open_whole(path: &Path, keys: u64) -> Result<Option<Self>, redb::Error> {
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .open_read_only(path)?;
        let store = Self {
            table: database.begin_read()?.open_table(TABLE)?,
            keys,
            _database: database,
        };
        Ok(store.is_whole()?.then_some(store))
    }

    /// Reads the whole store, which also brings it into the cache.
    fn is_whole(&self) -> Result<bool, redb::Error> {
        let mut expected = 0..self.keys;
        for entry in self.table.range::<u64>(..)? {
            let (key, value) = entry?;
            if expected.next() != Some(key.value()) || *value.value() != value_of(key.value()) {
                return Ok(false);
            }
        }
        Ok(expected.is_empty())
    }

    /// How many keys there are: 0 to one less than this.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.keys
    }

    /// Always false: a store has at least one key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The value of `key`, or `None` if there is no such key. About 0.2 us.
    ///
    /// # Errors
    /// [`StoreError::Redb`] if the file cannot be read.
    pub fn get(&self, key: u64) -> Result<Option<Value>, StoreError> {
        let value = self.table.get(key).map_err(redb)?;
        Ok(value.map(|value| *value.value()))
    }

    /// Reads `count` keys in order, from `from` (modulo the number of keys), and from 0 again after
    /// the last. Returns how many it read, and their [`checksum`]. About 0.05 us a key.
    ///
    /// # Errors
    /// [`StoreError::Redb`] if the file cannot be read.
    pub fn range(&self, from: u64, count: usize) -> Result<(usize, u64), StoreError> {
        let mut sum = 0;
        let mut read = 0;
        let mut from = from % self.keys;
        while read < count {
            for entry in self.table.range(from..).map_err(redb)?.take(count - read) {
                let (key, value) = entry.map_err(redb)?;
                sum = checksum(sum, key.value(), value.value());
                read += 1;
            }
            from = 0;
        }
        Ok((read, sum))
    }
}

fn build(path: &Path, keys: u64) -> Result<(), StoreError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory).map_err(StoreError::file("create", directory))?;
    // In the final directory, so that the file can be renamed; it removes itself if anything fails.
    let file = tempfile::Builder::new()
        .prefix(".building-")
        .tempfile_in(directory)
        .map_err(StoreError::file("write to", directory))?;
    let handle = file
        .reopen()
        .map_err(StoreError::file("open", file.path()))?;
    fill(&Builder::new().create_file(handle).map_err(redb)?, keys).map_err(redb)?;
    file.persist(path)
        .map_err(|error| StoreError::file("put in place", path)(error.error))?;
    Ok(())
}

fn fill(database: &Database, keys: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for key in 0..keys {
            table.insert(key, &value_of(key))?;
        }
    }
    Ok(transaction.commit()?)
}

/// The value that every store has for `key`.
#[must_use]
pub fn value_of(key: u64) -> Value {
    let mut value = [0; VALUE_LENGTH];
    for (at, word) in (1_u64..).zip(value.chunks_exact_mut(8)) {
        // An odd multiplier scatters adjacent keys; the shift mixes in the high bits.
        let mixed = (key.wrapping_add(at << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    }
    value
}

/// Continues the checksum `sum` of the entries read before with another entry. Starts at 0; the
/// order counts.
#[must_use]
pub fn checksum(sum: u64, key: u64, value: &Value) -> u64 {
    value
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .fold(sum.rotate_left(5) ^ key, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const FEW: u64 = 300;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("not-there-yet").join("store.redb");
        (directory, path)
    }

    fn expected(from: u64, count: usize) -> (usize, u64) {
        let sum = (0..count as u64).fold(0, |sum, at| {
            let key = (from + at) % FEW;
            checksum(sum, key, &value_of(key))
        });
        (count, sum)
    }

    #[test]
    fn every_key_has_its_value_and_no_other_is_there() {
        let (_directory, path) = place();
        let store = Store::open_or_build(&path, FEW).unwrap();
        assert_eq!(store.len(), FEW);
        for key in 0..FEW {
            assert_eq!(store.get(key).unwrap(), Some(value_of(key)));
        }
        for key in [FEW, FEW + 1, u64::MAX] {
            assert_eq!(store.get(key).unwrap(), None);
        }
        assert!((1..FEW).all(|key| value_of(key) != value_of(key - 1)));
    }

    #[test]
    fn ranges_read_in_order_and_go_on_at_the_start() {
        let (_directory, path) = place();
        let store = Store::open_or_build(&path, FEW).unwrap();
        for (from, count) in [
            (0, 0),
            (0, 1),
            (7, 100),
            (FEW - 1, 2),
            (250, 700),
            (FEW + 5, 10),
        ] {
            assert_eq!(
                store.range(from, count).unwrap(),
                expected(from % FEW, count),
                "{from} {count}"
            );
        }
        assert_ne!(store.range(0, 10).unwrap().1, store.range(1, 10).unwrap().1);
    }

    #[test]
    fn a_good_store_is_used_again_by_several_at_once() {
        let (_directory, path) = place();
        let first = Store::open_or_build(&path, FEW).unwrap();
        let built = fs::metadata(&path).unwrap().modified().unwrap();
        let second = Store::open_or_build(&path, FEW).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), built);
        assert_eq!(first.range(0, 50).unwrap(), second.range(0, 50).unwrap());
    }

    #[test]
    fn a_store_of_another_size_is_built_anew_and_leaves_nothing_behind() {
        let (_directory, path) = place();
        drop(Store::open_or_build(&path, FEW).unwrap());
        for keys in [FEW + 1, FEW - 1] {
            let store = Store::open_or_build(&path, keys).unwrap();
            assert_eq!(store.get(keys - 1).unwrap(), Some(value_of(keys - 1)));
            assert_eq!(store.get(keys).unwrap(), None);
        }
        let files: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
    }

    #[test]
    fn damage_is_noticed_and_mended() {
        let (_directory, path) = place();
        drop(Store::open_or_build(&path, FEW).unwrap());
        let good = fs::read(&path).unwrap();
        let value = value_of(FEW / 2);
        let at = good
            .windows(VALUE_LENGTH)
            .position(|bytes| bytes == value)
            .unwrap();
        let mut changed = good.clone();
        changed[at + 3] ^= 1;
        let no_database = vec![7; 5000];
        for damaged in [&changed[..], &good[..good.len() / 2], &no_database, &[]] {
            fs::write(&path, damaged).unwrap();
            let store = Store::open_or_build(&path, FEW).unwrap();
            assert_eq!(
                store.range(0, FEW as usize).unwrap(),
                expected(0, FEW as usize)
            );
        }
    }

    #[test]
    fn whatever_the_damage_it_is_mended() {
        let (_directory, path) = place();
        drop(Store::open_or_build(&path, FEW).unwrap());
        let good = fs::read(&path).unwrap();
        // The header, the trees' roots, the records of free pages: damage in some of these makes
        // redb panic.
        let used = good.iter().rposition(|&byte| byte != 0).unwrap();
        let mut seed = 7_u64;
        let mut random = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % bound
        };
        for _ in 0..40 {
            let mut damaged = good.clone();
            for _ in 0..20 {
                damaged[random(used)] ^= 1 + random(255) as u8;
            }
            fs::write(&path, &damaged).unwrap();
            let store = Store::open_or_build(&path, FEW).unwrap();
            assert_eq!(
                store.range(0, FEW as usize).unwrap(),
                expected(0, FEW as usize)
            );
        }
    }

    #[test]
    fn threads_share_one_store() {
        let (_directory, path) = place();
        let store = Arc::new(Store::open_or_build(&path, FEW).unwrap());
        std::thread::scope(|scope| {
            for start in 0..3 {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    for key in start..FEW {
                        assert_eq!(store.get(key).unwrap(), Some(value_of(key)));
                    }
                });
            }
        });
    }

    #[test]
    fn what_cannot_be_says_why() {
        let (directory, path) = place();
        assert!(matches!(
            Store::open_or_build(&path, 0),
            Err(StoreError::NoKeys)
        ));
        let error =
            Store::open_or_build(&directory.path().join("file").join("store.redb"), FEW).map(drop);
        assert!(error.is_ok(), "directories are made");
        let blocked = directory
            .path()
            .join("file")
            .join("store.redb")
            .join("x.redb");
        let error = Store::open_or_build(&blocked, FEW).unwrap_err().to_string();
        assert!(
            error.contains("store.redb") && error.contains("cannot"),
            "{error}"
        );
    }
}
