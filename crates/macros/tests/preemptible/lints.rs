//! The expansion brings no warning into code that denies them all, and attributes on loops keep
//! working. Compiling the file, and running clippy, is the test. The two modules differ only in
//! `every`, and no macro wraps them, since lints spare macro-generated code.

#![deny(warnings, clippy::all, clippy::pedantic, clippy::nursery, unused)]
#![deny(
    unused_labels,
    unused_mut,
    unused_assignments,
    unused_braces,
    unused_parens,
    unused_qualifications
)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::integer_division,
    clippy::min_ident_chars
)]
#![deny(
    clippy::absolute_paths,
    clippy::shadow_reuse,
    clippy::shadow_same,
    clippy::shadow_unrelated
)]
#![deny(
    clippy::semicolon_outside_block,
    clippy::wildcard_enum_match_arm,
    clippy::exhaustive_structs
)]
#![forbid(unsafe_code)]

use std::ops::Range;

use crate::probe;

struct Items {
    count: u32,
}

impl IntoIterator for Items {
    type Item = u32;
    type IntoIter = Range<u32>;

    fn into_iter(self) -> Self::IntoIter {
        0..self.count
    }
}

mod each {
    use std::thread::park;

    use shinjuku_macros::preemptible;

    use super::Items;

    #[preemptible(crate = crate::probe)]
    pub fn clean(items: &[u32]) -> u32 {
        use std::cmp::max;
        let mut largest = 0;
        for item in items {
            use std::convert::identity;
            largest = max(identity(*item), largest);
        }
        'named: for item in (Items { count: 3 }) {
            if item == 2 {
                break 'named;
            }
            largest = max(item, largest);
        }
        while largest < 7 {
            largest = largest.wrapping_add(1);
        }
        largest
    }

    #[preemptible(crate = crate::probe)]
    #[allow(clippy::never_loop)] // written so, and no new lint on top
    pub fn always_leaves(items: &[u32]) -> u32 {
        for item in items {
            return *item;
        }
        loop {
            return 3;
        }
    }

    #[preemptible(crate = crate::probe)]
    #[rustfmt::skip] // it would drop the attributes inside loops
    pub fn attributes(items: &[u32]) -> u32 {
        let mut sum = 0_u32;
        #[expect(unused_variables)]
        for item in items {
            let unused = 1;
        }
        #[expect(unused_variables)]
        while sum < 3 {
            let unused = 1;
            sum = sum.wrapping_add(1);
        }
        #[expect(unused_labels)]
        'unused: for _ in items {}
        for _ in items {
            #![expect(unused_variables)]
            let unused = 1;
        }
        while sum < 6 {
            #![expect(unused_variables)]
            let unused = 1;
            sum = sum.wrapping_add(1);
        }
        #[cfg(any())]
        for item in does_not_exist {}
        #[cfg(any())]
        loop {}
        #[expect(unused_variables)]
        loop {
            if sum > 2 {
                let unused = 1;
                break sum;
            }
        }
    }

    #[preemptible(crate = crate::probe)]
    pub fn diverges() -> ! {
        loop {
            park();
        }
    }
}

mod fourth {
    use std::thread::park;

    use shinjuku_macros::preemptible;

    use super::Items;

    #[preemptible(crate = crate::probe, every = 4)]
    pub fn clean(items: &[u32]) -> u32 {
        use std::cmp::max;
        let mut largest = 0;
        for item in items {
            use std::convert::identity;
            largest = max(identity(*item), largest);
        }
        'named: for item in (Items { count: 3 }) {
            if item == 2 {
                break 'named;
            }
            largest = max(item, largest);
        }
        while largest < 7 {
            largest = largest.wrapping_add(1);
        }
        largest
    }

    #[preemptible(crate = crate::probe, every = 4)]
    #[allow(clippy::never_loop)] // written so, and no new lint on top
    pub fn always_leaves(items: &[u32]) -> u32 {
        for item in items {
            return *item;
        }
        loop {
            return 3;
        }
    }

    #[preemptible(crate = crate::probe, every = 4)]
    #[rustfmt::skip] // it would drop the attributes inside loops
    pub fn attributes(items: &[u32]) -> u32 {
        let mut sum = 0_u32;
        #[expect(unused_variables)]
        for item in items {
            let unused = 1;
        }
        #[expect(unused_variables)]
        while sum < 3 {
            let unused = 1;
            sum = sum.wrapping_add(1);
        }
        #[expect(unused_labels)]
        'unused: for _ in items {}
        for _ in items {
            #![expect(unused_variables)]
            let unused = 1;
        }
        while sum < 6 {
            #![expect(unused_variables)]
            let unused = 1;
            sum = sum.wrapping_add(1);
        }
        #[cfg(any())]
        for item in does_not_exist {}
        #[cfg(any())]
        loop {}
        #[expect(unused_variables)]
        loop {
            if sum > 2 {
                let unused = 1;
                break sum;
            }
        }
    }

    #[preemptible(crate = crate::probe, every = 4)]
    pub fn diverges() -> ! {
        loop {
            park();
        }
    }
}

#[test]
fn lint_attributes_change_no_result() {
    assert_eq!(probe::counted(|| each::clean(&[1, 5, 2])), (7, 3 + 3 + 2));
    assert_eq!(probe::counted(|| fourth::clean(&[1, 5, 2, 3, 4])), (7, 1));
    assert_eq!(probe::counted(|| each::always_leaves(&[])), (3, 1));
    assert_eq!(probe::counted(|| fourth::always_leaves(&[4])), (4, 0));
    assert_eq!(
        probe::counted(|| each::attributes(&[1, 2])),
        (6, 2 + 3 + 2 + 2 + 3 + 1)
    );
    assert_eq!(probe::counted(|| fourth::attributes(&[1, 2, 3, 4])), (6, 3));
    let _: [fn() -> !; 2] = [each::diverges, fourth::diverges];
}
