//! The database on each engine: against a model, and with several threads at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use shinjuku_kv::engine::{Engine, Expiry, MemoryEngine};
#[cfg(feature = "rocksdb")]
use shinjuku_kv::engine::{Entry, RocksEngine, Tables};
use shinjuku_kv::store::{Change, Store, now_millis};

/// An engine and the directory that it may need.
struct Place {
    store: Store,
    _directory: tempfile::TempDir,
}

/// An empty place for each engine of this build.
fn places() -> Vec<Place> {
    let memory: fn(&std::path::Path) -> Box<dyn Engine> = |_| Box::new(MemoryEngine::new());
    #[cfg(feature = "rocksdb")]
    let blocks: fn(&std::path::Path) -> Box<dyn Engine> =
        |path| Box::new(RocksEngine::open(path, Tables::Blocks).unwrap());
    #[cfg(feature = "rocksdb")]
    let plain: fn(&std::path::Path) -> Box<dyn Engine> =
        |path| Box::new(RocksEngine::open(path, Tables::Plain).unwrap());
    let engines = [
        memory,
        #[cfg(feature = "rocksdb")]
        blocks,
        #[cfg(feature = "rocksdb")]
        plain,
    ];
    let place = |engine: fn(&std::path::Path) -> Box<dyn Engine>| {
        let directory = tempfile::tempdir().unwrap();
        Place {
            store: Store::new(engine(directory.path())).unwrap(),
            _directory: directory,
        }
    };
    engines.into_iter().map(place).collect()
}

fn put(store: &Store, key: &[u8], value: &[u8], expiry: Expiry) {
    store
        .update(key, |_| (Change::Put(value.to_vec().into(), expiry), ()))
        .unwrap();
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    store
        .read(key, |entry| entry.map(|entry| entry.value.to_vec()))
        .unwrap()
}

