//! The rows that are there at first (clause 4.3.3): as many as the scale says, the same for the
//! same seed.

use std::sync::Mutex;
use std::sync::atomic::AtomicI64;

use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::draw::{LAST_NAMES, last_name};
use crate::rows::{
    Address, Customer, District, DistrictRow, History, Item, Order, OrderLine, Stock, WarehouseRow,
};
use crate::{DISTRICTS, DistrictPart, Scale, Store, Warehouse};

/// What each customer has paid and owes at first, cents.
const PAID: i64 = 1_000;
/// Of ten orders, those that are delivered.
const DELIVERED: usize = 7;

impl Store {
    /// A new store.
    ///
    /// # Panics
    /// If the scale has no warehouse, no items or no customers.
    #[must_use]
    pub fn new(scale: Scale, seed: u64) -> Self {
        assert!(scale.warehouses > 0 && scale.items > 0 && scale.customers > 0);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self {
            scale,
            items: (0..scale.items).map(|_| item(&mut rng)).collect(),
            warehouses: (0..scale.warehouses)
                .map(|number| warehouse(number, scale, &mut rng))
                .collect(),
            row_steps: 0,
        }
    }
}

/// Letters.
fn text<const LENGTH: usize>(rng: &mut impl Rng) -> [u8; LENGTH] {
    let mut text = [0; LENGTH];
    rng.fill_bytes(&mut text);
    text.map(|byte| b'a' + byte % 26)
}

/// A text that is `ORIGINAL` in 10 of 100 cases.
fn data(rng: &mut impl Rng) -> [u8; 50] {
    const ORIGINAL: &[u8; 8] = b"ORIGINAL";
    let mut data = text(rng);
    if rng.random_range(0..10) == 0 {
        let at = rng.random_range(0..=data.len() - ORIGINAL.len());
        data[at..][..ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

fn address(rng: &mut impl Rng) -> Address {
    Address {
        street: text(rng),
        city: text(rng),
        state: text(rng),
        zip: *b"123411111",
    }
}

/// A tax of at most 20 %.
fn tax(rng: &mut impl Rng) -> i64 {
    rng.random_range(0..=2_000)
}

fn item(rng: &mut impl Rng) -> Item {
    Item {
        name: text(rng),
        price: rng.random_range(100..=10_000),
        data: data(rng),
    }
}

fn stock(rng: &mut impl Rng) -> Stock {
    Stock {
        quantity: rng.random_range(10..=100),
        dist: std::array::from_fn(|_| text(rng)),
        ytd: 0,
        order_cnt: 0,
        remote_cnt: 0,
        data: data(rng),
    }
}

fn warehouse(number: usize, scale: Scale, rng: &mut Xoshiro256PlusPlus) -> Warehouse {
    let paid = PAID * scale.customers as i64;
    let mut part = |district| DistrictPart {
        row: DistrictRow {
            name: text(rng),
            address: address(rng),
            tax: tax(rng),
        },
        ytd: AtomicI64::new(paid),
        locked: Mutex::new(self::district(number, district, scale, rng)),
    };
    let districts = (0..DISTRICTS).map(&mut part).collect();
    Warehouse {
        row: WarehouseRow {
            name: text(rng),
            address: address(rng),
            tax: tax(rng),
        },
        ytd: AtomicI64::new(paid * DISTRICTS as i64),
        districts,
        stock: (0..scale.items).map(|_| Mutex::new(stock(rng))).collect(),
    }
}

fn district(
    warehouse: usize,
    district: usize,
    scale: Scale,
    rng: &mut Xoshiro256PlusPlus,
) -> District {
    let mut customers: Vec<_> = (0..scale.customers)
        .map(|number| customer(number, rng))
        .collect();
    let mut by_last_name = vec![Vec::new(); LAST_NAMES];
    for (number, customer) in customers.iter().enumerate() {
        by_last_name[customer.last].push(number as u32);
    }
    for same in &mut by_last_name {
        same.sort_by_key(|&number| customers[number as usize].first);
    }
    // Each customer has one order.
    let mut buyers: Vec<u32> = (0..scale.customers as u32).collect();
    buyers.shuffle(rng);
    let delivered = scale.customers * DELIVERED / 10;
    let mut orders = Vec::with_capacity(buyers.len());
    for (before, &buyer) in buyers.iter().enumerate() {
        let number = before as u32 + 1;
        customers[buyer as usize].latest_order = number;
        orders.push(order(
            number,
            buyer,
            before < delivered,
            (warehouse, scale),
            rng,
        ));
    }
    let history = |customer| History {
        customer,
        warehouse: warehouse as u32,
        district: district as u32,
        amount: PAID,
        data: text(rng),
    };
    District {
        next_o_id: scale.customers as u32 + 1,
        history: (0..scale.customers as u32).map(history).collect(),
        customers,
        by_last_name,
        orders,
        new_orders: (delivered as u32 + 1..=scale.customers as u32).collect(),
    }
}

fn customer(number: usize, rng: &mut Xoshiro256PlusPlus) -> Customer {
    let mut filler = [0; 500];
    rng.fill_bytes(&mut filler);
    Customer {
        first: text(rng),
        last: last_name(rng, number),
        address: address(rng),
        phone: text(rng),
        bad_credit: rng.random_range(0..10) == 0,
        discount: rng.random_range(0..=5_000),
        balance: -PAID,
        ytd_payment: PAID,
        payment_cnt: 1,
        delivery_cnt: 0,
        data: filler.map(|byte| b'a' + byte % 26),
        latest_order: 0,
    }
}

/// What was delivered at first cost nothing, so that balances are what was paid.
fn order(
    number: u32,
    customer: u32,
    is_delivered: bool,
    (warehouse, scale): (usize, Scale),
    rng: &mut Xoshiro256PlusPlus,
) -> Order {
    let count = rng.random_range(5..=15);
    let line = |_| OrderLine {
        item: rng.random_range(0..scale.items as u32),
        supply_warehouse: warehouse as u32,
        is_delivered,
        quantity: 5,
        amount: match is_delivered {
            true => 0,
            false => rng.random_range(1..=999_999),
        },
        dist_info: text(rng),
    };
    let lines = (0..count).map(line).collect();
    Order {
        number,
        customer,
        carrier: is_delivered.then(|| rng.random_range(1..=10)),
        all_local: true,
        ol_cnt: count,
        lines,
    }
}
