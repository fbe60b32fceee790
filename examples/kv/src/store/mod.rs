//! The database: an engine, and what else Redis's commands need. Entries expire, changes of one key
//! are atomic, keys are counted, and scans resume.
//!
//! A change reads, decides and writes under the lock of the key's stripe, with preemption held off.
//! So no request is ever suspended while holding the lock, and a thread waits for it only during a
//! change on another core, some microseconds. Readers take no lock. A change of several keys (MSET,
//! DEL) is one of each key in turn, not one of all at once as in Redis.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use scc::{Guard, TreeIndex};
use shinjuku::without_preemption;

use crate::engine::{Engine, EngineError, Entry, Expiry, Visit};

mod cursors;

use cursors::Cursors;

/// Many more than threads that can run at once.
const STRIPES: usize = 256;

/// The database.
#[derive(Debug)]
pub struct Store {
    engine: Box<dyn Engine>,
    stripes: [Mutex<()>; STRIPES],
    hash: ahash::RandomState,
    /// The number of entries, including expired ones that have not been removed.
    entries: AtomicU64,
    /// The keys that expire, the next first.
    expiring: TreeIndex<(Expiry, Arc<[u8]>), ()>,
    volatile: AtomicU64,
    expired: AtomicU64,
    cursors: Cursors,
}

/// The fate of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The entry stays as it is.
    Keep,
    /// This becomes the entry.
    Put(Cow<'a, [u8]>, Expiry),
    /// The entry is removed.
    Remove,
}

impl Store {
    /// A database over the contents of `engine`.
    ///
    /// # Errors
    /// [`EngineError`] if the contents cannot be read.
    pub fn new(engine: Box<dyn Engine>) -> Result<Self, EngineError> {
        let store = Self {
            engine,
            stripes: [const { Mutex::new(()) }; STRIPES],
            hash: ahash::RandomState::new(),
            entries: AtomicU64::new(0),
            expiring: TreeIndex::new(),
            volatile: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            cursors: Cursors::new(),
        };
        store.engine.walk(b"", false, &mut |key, entry| {
            store.entries.fetch_add(1, Ordering::Relaxed);
            store.note_expiry(key, Expiry::NEVER, entry.expiry);
            ControlFlow::Continue(())
        })?;
        Ok(store)
    }

    /// The engine's name.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }

    /// Has the engine put all entries to where they stay.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot.
    pub fn settle(&self) -> Result<(), EngineError> {
        self.engine.settle()
    }

    /// How many entries there are, including expired ones that have not been removed.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many entries will expire.
    #[must_use]
    pub fn volatile(&self) -> u64 {
        self.volatile.load(Ordering::Relaxed)
    }

