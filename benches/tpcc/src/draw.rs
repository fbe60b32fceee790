//! What terminals enter (clause 2), and the random numbers of the specification.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::{DISTRICTS, Scale};

/// Last names, each of three syllables (clause 4.3.2.3).
pub const LAST_NAMES: usize = 1000;
/// The constants of clause 2.1.6, of which any will do.
const C_LAST: u64 = 123;
const C_CUSTOMER: u64 = 259;
const C_ITEM: u64 = 7911;
/// Most lines of an order.
pub const MOST_LINES: usize = 15;

/// A kind of transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// A customer orders 5 to 15 items.
    NewOrder,
    /// A customer pays.
    Payment,
    /// A customer asks for the latest order.
    OrderStatus,
    /// The oldest order of each district is delivered.
    Delivery,
    /// How many items of a district's latest orders run short.
    StockLevel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::NewOrder,
        Self::Payment,
        Self::OrderStatus,
        Self::Delivery,
        Self::StockLevel,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NewOrder => "new order",
            Self::Payment => "payment",
            Self::OrderStatus => "order status",
            Self::Delivery => "delivery",
            Self::StockLevel => "stock level",
        }
    }

    /// Its share of the transactions, per cent: a little more than the least that clause 5.2.3
    /// demands of each, and the rest New-Orders.
    #[must_use]
    pub fn percent(self) -> f64 {
        match self {
            Self::NewOrder => 44.5,
            Self::Payment => 43.1,
            Self::OrderStatus | Self::StockLevel => 4.1,
            Self::Delivery => 4.2,
        }
    }
}

/// What a terminal has entered.
#[derive(Debug, Clone)]
pub struct Input {
    pub kind: Kind,
    pub(crate) warehouse: usize,
    pub(crate) district: usize,
    pub(crate) rng: Xoshiro256PlusPlus,
}

/// How a customer is found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Customer {
    Number(usize),
    LastName(usize),
}

/// A line of an order to come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) warehouse: usize,
    /// Past the last item if it is to be rolled back (clause 2.4.1.4).
    pub(crate) item: usize,
    pub(crate) quantity: u8,
}

impl Input {
    /// The same for the same seed.
    #[must_use]
    pub fn draw(kind: Kind, seed: u64, scale: Scale) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self {
            kind,
            warehouse: rng.random_range(0..scale.warehouses),
            district: rng.random_range(0..DISTRICTS),
            rng,
        }
    }

    /// By last name in 60 of 100 cases.
    pub(crate) fn customer(&mut self, scale: Scale) -> Customer {
        if self.rng.random_range(0..100) < 60 {
            let names = scale.customers.min(LAST_NAMES);
            Customer::LastName(uneven(&mut self.rng, 255, C_LAST, names))
        } else {
            Customer::Number(self.customer_number(scale))
        }
    }

    pub(crate) fn customer_number(&mut self, scale: Scale) -> usize {
        uneven(&mut self.rng, 1023, C_CUSTOMER, scale.customers)
    }

    /// Where the payer is at home: elsewhere in 15 of 100 cases (clause 2.5.1.2).
    pub(crate) fn home(&mut self, scale: Scale) -> (usize, usize) {
        if self.rng.random_range(0..100) < 85 {
            return (self.warehouse, self.district);
        }
        let warehouse = self.another_warehouse(scale);
        (warehouse, self.rng.random_range(0..DISTRICTS))
    }

    fn another_warehouse(&mut self, scale: Scale) -> usize {
        match scale.warehouses {
            1 => 0,
            all => (self.warehouse + self.rng.random_range(1..all)) % all,
        }
    }

    /// An order's lines: 5 to 15, of which 1 in 100 is from another warehouse. In 1 order of 100
    /// the last is of no item.
    pub(crate) fn lines(&mut self, scale: Scale) -> ([Wanted; MOST_LINES], usize) {
        let mut lines = [Wanted::default(); MOST_LINES];
        let count = self.rng.random_range(5..=MOST_LINES);
        for line in &mut lines[..count] {
            let is_remote = self.rng.random_range(0..100) == 0;
            *line = Wanted {
                warehouse: match is_remote {
                    true => self.another_warehouse(scale),
                    false => self.warehouse,
                },
                item: uneven(&mut self.rng, 8191, C_ITEM, scale.items),
                quantity: self.rng.random_range(1..=10),
            };
        }
        if self.rng.random_range(0..100) == 0 {
            lines[count - 1].item = scale.items;
        }
        (lines, count)
    }
}

/// `NURand` of clause 2.1.6, from 0 to `bound` - 1.
pub(crate) fn uneven(rng: &mut Xoshiro256PlusPlus, a: u64, c: u64, bound: usize) -> usize {
    let bound = bound as u64;
    let or = rng.random_range(0..=a) | rng.random_range(0..bound);
    ((or + c) % bound) as usize
}

/// The last name of a customer at the start (clause 4.3.3.1).
pub(crate) fn last_name(rng: &mut Xoshiro256PlusPlus, customer: usize) -> usize {
    match customer {
        0..LAST_NAMES => customer,
        _ => uneven(rng, 255, C_LAST, LAST_NAMES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_whole_and_has_the_least_of_each_kind() {
        let all: f64 = Kind::ALL.iter().map(|kind| kind.percent()).sum();
        assert!((all - 100.0).abs() < 1e-9);
        for kind in Kind::ALL {
            let least = match kind {
                Kind::NewOrder => 0.0,
                Kind::Payment => 43.0,
                _ => 4.0,
            };
            assert!(kind.percent() >= least, "{kind:?}");
        }
    }

    #[test]
    fn terminals_enter_what_the_specification_says() {
        let scale = Scale::small();
        let (mut remote, mut rolled_back, mut by_name, mut away, mut lines) = (0, 0, 0, 0, 0);
        for seed in 0..10_000 {
            let mut input = Input::draw(Kind::NewOrder, seed, scale);
            let (wanted, count) = input.lines(scale);
            assert!((5..=15).contains(&count));
            let wanted = &wanted[..count];
            lines += count;
            remote += (wanted.iter())
                .filter(|line| line.warehouse != input.warehouse)
                .count();
            rolled_back += usize::from(wanted[count - 1].item == scale.items);
            assert!(
                wanted[..count - 1]
                    .iter()
                    .all(|line| line.item < scale.items)
            );
            by_name += usize::from(matches!(input.customer(scale), Customer::LastName(_)));
            away += usize::from(input.home(scale).0 != input.warehouse);
        }
        let near = |count: usize, of: usize, share: f64| {
            let share_found = count as f64 / of as f64;
            assert!((share_found / share - 1.0).abs() < 0.25, "{share_found}");
        };
        near(remote, lines, 0.01);
        near(rolled_back, 10_000, 0.01);
        near(by_name, 10_000, 0.6);
        near(away, 10_000, 0.15);
    }

    #[test]
    fn some_numbers_are_drawn_far_more_often_than_others() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut counts = [0_u32; 1000];
        for _ in 0..100_000 {
            counts[uneven(&mut rng, 255, C_LAST, 1000)] += 1;
        }
        counts.sort_unstable();
        assert!(
            counts[0] < 50 && counts[999] > 300,
            "100 each if it were even"
        );
    }
}
