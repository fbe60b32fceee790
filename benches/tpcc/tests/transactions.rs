//! Transactions on several threads, and preempted in the runtime, leave the store consistent.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use shinjuku::policy::ClassId;
use shinjuku::{LayoutKind, PolicyConfig, Runtime, handler_fn};
use shinjuku_bench_tpcc::{Input, Kind, Scale, Store};

/// The kind of a number: each often enough.
fn kind(number: u64) -> Kind {
    match number % 10 {
        0..4 => Kind::NewOrder,
        4..7 => Kind::Payment,
        7 => Kind::OrderStatus,
        8 => Kind::Delivery,
        _ => Kind::StockLevel,
    }
}

#[test]
fn the_population_is_consistent_and_the_same_for_the_same_seed() {
    let [one, same, other] = [1, 1, 2].map(|seed| Store::new(Scale::small(), seed));
    assert_eq!(one.check(), Ok(()));
    let run = |store: &Store| {
        let all = (0..500).map(|seed| store.run(Input::draw(kind(seed), seed, store.scale())));
        all.map(|outcome| outcome.shown).collect::<Vec<_>>()
    };
    assert_eq!(run(&one), run(&same));
    assert_ne!(run(&one), run(&other));
    assert_eq!(one.check(), Ok(()));
}

#[test]
fn one_new_order_of_a_hundred_is_rolled_back_and_leaves_nothing() {
    let store = Store::new(Scale::small(), 1);
    let mut rolled_back = 0;
    for seed in 0..2_000 {
        let input = Input::draw(Kind::NewOrder, seed, store.scale());
        rolled_back += u32::from(!store.run(input).is_committed);
    }
    assert!((5..60).contains(&rolled_back), "{rolled_back} of 2,000");
    assert_eq!(store.check(), Ok(()));
}

/// Few customers and items, so that threads meet at the same rows.
#[test]
fn transactions_of_several_threads_leave_it_consistent() {
    let scale = Scale {
        warehouses: 2,
        items: 40,
        customers: 10,
    };
    let store = Store::new(scale, 3);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..5_000 {
                    let seed = thread * 1_000_000 + number;
                    let _ = store.run(Input::draw(kind(number), seed, scale));
                }
            });
        }
    });
    assert_eq!(store.check(), Ok(()));
}

/// Preempted where it may be, within Delivery and Stock-Level, while others go on.
#[test]
fn preempted_transactions_leave_it_consistent() {
    const REQUESTS: u64 = 4_000;
    let store = Arc::new(Store::new(Scale::small(), 4));
    let done = Arc::new(AtomicU64::new(0));
    let handler = {
        let (store, done) = (Arc::clone(&store), Arc::clone(&done));
        handler_fn(move |number: u64| {
            let _ = store.run(Input::draw(kind(number), number, store.scale()));
            done.fetch_add(1, Relaxed);
        })
    };
    let runtime = Runtime::builder(handler)
        .layout(LayoutKind::Symmetric)
        .workers(2)
        .policy(PolicyConfig::new("c-pre-sq").quantum_us(2.0))
        .start()
        .unwrap();
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..REQUESTS)
        .map(|number| handle.submit(ClassId(0), number).unwrap())
        .collect();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    let preempted = runtime.observer().statistics().preemptions.taken();
    drop(handle);
    let _ = runtime.shutdown(Duration::from_secs(5));
    assert_eq!(done.load(Relaxed), REQUESTS);
    assert!(preempted > 0, "2 us are less than a Stock-Level");
    assert_eq!(store.check(), Ok(()));
}