    /// How many entries have expired and been removed.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Shows `read` the entry of `key`.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be read.
    pub fn read<Out>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<Entry<'_>>) -> Out,
    ) -> Result<Out, EngineError> {
        let mut read = Some(read);
        let mut out = None;
        let mut expired = false;
        self.engine.get(key, &mut |entry| {
            expired = is_over(entry);
            if !expired && let Some(read) = read.take() {
                out = Some(read(Some(entry)));
            }
        })?;
        if expired {
            self.expire(key)?;
        }
        Ok(match (out, read) {
            (Some(out), _) => out,
            (None, Some(read)) => read(None),
            (None, None) => unreachable!("`read` is taken only where its answer is kept"),
        })
    }

    /// Changes the entry of `key` as `change` says, with preemption held off; no other thread
    /// changes it meanwhile.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be read or written.
    pub fn update<'a, Out>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<Entry<'_>>) -> (Change<'a>, Out),
    ) -> Result<Out, EngineError> {
        let stripe = self.hash.hash_one(key) as usize % STRIPES;
        without_preemption(|| {
            let _lock = self.stripes[stripe]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let mut change = Some(change);
            let mut decided = None;
            let mut before = None;
            let mut expired = false;
            let mut decide = |entry: Option<Entry<'_>>| {
                if let Some(change) = change.take() {
                    decided = Some(change(entry));
                }
            };
            self.engine.get(key, &mut |entry| {
                before = Some(entry.expiry);
                expired = is_over(entry);
                decide((!expired).then_some(entry));
            })?;
            decide(None);
            let (change, out) = decided.expect("`decide` was called");
            let stays = matches!(change, Change::Keep);
            self.apply(key, before, change)?;
            if expired && !stays {
                self.expired.fetch_add(1, Ordering::Relaxed);
            }
            Ok(out)
        })
    }

    /// Applies a change to the entry of `key`; `before` is the present entry's expiry.
    fn apply(
        &self,
        key: &[u8],
        before: Option<Expiry>,
        change: Change<'_>,
    ) -> Result<(), EngineError> {
        let known = before.is_some();
        let before = before.unwrap_or(Expiry::NEVER);
        match change {
            Change::Keep => {}
            Change::Put(value, expiry) => {
                self.engine.put(key, value, expiry)?;
                if !known {
                    self.entries.fetch_add(1, Ordering::Relaxed);
                }
                self.note_expiry(key, before, expiry);
            }
            Change::Remove if known => {
                self.engine.remove(key)?;
                self.entries.fetch_sub(1, Ordering::Relaxed);
                self.note_expiry(key, before, Expiry::NEVER);
            }
            Change::Remove => {}
        }
        Ok(())
    }

    fn note_expiry(&self, key: &[u8], before: Expiry, after: Expiry) {
        if before == after {
            return;
        }
        if before != Expiry::NEVER {
            self.expiring.remove_sync(&(before, key.into()));
            self.volatile.fetch_sub(1, Ordering::Relaxed);
        }
        if after != Expiry::NEVER {
            let new = self.expiring.insert_sync((after, key.into()), ());
            debug_assert!(new.is_ok(), "a key expires once");
            self.volatile.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the entry of `key` if it has expired.
    fn expire(&self, key: &[u8]) -> Result<(), EngineError> {
        // `update` shows no expired entry.
        self.update(key, |entry| match entry {
            None => (Change::Remove, ()),
            Some(_) => (Change::Keep, ()),
        })
    }

    /// Removes at most `most` expired entries; returns how many.
    ///
    /// # Errors
    /// [`EngineError`] if one cannot be removed.
    pub fn sweep(&self, most: usize) -> Result<usize, EngineError> {
        let now = now_millis();
        for swept in 0..most {
            let next = self
                .expiring
                .iter(&Guard::new())
                .next()
                .map(|((expiry, key), ())| (*expiry, Arc::clone(key)));
            match next {
                Some((expiry, key)) if expiry.is_over(now) => self.expire(&key)?,
                _ => return Ok(swept),
            }
        }
        Ok(most)
    }

    /// Shows `visit` the keys from `from` on in order, until it breaks off; with their values if
    /// these are wanted.
    ///
    /// # Errors
    /// [`EngineError`] if they cannot be read.
    pub fn walk(
        &self,
        from: &[u8],
        values: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), EngineError> {
        let now = now_millis();
        self.engine.walk(from, values, &mut |key, entry| {
            if entry.expiry.is_over(now) {
                return ControlFlow::Continue(());
            }
            visit(key, entry)
        })
    }

    /// One step of a SCAN: shows `visit` up to `count` keys, from the place where the step that
    /// returned `cursor` ended (0: from the first). `visit` may break the scan off. Returns the
    /// next step's cursor, 0 after the last key, or `None` if `cursor` is unknown.
    ///
    /// A key that exists from the first step to the last is shown once.
    ///
    /// # Errors
    /// [`EngineError`] if keys cannot be read.
    pub fn scan(
        &self,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<Option<u64>, EngineError> {
        let from = match cursor {
            0 => Box::default(),
            cursor => match self.cursors.find(cursor) {
                Some(from) => from,
                None => return Ok(None),
            },
        };
        let mut left = count;
        let mut next = 0;
        self.walk(&from, false, &mut |key, _| {
            if left == 0 {
                next = self.cursors.open(key);
                return ControlFlow::Break(());
            }
            left -= 1;
            visit(key)
        })?;
        Ok(Some(next))
    }

    /// Removes every entry that exists throughout the call.
    ///
    /// # Errors
    /// [`EngineError`] if one cannot be removed.
    pub fn clear(&self) -> Result<(), EngineError> {
        let mut failed = None;
        self.engine.walk(
            b"",
            false,
            &mut |key, _| match self.update(key, |_| (Change::Remove, ())) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        failed.map_or(Ok(()), Err)
    }
}

/// Whether an entry has expired. Most entries do not expire, and for them the clock is not read.
fn is_over(entry: Entry<'_>) -> bool {
    entry.expiry != Expiry::NEVER && entry.expiry.is_over(now_millis())
}

/// Milliseconds since the beginning of 1970.
#[must_use]
pub fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
