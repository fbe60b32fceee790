//! Besides results, these must not change: when values are dropped, how long temporaries live, how
//! often an iterator is called, names.

#![deny(warnings)]

use std::cell::{Cell, RefCell};

use crate::probe;

/// Writes its name into the log when dropped.
struct Noisy<'a>(&'static str, &'a RefCell<Vec<String>>);

impl Drop for Noisy<'_> {
    fn drop(&mut self) {
        log(self.1, self.0);
    }
}

impl<'a> Noisy<'a> {
    fn items(&self, n: u64) -> NoisyItems<'a> {
        NoisyItems(0..n, Noisy("iterator", self.1))
    }
    fn below(&self, limit: u64, value: &Cell<u64>) -> Option<Noisy<'a>> {
        value.set(value.get() + 1);
        (value.get() <= limit).then_some(Noisy("item", self.1))
    }
}

struct NoisyItems<'a>(std::ops::Range<u64>, Noisy<'a>);

impl<'a> Iterator for NoisyItems<'a> {
    type Item = Noisy<'a>;

    fn next(&mut self) -> Option<Noisy<'a>> {
        log(self.1.1, "next");
        self.0.next().map(|_| Noisy("item", self.1.1))
    }
}

fn log(log: &RefCell<Vec<String>>, event: &str) {
    log.borrow_mut().push(event.into());
}

type Log<'a> = &'a RefCell<Vec<String>>;

variants! {
    fn temporaries_of_for(to: Log<'_>, n: u64) {
        let _local = Noisy("local", to);
        for _item in Noisy("temporary", to).items(n) {
            let _inner = Noisy("inner", to);
            log(to, "body");
        }
        log(to, "after");
        for _ in Noisy("tail temporary", to).items(n) { log(to, "tail body"); }
    }
    fn temporaries_of_while_let(to: Log<'_>, n: u64) {
        let value = Cell::new(0);
        while let Some(_item) = Noisy("temporary", to).below(n, &value) { log(to, "body"); }
        log(to, "after");
    }
    fn temporaries_of_while(to: Log<'_>, n: u64) {
        let value = Cell::new(0);
        while Noisy("temporary", to).below(n, &value).is_some() { log(to, "body"); }
        log(to, "after");
    }
    fn jumps_drop(to: Log<'_>, n: u64) {
        'outer: for _a in Noisy("outer", to).items(n) {
            for _b in Noisy("inner", to).items(n) {
                let _c = Noisy("local", to);
                if to.borrow().len() > 40 { break 'outer; }
                if to.borrow().len().is_multiple_of(2) { continue 'outer; }
            }
        }
    }
}

#[test]
fn drops_and_temporaries_keep_their_order() {
    let run = |f: fn(Log<'_>, u64), n| {
        let log = RefCell::default();
        f(&log, n);
        log.into_inner()
    };
    macro_rules! check {
        ($($name:ident)*) => {$(
            for n in [0, 1, 3, 4, 5, 9] {
                let expected = run($name::plain, n);
                assert!(!expected.is_empty());
                assert_eq!(run($name::each, n), expected);
                assert_eq!(run($name::fourth, n), expected);
            }
        )*};
    }
    check!(temporaries_of_for temporaries_of_while_let temporaries_of_while jumps_drop);
}

/// Panics when called again after `None`.
struct AskedOnce {
    left: u64,
    over: bool,
}

impl Iterator for AskedOnce {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        assert!(!self.over, "asked again after None");
        self.over = self.left == 0;
        self.left = self.left.checked_sub(1)?;
        Some(self.left)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (7, Some(3)) // hints may be wrong
    }
}

variants! {
    fn ask(n: u64) -> u64 {
        let mut sum = 0;
        for i in (AskedOnce { left: n, over: false }) { sum += i; }
        sum
    }
    fn resumes(n: u64) -> (u64, Option<u64>) {
        let mut items = 0..n;
        let mut sum = 0;
        for i in &mut items { sum += i; if i == 5 { break; } }
        for i in items.by_ref() { sum += 100 * i; if i == 9 { break; } }
        (sum, items.next())
    }
}

#[test]
fn an_iterator_is_asked_as_often_as_by_a_plain_loop() {
    for n in 0..10 {
        assert_probes!(ask(n): each n, fourth n / 4);
    }
    assert_probes!(resumes(20): each 6 + 4, fourth 1);
}

#[allow(unused_mut, unused_assignments, non_camel_case_types, dead_code)]
mod names {
    use crate::probe;
    // Every bare name that the expansion might be thought to use.
    pub struct Option;
    pub struct Iterator;
    pub struct IntoIterator;
    pub struct u32;
    pub fn preempt_point() {
        panic!("not this one");
    }
    variants! {
        fn names_of_the_expansion(n: u64) -> u64 {
            let (mut iterator, mut strip, mut taken, mut ended, mut item, mut iterations) = (1, 2, 3, 4, 5, 6);
            for i in 0..n { taken += i; ended += 1; item += strip; iterator += taken; }
            while iterations < 9 { iterations += 1; strip += 1; }
            iterator + strip + taken + ended + item + iterations
        }
    }
    #[test]
    fn do_not_clash() {
        let _ = probe::counted(|| ());
        assert_probes!(names_of_the_expansion(9): each 12, fourth 2);
    }
}

/// A macro around the attribute: fragments arrive inside invisible groups.
macro_rules! define {
    ($name:ident, $every:literal, $krate:path, $body:block, $ty:ty, $head:expr) => {
        #[allow(clippy::never_loop)]
        #[shinjuku_macros::preemptible(every = $every, crate = $krate)]
        fn $name() -> $ty {
            let mut sum = 0;
            for i in $head {
                sum += i;
            }
            sum + $body
        }
    };
}
define!(
    defined,
    2,
    crate::probe,
    {
        loop {
            break 1;
        }
    },
    u64,
    0..6
);

#[test]
fn a_macro_may_write_the_attribute() {
    assert_eq!(probe::counted(defined), (16, 3));
}