fn walked(store: &Store, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    store
        .walk(from, true, &mut |key, entry| {
            found.push((key.to_vec(), entry.value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

/// All keys that a scan shows, `count` in a step; `between` runs between the steps.
fn scanned(store: &Store, count: usize, mut between: impl FnMut()) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut cursor = 0;
    loop {
        let visit = |key: &[u8]| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        };
        cursor = store
            .scan(cursor, count, visit)
            .unwrap()
            .expect("a cursor just given is known");
        if cursor == 0 {
            return found;
        }
        between();
    }
}

/// A generator of the same sequence each time.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound
    }
}

#[test]
fn it_does_what_an_ordered_map_does() {
    for Place { store, .. } in places() {
        let mut model = BTreeMap::new();
        let mut random = random(7);
        for step in 0..5000_u64 {
            let key = random(200)
                .to_string()
                .repeat(random(4) as usize)
                .into_bytes();
            let value = step.to_le_bytes().repeat(random(5) as usize);
            match random(10) {
                0..6 => {
                    put(&store, &key, &value, Expiry::NEVER);
                    model.insert(key, value);
                }
                6..9 => {
                    let there = store
                        .update(&key, |entry| (Change::Remove, entry.is_some()))
                        .unwrap();
                    assert_eq!(there, model.remove(&key).is_some());
                }
                _ => assert_eq!(get(&store, &key).as_ref(), model.get(&key)),
            }
            assert_eq!(store.len(), model.len() as u64);
        }
        for from in [&b""[..], b"1", b"1555", b"19", b"2", b"x"] {
            let expected = model
                .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
            let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
            assert_eq!(
                walked(&store, from),
                expected.collect::<Vec<_>>(),
                "{}",
                store.engine()
            );
        }
        for count in [1, 7, 100_000] {
            assert_eq!(
                scanned(&store, count, || ()),
                model.keys().cloned().collect::<Vec<_>>()
            );
        }
        store.clear().unwrap();
        assert!(store.is_empty() && walked(&store, b"").is_empty());
    }
}

#[test]
fn what_has_expired_is_gone_and_swept_in_steps() {
    for Place { store, .. } in places() {
        let (past, future) = (
            Expiry::at(now_millis() - 10),
            Expiry::at(now_millis() + 600_000),
        );
        for number in 0..50_u8 {
            put(&store, &[b'p', number], b"v", past);
            put(&store, &[b'f', number], b"v", future);
            put(&store, &[b'n', number], b"v", Expiry::NEVER);
        }
        assert_eq!((store.len(), store.volatile()), (150, 100));
        assert_eq!(walked(&store, b"").len(), 100);
        // A read of an expired entry removes it.
        assert_eq!(get(&store, b"p\0"), None);
        // An update does not see an expired entry.
        let seen = store.update(b"p\x01", |entry| (Change::Keep, entry.is_some()));
        assert!(!seen.unwrap());
        assert_eq!(
            (store.len(), store.volatile(), store.expired()),
            (149, 99, 1)
        );
        assert_eq!(store.sweep(20).unwrap(), 20);
        assert_eq!((store.len(), store.expired()), (129, 21));
        assert_eq!(store.sweep(1000).unwrap(), 29);
        assert_eq!(store.sweep(1000).unwrap(), 0);
        assert_eq!(
            (store.len(), store.volatile(), store.expired()),
            (100, 50, 50)
        );
        // A removed or changed expiry is forgotten.
        put(&store, b"f\0", b"v", Expiry::NEVER);
        put(&store, b"f\x01", b"v", past);
        assert_eq!((store.volatile(), store.sweep(1000).unwrap()), (49, 1));
        assert_eq!(get(&store, b"f\0").as_deref(), Some(&b"v"[..]));
    }
}

#[test]
fn changes_of_one_key_do_not_get_lost() {
    for Place { store, .. } in places() {
        const EACH: u64 = 2000;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let add = |entry: Option<shinjuku_kv::engine::Entry<'_>>| {
                            let before = entry.map_or(0, |entry| {
                                u64::from_le_bytes(entry.value.try_into().unwrap())
                            });
                            (
                                Change::Put(
                                    (before + 1).to_le_bytes().to_vec().into(),
                                    Expiry::NEVER,
                                ),
                                (),
                            )
                        };
                        store.update(b"count", add).unwrap();
                    }
                });
            }
        });
        assert_eq!(
            get(&store, b"count"),
            Some((3 * EACH).to_le_bytes().to_vec())
        );
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn scans_and_gets_miss_nothing_that_stays() {
    for Place { store, .. } in places() {
        let staying: BTreeSet<Vec<u8>> = (0..600)
            .map(|number| format!("key:{:05}", number * 7).into_bytes())
            .collect();
        for key in &staying {
            put(&store, key, b"0", Expiry::NEVER);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Keys that come and go around them, and changes of their values.
            for seed in 0..2 {
                let (store, over, staying) = (&store, &over, &staying);
                scope.spawn(move || {
                    let mut random = random(seed);
                    while !over.load(Ordering::Relaxed) {
                        let key = format!("key:{:05}", random(4200)).into_bytes();
                        let value = random(1000).to_string();
                        if staying.contains(&key) || random(2) == 0 {
                            let expiry = Expiry::at(now_millis() + 600_000);
                            put(
                                store,
                                &key,
                                value.as_bytes(),
                                if random(2) == 0 {
                                    expiry
                                } else {
                                    Expiry::NEVER
                                },
                            );
                        } else {
                            store.update(&key, |_| (Change::Remove, ())).unwrap();
                        }
                    }
                });
            }
            // This also runs if an assertion fails: otherwise the others would go on for ever.
            let _over = Over(&over);
            for round in 0..25 {
                let found = scanned(&store, 1 + round * 8, std::thread::yield_now);
                assert!(found.is_sorted_by(|a, b| a < b), "each once, in order");
                let found: BTreeSet<_> = found.into_iter().collect();
                let missed: Vec<_> = staying.difference(&found).collect();
                assert!(missed.is_empty(), "{}: {missed:?}", store.engine());
                let walked: BTreeSet<_> = walked(&store, b"")
                    .into_iter()
                    .map(|(key, _)| key)
                    .collect();
                assert!(staying.is_subset(&walked), "{}", store.engine());
                assert!(staying.iter().all(|key| get(&store, key).is_some()));
            }
        });
        let keys: Vec<_> = scanned(&store, 100, || ());
        assert_eq!(
            keys.len() as u64,
            store.len(),
            "counted as they came and went"
        );
        let limited = keys.iter().filter(|key| {
            store
                .read(key, |entry| entry.unwrap().expiry != Expiry::NEVER)
                .unwrap()
        });
        assert_eq!(limited.count() as u64, store.volatile());
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn files_are_read_again() {
    for tables in [Tables::Blocks, Tables::Plain] {
        are_read_again(tables);
    }
}

#[cfg(feature = "rocksdb")]
fn are_read_again(tables: Tables) {
    let directory = tempfile::tempdir().unwrap();
    let open = || RocksEngine::open(directory.path(), tables);
    let store = Store::new(Box::new(open().unwrap())).unwrap();
    put(&store, b"stays", b"v", Expiry::NEVER);
    put(&store, b"goes", b"v", Expiry::at(now_millis() + 600_000));
    let error = open().unwrap_err().to_string();
    assert!(error.contains("cannot open its files"), "{error}");
    drop(store);
    let store = Store::new(Box::new(open().unwrap())).unwrap();
    assert_eq!((store.len(), store.volatile()), (2, 1));
    assert_eq!(get(&store, b"stays").as_deref(), Some(&b"v"[..]));
}

/// Over tables and what is only in memory, keys are in order from wherever a walk begins.
#[cfg(feature = "rocksdb")]
#[test]
fn what_is_settled_is_read_from_tables() {
    for tables in [Tables::Blocks, Tables::Plain] {
        let directory = tempfile::tempdir().unwrap();
        let engine = RocksEngine::open(directory.path(), tables).unwrap();
        let key = |number: u32| format!("key:{number:05}").into_bytes();
        let put = |number: u32| engine.put(&key(number), b"v"[..].into(), Expiry::NEVER);
        (0..2_000)
            .step_by(2)
            .for_each(|number| put(number).unwrap());
        assert_eq!(engine.files().unwrap(), 0, "{tables:?}: all is in memory");
        engine.settle().unwrap();
        assert!(engine.files().unwrap() > 0, "{tables:?}");
        (1..2_000)
            .step_by(4)
            .for_each(|number| put(number).unwrap());
        let mut found = Vec::new();
        let mut see = |key: &[u8], _: Entry<'_>| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        };
        engine.walk(&key(501), true, &mut see).unwrap();
        let is_there = |number: &u32| number % 2 == 0 || number % 4 == 1;
        let wanted: Vec<_> = (501..2_000).filter(is_there).map(key).collect();
        assert_eq!(found, wanted, "{tables:?}");
        let mut read = 0;
        engine.get(&key(502), &mut |_| read += 1).unwrap();
        engine.get(&key(503), &mut |_| read += 10).unwrap();
        assert_eq!(read, 1, "{tables:?}");
    }
}
