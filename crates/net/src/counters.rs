//! Counters: some threads write the numbers, and any thread may read them.
//!
//! [`counters!`](crate::counters!) declares what is read, a record of plain numbers, and for each
//! writer the counters that it adds to, on cache lines of their own. It is for the transports of
//! this project, and no part of the API.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that grows, and shrinks only by [`subtract`](Self::subtract) or [`set`](Self::set).
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`, for a counter with one writer: so without a locked instruction.
    #[inline]
    pub fn add(&self, count: u64) {
        self.set(self.read().wrapping_add(count));
    }

    /// Adds one, as [`add`](Self::add) does.
    #[inline]
    pub fn count(&self) {
        self.add(1);
    }

    /// Adds one, for a counter with several writers.
    #[inline]
    pub fn count_shared(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Takes `count` off, for a counter with one writer.
    #[inline]
    pub fn subtract(&self, count: u64) {
        self.set(self.read().wrapping_sub(count));
    }

    /// Sets it, for a counter with one writer.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    /// The number now.
    #[must_use]
    #[inline]
    pub fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What a record of counts is made of.
pub trait Count {
    /// Adds the other, number by number.
    fn add(&mut self, other: Self);
}

impl Count for u64 {
    fn add(&mut self, other: Self) {
        *self += other;
    }
}

impl Count for usize {
    fn add(&mut self, other: Self) {
        *self += other;
    }
}

impl<const N: usize> Count for [u64; N] {
    fn add(&mut self, other: Self) {
        for (number, other) in self.iter_mut().zip(other) {
            *number += other;
        }
    }
}

/// Declares a record of counts, which can be added up, and the counters behind it, a struct for
/// each writer (`by`), whose `add_to` adds what they read to a record. Counts from elsewhere come
/// last (`and`), with their types.
///
/// The record's `write_counts` writes a line for each count that has words and is not zero.
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])*
        pub struct $Counts:ident {
            $(
                $(#[$writer:meta])*
                by $Counters:ident {
                    $($(#[$doc:meta])* $count:ident $(= $words:literal)?,)+
                }
            )*
            $(and { $($(#[$other_doc:meta])* $other:ident: $Other:ty,)* })?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct $Counts {
            $($($(#[$doc])* pub $count: u64,)+)*
            $($($(#[$other_doc])* pub $other: $Other,)*)?
        }

        $(
            $(#[$writer])*
            #[derive(Default, Debug)]
            #[repr(align(128))]
            pub(crate) struct $Counters {
                $(pub(crate) $count: $crate::counters::Counter,)+
            }

            impl $Counters {
                pub(crate) fn add_to(&self, counts: &mut $Counts) {
                    $(counts.$count += self.$count.read();)+
                }
            }
        )*

        impl $crate::counters::Count for $Counts {
            fn add(&mut self, other: Self) {
                $($($crate::counters::Count::add(&mut self.$count, other.$count);)+)*
                $($($crate::counters::Count::add(&mut self.$other, other.$other);)*)?
            }
        }

        impl std::ops::Add for $Counts {
            type Output = Self;

            fn add(mut self, other: Self) -> Self {
                $crate::counters::Count::add(&mut self, other);
                self
            }
        }

        impl std::iter::Sum for $Counts {
            fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
                counts.fold(Self::default(), std::ops::Add::add)
            }
        }

        impl $Counts {
            /// Writes the counts that are not zero, a line each, and each line after a line break.
            #[allow(dead_code, reason = "not every record is told in words")]
            fn write_counts(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $($($(
                    if self.$count > 0 {
                        write!(formatter, "\n{} {}", self.$count, $words)?;
                    }
                )?)+)*
                let _ = formatter;
                Ok(())
            }
        }
    };
}
