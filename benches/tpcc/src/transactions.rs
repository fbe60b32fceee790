//! The five transactions (clauses 2.4 to 2.8).
//!
//! Each is one function that takes its locks, reads, changes and gives the locks back. What a
//! terminal would be shown goes into a checksum, so that the reads are made.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

use rand::RngExt;
use shinjuku::{preempt_point, without_preemption};
use shinjuku_examples::work::{spin, spin_with_probes};

use crate::draw::{Customer as By, Input, Kind, MOST_LINES, Wanted};
use crate::rows::{Customer, District, History, Item, Order, OrderLine, Stock};
use crate::{DISTRICTS, Store, Warehouse};

/// So many of the latest orders count for Stock-Level (clause 2.8.2.2).
const LATEST: usize = 20;

/// One hundred per cent, as rates are counted.
const WHOLE: i64 = 10_000;

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Whether its changes are made; else there are none, as an item was unknown (clause 2.4.2.3).
    pub is_committed: bool,
    /// How many rows it read, changed or made.
    pub rows: u32,
    /// The sum of what the terminal shows.
    pub shown: u64,
}

/// A transaction under way.
struct Run<'a> {
    store: &'a Store,
    rows: u32,
    shown: u64,
}

/// A row of stock: the warehouse and the item.
type StockKey = (usize, usize);

/// Waits for a lock. Who holds one is not preempted, so the wait is short.
fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().expect("no transaction panics")
}

impl Store {
    /// Runs a transaction, on any thread, or in a context.
    #[must_use]
    pub fn run(&self, mut input: Input) -> Outcome {
        let mut run = Run {
            store: self,
            rows: 0,
            shown: 0,
        };
        let is_committed = match input.kind {
            Kind::NewOrder => without_preemption(|| run.new_order(&mut input)),
            Kind::Payment => without_preemption(|| run.payment(&mut input)),
            Kind::OrderStatus => without_preemption(|| run.order_status(&mut input)),
            Kind::Delivery => run.delivery(&mut input),
            Kind::StockLevel => run.stock_level(&mut input),
        };
        Outcome {
            is_committed,
            rows: run.rows,
            shown: run.shown,
        }
    }

    fn warehouse(&self, number: usize) -> &Warehouse {
        &self.warehouses[number]
    }

    /// The rows of stock that an order needs, each once, in ascending order: so no two orders wait
    /// for each other.
    fn hold_stock(&self, wanted: &[Wanted]) -> Vec<(StockKey, MutexGuard<'_, Stock>)> {
        let mut keys: Vec<StockKey> = wanted
            .iter()
            .map(|line| (line.warehouse, line.item))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let held = |key: StockKey| (key, hold(&self.warehouses[key.0].stock[key.1]));
        keys.into_iter().map(held).collect()
    }
}

