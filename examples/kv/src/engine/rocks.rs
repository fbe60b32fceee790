//! Keys and values in RocksDB: in files, which may exceed memory.
//!
//! In its files a value has eight bytes before it, the expiry. RocksDB's reads take only short
//! locks of its own (of the parts of its block cache). A reader can be preempted while holding one;
//! a second reader then waits for it in the kernel, and the runtime notices and resumes suspended
//! requests. Its loops are C++ without probes: inside one step of a walk only a hard mechanism
//! preempts. Writes go to its log, and wait when compaction falls behind; preemption is held off
//! then.

use std::borrow::Cow;
use std::path::Path;

use rocksdb::{BlockBasedOptions, Cache, DB, Options};
use shinjuku::preempt_point;

use super::{Engine, EngineError, Entry, Expiry, Visit};

/// Bytes of read data that stay in memory.
const CACHE: usize = 256 << 20;
/// Bits per key of the filters that tell which keys a file lacks.
const FILTER_BITS: f64 = 10.0;

const EXPIRY_BYTES: usize = size_of::<u64>();

/// See the [module](self).
#[derive(Debug)]
pub struct RocksEngine(DB);

impl RocksEngine {
    /// Opens the database in `directory`, or makes one there.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be opened: the directory cannot be written to, another process
    /// has it open, its files are damaged.
    pub fn open(directory: &Path) -> Result<Self, EngineError> {
        let failed = error("open its files");
        let cache = Cache::new_lru_cache(CACHE).map_err(&failed)?;
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&cache);
        table.set_bloom_filter(FILTER_BITS, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        Ok(Self(DB::open(&options, directory).map_err(&failed)?))
    }
}

fn error(action: &'static str) -> impl Fn(rocksdb::Error) -> EngineError {
    move |cause| EngineError {
        engine: "rocksdb",
        action,
        cause: Box::new(cause),
    }
}

/// Parses what the files have for a key.
fn entry(kept: &[u8]) -> Result<Entry<'_>, EngineError> {
    let (expiry, value) = kept.split_first_chunk().ok_or_else(|| EngineError {
        engine: "rocksdb",
        action: "read a value",
        cause: "it is too short: the files are of another program".into(),
    })?;
    let expiry = Expiry::from_bits(u64::from_le_bytes(*expiry));
    Ok(Entry { value, expiry })
}

impl Engine for RocksEngine {
    fn get(&self, key: &[u8], read: &mut dyn FnMut(Entry<'_>)) -> Result<(), EngineError> {
        if let Some(kept) = self.0.get_pinned(key).map_err(error("read a value"))? {
            read(entry(&kept)?);
        }
        Ok(())
    }

    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, expiry: Expiry) -> Result<(), EngineError> {
        let mut kept = Vec::with_capacity(EXPIRY_BYTES + value.len());
        kept.extend_from_slice(&expiry.to_bits().to_le_bytes());
        kept.extend_from_slice(&value);
        self.0.put(key, kept).map_err(error("write a value"))
    }

    fn remove(&self, key: &[u8]) -> Result<(), EngineError> {
        self.0.delete(key).map_err(error("remove a key"))
    }

    fn walk(&self, from: &[u8], _: bool, visit: &mut Visit<'_>) -> Result<(), EngineError> {
        let mut place = self.0.raw_iterator();
        place.seek(from);
        while let Some((key, kept)) = place.item() {
            preempt_point();
            if visit(key, entry(kept)?).is_break() {
                return Ok(());
            }
            place.next();
        }
        place.status().map_err(error("read keys in order"))
    }

    fn name(&self) -> &'static str {
        "rocksdb"
    }
}
