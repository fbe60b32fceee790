//! Probes are counted exactly through every way of iterating and leaving a loop, and results do not
//! change.

#![deny(warnings)]
#![allow(clippy::never_loop, clippy::while_immutable_condition)]

use crate::probe;

variants! {
    fn for_sum(n: u64) -> u64 {
        let mut sum = 0;
        for i in 0..n { sum += i; }
        sum
    }
    fn while_sum(n: u64) -> u64 {
        let (mut sum, mut i) = (0, 0);
        while i < n { sum += i; i += 1; }
        sum
    }
    fn while_let_pop(n: u64) -> u64 {
        let mut stack: Vec<u64> = (0..n).collect();
        let mut sum = 0;
        while let Some(i) = stack.pop() { sum += i; }
        sum
    }
    fn while_let_chain(n: u64) -> u64 {
        let mut stack: Vec<u64> = (0..n).collect();
        let mut sum = 0;
        while sum < 1000 && let Some(i) = stack.pop() && i != u64::MAX { sum += i; }
        sum
    }
    fn loop_with_value(n: u64) -> u64 {
        let mut i = 0;
        let found = loop {
            i += 1;
            if i * i >= n { break i; }
        };
        found + loop { break 1; }
    }
    fn nested(rows: u64, columns: u64) -> u64 {
        let mut sum = 0;
        for i in 0..rows { for j in 0..columns { sum += i * j; } }
        sum
    }
    fn always_continues_for(n: u64) -> u64 {
        let mut odd = 0;
        for i in 0..n {
            odd += i % 2;
            if i < n { continue; }
            odd += 1000;
        }
        odd
    }
    fn always_continues_while(n: u64) -> u64 {
        let mut i = 0;
        while i < n { i += 1; if i > 0 { continue; } }
        i
    }
    fn always_continues_outer(n: u64) -> u64 {
        let mut i = 0;
        'outer: while i < n {
            i += 1;
            loop { continue 'outer; }
        }
        i
    }
    fn continues_outer_for(n: u64) -> u64 {
        let mut sum = 0;
        'outer: for i in 0..n {
            for j in 0..n {
                if j == 1 { continue 'outer; }
                sum += i;
            }
        }
        sum
    }
    fn breaks_outer(n: u64) -> (u64, u64) {
        let mut at = (0, 0);
        'outer: for i in 0..n {
            for j in 0..n {
                at = (i, j);
                if i == 2 && j == 2 { break 'outer; }
            }
        }
        at
    }
    fn breaks_own_label(n: u64, last: u64) -> u64 {
        let mut seen = 0;
        'own: for i in 0..n {
            seen += 1;
            if i == last { break 'own; }
        }
        seen
    }
    fn breaks_outer_with_value(n: u64) -> u64 {
        let mut i = 0;
        'outer: loop {
            loop {
                i += 1;
                if i == n { break 'outer i * 2; }
                if i % 2 == 0 { continue 'outer; }
            }
        }
    }
    fn shadowed_labels(n: u64) -> u64 {
        let mut sum = 0;
        for _ in 0..2 {
            'a: for i in 0..n {
                if i == 6 { break 'a; }
                sum += i;
            }
            'a: for i in 0..n {
                if i % 2 == 0 { continue 'a; }
                sum += i;
            }
        }
        sum
    }
    fn labelled_block(n: u64) -> u64 {
        let mut sum = 0;
        for i in 0..n {
            sum += 'block: {
                if i == 3 { break 'block 100; }
                i
            };
        }
        sum
    }
    fn leaves_by_question_mark(items: &[Option<u64>]) -> Option<u64> {
        let mut sum = 0;
        for item in items { sum += (*item)?; }
        Some(sum)
    }
    fn returns(n: u64) -> u64 {
        for i in 0.. { if i == n { return i; } }
        unreachable!()
    }
    fn closures(n: u64) -> u64 {
        let mut calls = 0;
        let mut up_to = |m: u64| { calls += 1; let mut s = 0; for i in 0..m { s += i; } s };
        let sum = up_to(n) + up_to(n);
        let bare = |m: u64| loop { if m > 0 { break m; } };
        sum + bare(n) + calls
    }
    fn items_inside(n: u64) -> u64 {
        fn quiet(n: u64) -> u64 { let mut s = 0; for i in 0..n { s += i; } s }
        const TEN: u64 = { let mut i = 0; while i < 10 { i += 1; } i };
        let array = [0u8; { let mut i = 0; while i < 3 { i += 1; } i }];
        quiet(n) + TEN + array.len() as u64 + const { let mut i = 0; while i < 5 { i += 1; } i }
    }
    fn loops_as_operands(n: u64) -> u64 {
        let mut i = n;
        let x = loop { i -= 1; if i == 0 { break 3u64; } }.pow(2) + loop { break 1 };
        let y = match loop { break x } { 10 => 1, _ => 0 };
        if loop { break y == 1 } { x } else { 0 }
    }
    fn jumps_from_heads(n: u64) -> u64 {
        let mut sum = 0;
        'row: for i in 0..n {
            for j in match i { 1 => continue, 5 => break, _ => 0..i } { sum += j + 1; }
            while match i { 2 => continue 'row, _ => false } {}
        }
        sum
    }
}

macro_rules! leave {
    (break) => {
        break
    };
    (continue) => {
        continue
    };
}

variants! {
    fn jumps_hidden_in_macros(n: u64, last: u64) -> u64 {
        let mut sum = 0;
        for i in 0..n {
            if i % 2 == 0 { leave!(continue); }
            sum += i;
            if i == last { leave!(break); }
        }
        sum
    }
}

#[test]
fn each_kind_of_loop() {
    for n in [0, 1, 3, 4, 5, 7, 8, 9, 40] {
        assert_probes!(for_sum(n): each n, fourth n / 4);
        assert_probes!(while_sum(n): each n, fourth n / 4);
        assert_probes!(while_let_pop(n): each n, fourth n / 4);
        assert_probes!(while_let_chain(n): each n, fourth n / 4);
        assert_probes!(always_continues_for(n): each n, fourth n / 4);
        assert_probes!(always_continues_while(n): each n, fourth n / 4);
        assert_probes!(labelled_block(n): each n, fourth n / 4);
    }
    assert_probes!(loop_with_value(100): each 10 + 1, fourth 2);
    assert_probes!(loop_with_value(64): each 8 + 1, fourth 2);
}

#[test]
fn a_loop_that_holds_another_is_probed_each_iteration() {
    assert_probes!(nested(3, 5): each 3 + 15, fourth 3 + 3);
    assert_probes!(nested(100, 1): each 200, fourth 100);
    assert_probes!(always_continues_outer(10): each 20, fourth 10);
    assert_probes!(continues_outer_for(5): each 5 + 10, fourth 5);
    assert_probes!(jumps_from_heads(9): each 6 + 9, fourth 6 + 1);
}

#[test]
fn leaving_by_break_return_and_question_mark() {
    assert_probes!(breaks_outer(6): each 3 + 15, fourth 3 + 2);
    // Broken off in the last iteration of a strip, in the first of the next, and never.
    assert_probes!(breaks_own_label(20, 3): each 4, fourth 0);
    assert_probes!(breaks_own_label(20, 4): each 5, fourth 1);
    assert_probes!(breaks_own_label(20, 7): each 8, fourth 1);
    assert_probes!(breaks_own_label(20, 20): each 20, fourth 5);
    assert_probes!(breaks_outer_with_value(7): each 4 + 7, fourth 4);
    assert_probes!(shadowed_labels(8): each 2 + 2 * (7 + 8), fourth 2 + 2 * (1 + 2));
    assert_probes!(leaves_by_question_mark(&[Some(1), Some(2), None, Some(3)]): each 3, fourth 0);
    assert_probes!(leaves_by_question_mark(&[Some(1); 9]): each 9, fourth 2);
    assert_probes!(returns(9): each 10, fourth 2);
}

#[test]
fn jumps_that_a_macro_hides() {
    assert_probes!(jumps_hidden_in_macros(20, 7): each 8, fourth 1);
    assert_probes!(jumps_hidden_in_macros(20, 9): each 10, fourth 2);
    assert_probes!(jumps_hidden_in_macros(8, 99): each 8, fourth 2);
}

#[test]
fn closures_are_probed_and_items_are_not() {
    assert_probes!(closures(8): each 17, fourth 4);
    assert_probes!(items_inside(8): each 0, fourth 0);
    assert_probes!(loops_as_operands(9): each 9 + 3, fourth 2);
}

mod methods {
    use shinjuku_macros::preemptible;

    pub trait Total {
        fn total(&self) -> u64;

        #[preemptible(crate = super::probe)]
        fn doubled(&self) -> u64 {
            let mut sum = 0;
            for _ in 0..2 {
                sum += self.total();
            }
            sum
        }
    }

    pub struct Numbers<T>(pub Vec<T>);

    impl<T: Copy + Into<u64>> Total for Numbers<T> {
        #[preemptible(crate = crate::probe)]
        fn total(&self) -> u64 {
            let mut sum = 0;
            for number in &self.0 {
                sum += (*number).into();
            }
            sum
        }
    }

    impl<T> Numbers<T> {
        #[preemptible(every = 2, crate = crate::probe)]
        pub fn each<F>(&mut self, mut change: F)
        where
            F: FnMut(&mut T),
        {
            for number in self.0.iter_mut() {
                change(number);
            }
        }
    }
}

#[test]
fn methods_of_every_kind() {
    use methods::{Numbers, Total};
    let mut numbers = Numbers(vec![1u32, 2, 3, 4, 5]);
    assert_eq!(probe::counted(|| numbers.doubled()), (30, 2 + 10));
    assert_eq!(
        probe::counted(|| numbers.each(|number| *number *= 2)),
        ((), 2)
    );
    assert_eq!(numbers.total(), 30);
}

#[test]
fn an_endless_loop_is_probed() {
    #[shinjuku_macros::preemptible(crate = self::stop)]
    fn endless() {
        loop {}
    }
    #[shinjuku_macros::preemptible(crate = self::stop, every = 64)]
    fn endless_thinned() {
        loop {}
    }
    for endless in [endless, endless_thinned] {
        assert!(std::panic::catch_unwind(endless).is_err_and(|payload| payload.is::<stop::Stop>()));
    }
}

/// A probe that ends the code it interrupts.
mod stop {
    pub struct Stop;

    pub fn preempt_point() {
        std::panic::resume_unwind(Box::new(Stop));
    }
}