impl Run<'_> {
    /// A row, which takes as long as [`Pace`](crate::Pace) says.
    fn touch(&mut self) {
        self.rows += 1;
        if self.store.row_steps > 0 {
            spin(self.store.row_steps);
        }
    }

    /// A row read under no lock but its own.
    fn touch_unlocked(&mut self) {
        self.rows += 1;
        if self.store.row_steps > 0 {
            spin_with_probes(self.store.row_steps);
        }
        preempt_point();
    }

    fn show(&mut self, value: i64) {
        self.shown = self.shown.rotate_left(5) ^ value as u64;
    }

    fn show_text(&mut self, text: &[u8]) {
        let sum = text.iter().map(|&byte| i64::from(byte)).sum();
        self.show(sum);
    }

    fn show_customer(&mut self, customer: &Customer) {
        for text in [
            &customer.first[..],
            &customer.phone,
            &customer.address.street,
            &customer.address.city,
            &customer.address.state,
            &customer.address.zip,
        ] {
            self.show_text(text);
        }
        self.show(customer.last as i64);
        self.show(i64::from(customer.bad_credit));
        self.show(customer.discount);
        self.show(customer.balance);
    }

    /// Finds a customer. By a last name that nobody has, the first one is meant.
    fn find(&mut self, district: &District, by: By) -> usize {
        match by {
            By::Number(number) => number,
            By::LastName(name) => {
                self.touch();
                district.named(name).unwrap_or(0)
            }
        }
    }

    /// Clause 2.4: all is read before anything is changed, so a rollback has nothing to undo.
    fn new_order(&mut self, input: &mut Input) -> bool {
        let store = self.store;
        let customer = input.customer_number(store.scale);
        let (wanted, count) = input.lines(store.scale);
        let wanted = &wanted[..count];
        let home = store.warehouse(input.warehouse);
        let part = &home.districts[input.district];
        let mut district = hold(&part.locked);
        self.touch();
        self.touch();
        let buyer = &district.customers[customer];
        let discount = buyer.discount;
        self.show_customer(buyer);
        self.touch();
        let mut items: [Option<&Item>; MOST_LINES] = [None; MOST_LINES];
        for (line, item) in wanted.iter().zip(&mut items) {
            self.touch();
            let Some(found) = store.items.get(line.item) else {
                return false;
            };
            *item = Some(found);
        }
        let mut stock = store.hold_stock(wanted);
        let mut total = 0;
        let mut lines = Vec::with_capacity(count);
        for (line, item) in wanted.iter().zip(items.iter().flatten()) {
            let at = (line.warehouse, line.item);
            let found = stock.iter_mut().find(|(held, _)| *held == at);
            let (_, row) = found.expect("all are held");
            let is_remote = line.warehouse != input.warehouse;
            lines.push(self.order_line(line, item, row, (input.district, is_remote)));
            total += lines[lines.len() - 1].amount;
        }
        let taxed = WHOLE + home.row.tax + part.row.tax;
        self.show(total * (WHOLE - discount) / WHOLE * taxed / WHOLE);
        let number = district.next_o_id;
        district.next_o_id += 1;
        district.customers[customer].latest_order = number;
        district.orders.push(Order {
            number,
            customer: customer as u32,
            carrier: None,
            all_local: wanted.iter().all(|line| line.warehouse == input.warehouse),
            ol_cnt: count as u32,
            lines: lines.into_boxed_slice(),
        });
        district.new_orders.push_back(number);
        self.touch();
        self.touch();
        true
    }

    /// Takes a line's quantity out of stock.
    fn order_line(
        &mut self,
        line: &Wanted,
        item: &Item,
        stock: &mut Stock,
        (district, is_remote): (usize, bool),
    ) -> OrderLine {
        self.touch();
        let quantity = i32::from(line.quantity);
        stock.quantity -= quantity;
        if stock.quantity < 10 {
            stock.quantity += 91;
        }
        stock.ytd += u64::from(line.quantity);
        stock.order_cnt += 1;
        stock.remote_cnt += u32::from(is_remote);
        let is_original = |data: &[u8]| data.windows(8).any(|text| text == b"ORIGINAL");
        self.show(i64::from(
            is_original(&item.data) && is_original(&stock.data),
        ));
        self.show_text(&item.name);
        self.show(i64::from(stock.quantity));
        self.touch();
        OrderLine {
            item: line.item as u32,
            supply_warehouse: line.warehouse as u32,
            is_delivered: false,
            quantity: line.quantity,
            amount: i64::from(line.quantity) * item.price,
            dist_info: stock.dist[district],
        }
    }

    /// Clause 2.5. The sums of warehouse and district are only added to.
    fn payment(&mut self, input: &mut Input) -> bool {
        let store = self.store;
        let (c_warehouse, c_district) = input.home(store.scale);
        let by = input.customer(store.scale);
        let amount = input.rng.random_range(100..=500_000);
        let warehouse = store.warehouse(input.warehouse);
        let part = &warehouse.districts[input.district];
        let mut district = hold(&store.warehouse(c_warehouse).districts[c_district].locked);
        warehouse.ytd.fetch_add(amount, Relaxed);
        part.ytd.fetch_add(amount, Relaxed);
        for (name, address) in [
            (&warehouse.row.name, &warehouse.row.address),
            (&part.row.name, &part.row.address),
        ] {
            self.touch();
            self.show_text(name);
            self.show_text(&address.street);
            self.show_text(&address.city);
            self.show_text(&address.state);
            self.show_text(&address.zip);
        }
        let number = self.find(&district, by);
        let customer = &mut district.customers[number];
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payment_cnt += 1;
        if customer.bad_credit {
            let place = [c_district, c_warehouse, input.district, input.warehouse];
            note_payment(&mut customer.data, number, place, amount);
            self.show_text(&customer.data[..200]);
        }
        self.touch();
        self.show_customer(customer);
        let mut data = [b' '; 24];
        data[..10].copy_from_slice(&warehouse.row.name);
        data[14..].copy_from_slice(&part.row.name);
        district.history.push(History {
            customer: number as u32,
            warehouse: input.warehouse as u32,
            district: input.district as u32,
            amount,
            data,
        });
        self.touch();
        true
    }

    /// Clause 2.6.
    fn order_status(&mut self, input: &mut Input) -> bool {
        let store = self.store;
        let by = input.customer(store.scale);
        let part = &store.warehouse(input.warehouse).districts[input.district];
        let mut district = hold(&part.locked);
        let number = self.find(&district, by);
        self.touch();
        let customer = &district.customers[number];
        self.show_customer(customer);
        let latest = customer.latest_order;
        self.touch();
        let order = district.order(latest);
        self.show(i64::from(order.number));
        self.show(i64::from(order.carrier.unwrap_or(0)));
        for line in &order.lines {
            self.touch();
            self.show(i64::from(line.item));
            self.show(i64::from(line.supply_warehouse));
            self.show(i64::from(line.quantity));
            self.show(line.amount);
            self.show(i64::from(line.is_delivered));
        }
        true
    }

    /// Clause 2.7, a transaction of the database for each district.
    fn delivery(&mut self, input: &mut Input) -> bool {
        let carrier = input.rng.random_range(1..=10);
        for district in 0..DISTRICTS {
            without_preemption(|| self.deliver_one(input.warehouse, district, carrier));
            preempt_point();
        }
        true
    }

    /// The oldest order of a district, if there is one.
    fn deliver_one(&mut self, warehouse: usize, district: usize, carrier: u8) {
        let part = &self.store.warehouse(warehouse).districts[district];
        let mut district = hold(&part.locked);
        self.touch();
        let Some(number) = district.new_orders.pop_front() else {
            return;
        };
        self.touch();
        let order = district.order(number);
        order.carrier = Some(carrier);
        let mut total = 0;
        for line in &mut order.lines {
            self.touch();
            line.is_delivered = true;
            total += line.amount;
        }
        let customer = order.customer as usize;
        self.touch();
        let customer = &mut district.customers[customer];
        customer.balance += total;
        customer.delivery_cnt += 1;
        self.show(i64::from(number));
    }

    /// Clause 2.8: the latest orders' items under the district's lock, their stock row by row.
    fn stock_level(&mut self, input: &mut Input) -> bool {
        let threshold = input.rng.random_range(10..=20);
        let warehouse = self.store.warehouse(input.warehouse);
        let part = &warehouse.districts[input.district];
        let mut items = without_preemption(|| {
            let district = hold(&part.locked);
            self.touch();
            let latest = district.orders.iter().rev().take(LATEST);
            let lines = latest.flat_map(|order| order.lines.iter());
            lines.map(|line| line.item).collect::<Vec<_>>()
        });
        items.sort_unstable();
        items.dedup();
        let mut low = 0;
        for item in items {
            let quantity = without_preemption(|| hold(&warehouse.stock[item as usize]).quantity);
            low += i64::from(quantity < threshold);
            self.touch_unlocked();
        }
        self.show(low);
        true
    }
}

/// What is kept of a payment of a customer with bad credit (clause 2.5.2.2): it goes before what is
/// there, of which the end is lost.
fn note_payment(data: &mut [u8; 500], customer: usize, place: [usize; 4], amount: i64) {
    let [c_district, c_warehouse, district, warehouse] = place.map(|value| value as u64);
    let fields = [
        customer as u64,
        c_district,
        c_warehouse,
        district,
        warehouse,
        amount as u64,
    ];
    let entry: Vec<u8> = fields.into_iter().flat_map(u64::to_le_bytes).collect();
    data.copy_within(..500 - entry.len(), entry.len());
    data[..entry.len()].copy_from_slice(&entry);
}
