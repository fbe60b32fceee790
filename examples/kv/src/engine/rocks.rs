//! Keys and values in RocksDB: in files, which may exceed memory.
//!
//! Its files are tables of blocks, read through a cache; or plain tables, as in the evaluation of
//! Shinjuku (NSDI 2019): mapped into memory, read without copies and without a cache's locks, and
//! meant for a file system in memory. A directory stays with the tables that it was made with.
//!
//! In its files a value has eight bytes before it, the expiry. RocksDB's reads take only short
//! locks of its own (of the parts of its block cache). A reader can be preempted while holding one;
//! a second reader then waits for it in the kernel, and the runtime notices and resumes suspended
//! requests. Its loops are C++ without probes: inside one step of a walk only a hard mechanism
//! preempts. Writes go to its log, and wait when compaction falls behind; preemption is held off
//! then.

use std::borrow::Cow;
use std::path::Path;

use rocksdb::{BlockBasedOptions, Cache, DB, Options, PlainTableFactoryOptions};
use shinjuku::preempt_point;

use super::{Engine, EngineError, Entry, Expiry, Visit};

/// Bytes of read data that stay in memory.
const CACHE: usize = 256 << 20;
/// Bits per key of the filters that tell which keys a file lacks.
const FILTER_BITS: u8 = 10;
/// Of a plain table's keys one in so many is in its index.
const SPARSENESS: usize = 16;

const EXPIRY_BYTES: usize = size_of::<u64>();

/// See the [module](self).
#[derive(Debug)]
pub struct RocksEngine {
    database: DB,
    tables: Tables,
}

/// How its files are made and read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tables {
    /// Blocks, read through a cache.
    Blocks,
    /// Entries one after the other, mapped into memory.
    Plain,
}

impl RocksEngine {
    /// Opens the database in `directory`, or makes one there.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be opened: the directory cannot be written to, another process
    /// has it open, its files are damaged.
    pub fn open(directory: &Path, tables: Tables) -> Result<Self, EngineError> {
        let failed = error("open its files");
        let mut options = Options::default();
        options.create_if_missing(true);
        match tables {
            Tables::Blocks => {
                let cache = Cache::new_lru_cache(CACHE).map_err(&failed)?;
                let mut table = BlockBasedOptions::default();
                table.set_block_cache(&cache);
                table.set_bloom_filter(f64::from(FILTER_BITS), false);
                options.set_block_based_table_factory(&table);
            }
            Tables::Plain => {
                options.set_allow_mmap_reads(true);
                // No hash table of prefixes: walks are in the order of all keys.
                options.set_plain_table_factory(&PlainTableFactoryOptions {
                    user_key_length: 0,
                    bloom_bits_per_key: FILTER_BITS.into(),
                    hash_table_ratio: 0.0,
                    index_sparseness: SPARSENESS,
                });
            }
        }
        let database = DB::open(&options, directory).map_err(&failed)?;
        Ok(Self { database, tables })
    }

    /// How many files of tables there are.
    ///
    /// # Errors
    /// [`EngineError`] if that cannot be read.
    pub fn files(&self) -> Result<usize, EngineError> {
        let files = self.database.live_files();
        Ok(files.map_err(error("list its files"))?.len())
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
        if let Some(kept) = self
            .database
            .get_pinned(key)
            .map_err(error("read a value"))?
        {
            read(entry(&kept)?);
        }
        Ok(())
    }

    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, expiry: Expiry) -> Result<(), EngineError> {
        let mut kept = Vec::with_capacity(EXPIRY_BYTES + value.len());
        kept.extend_from_slice(&expiry.to_bits().to_le_bytes());
        kept.extend_from_slice(&value);
        self.database.put(key, kept).map_err(error("write a value"))
    }

    fn remove(&self, key: &[u8]) -> Result<(), EngineError> {
        self.database.delete(key).map_err(error("remove a key"))
    }

    fn walk(&self, from: &[u8], _: bool, visit: &mut Visit<'_>) -> Result<(), EngineError> {
        let mut place = self.database.raw_iterator();
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

    fn settle(&self) -> Result<(), EngineError> {
        self.database.flush().map_err(error("write a table"))
    }

    fn name(&self) -> &'static str {
        match self.tables {
            Tables::Blocks => "rocksdb",
            Tables::Plain => "rocksdb-plain",
        }
    }
}
