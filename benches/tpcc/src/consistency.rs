//! What holds between transactions: conditions of clause 3.3.2, and whether money and goods are all
//! there. Nothing may run meanwhile.

use std::sync::atomic::Ordering::Relaxed;

use crate::rows::District;
use crate::{Store, Warehouse};

/// A condition that does not hold, by its number in clause 3.3.2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("condition {condition} does not hold in warehouse {warehouse}: {what}")]
#[non_exhaustive]
pub struct Inconsistency {
    pub condition: u32,
    pub warehouse: usize,
    pub what: String,
}

impl Store {
    /// Checks the conditions 1 to 5, 8 to 10 and 12, and that stock has given out what orders have
    /// taken.
    ///
    /// # Errors
    /// The first that does not hold.
    ///
    /// # Panics
    /// If a transaction has.
    pub fn check(&self) -> Result<(), Inconsistency> {
        for (number, warehouse) in self.warehouses.iter().enumerate() {
            let fails = |(condition, what)| Inconsistency {
                condition,
                warehouse: number,
                what,
            };
            of_warehouse(warehouse).map_err(fails)?;
            for part in &warehouse.districts {
                let district = part.locked.lock().expect("no transaction panics");
                of_orders(&district).map_err(fails)?;
                of_customers(&district).map_err(fails)?;
            }
            self.of_payments(number).map_err(fails)?;
        }
        self.of_stock()
    }

    /// Conditions 8 and 9: the payments made here, by customers of any district.
    fn of_payments(&self, here: usize) -> Result<(), (u32, String)> {
        let mut paid = [0; crate::DISTRICTS];
        for warehouse in &self.warehouses {
            for part in &warehouse.districts {
                let district = part.locked.lock().expect("no transaction panics");
                for payment in &district.history {
                    if payment.warehouse as usize == here {
                        paid[payment.district as usize] += payment.amount;
                    }
                }
            }
        }
        let warehouse = &self.warehouses[here];
        same(8, "W_YTD", warehouse.ytd.load(Relaxed), paid.iter().sum())?;
        for (part, paid) in warehouse.districts.iter().zip(paid) {
            same(9, "D_YTD", part.ytd.load(Relaxed), paid)?;
        }
        Ok(())
    }

    /// Each quantity of an order made since the start came from a row of stock.
    fn of_stock(&self) -> Result<(), Inconsistency> {
        let mut ordered = vec![0; self.warehouses.len()];
        for warehouse in &self.warehouses {
            for part in &warehouse.districts {
                let district = part.locked.lock().expect("no transaction panics");
                let since = district.orders.iter().skip(self.scale.customers);
                for line in since.flat_map(|order| order.lines.iter()) {
                    ordered[line.supply_warehouse as usize] += u64::from(line.quantity);
                }
            }
        }
        for (number, (warehouse, ordered)) in self.warehouses.iter().zip(ordered).enumerate() {
            let taken = |row: &std::sync::Mutex<crate::rows::Stock>| {
                row.lock().expect("no transaction panics").ytd
            };
            let taken: u64 = warehouse.stock.iter().map(taken).sum();
            if taken != ordered {
                return Err(Inconsistency {
                    condition: 0,
                    warehouse: number,
                    what: format!("stock has given out {taken}, orders have taken {ordered}"),
                });
            }
        }
        Ok(())
    }
}

fn same(condition: u32, what: &str, is: i64, should: i64) -> Result<(), (u32, String)> {
    match is == should {
        true => Ok(()),
        false => Err((condition, format!("{what} is {is}, and should be {should}"))),
    }
}

/// Condition 1.
fn of_warehouse(warehouse: &Warehouse) -> Result<(), (u32, String)> {
    let districts = warehouse.districts.iter();
    let sum = districts.map(|part| part.ytd.load(Relaxed)).sum();
    same(1, "W_YTD", warehouse.ytd.load(Relaxed), sum)
}

/// Conditions 2 to 5.
fn of_orders(district: &District) -> Result<(), (u32, String)> {
    let last = i64::from(district.next_o_id) - 1;
    let highest = district.orders.iter().map(|order| order.number).max();
    same(2, "D_NEXT_O_ID - 1", last, highest.unwrap_or(0).into())?;
    let waiting = &district.new_orders;
    let (least, most) = (waiting.iter().min(), waiting.iter().max());
    if let Some((&least, &most)) = least.zip(most) {
        same(2, "the highest NO_O_ID", most.into(), last)?;
        let range = i64::from(most - least + 1);
        same(3, "rows of NEW-ORDER", waiting.len() as i64, range)?;
    }
    let counted: i64 = district
        .orders
        .iter()
        .map(|order| i64::from(order.ol_cnt))
        .sum();
    let lines = district.orders.iter().map(|order| order.lines.len());
    same(
        4,
        "the sum of O_OL_CNT",
        counted,
        lines.sum::<usize>() as i64,
    )?;
    let undelivered = district
        .orders
        .iter()
        .filter(|order| order.carrier.is_none());
    let undelivered = undelivered.count() as i64;
    same(
        5,
        "orders without a carrier",
        undelivered,
        waiting.len() as i64,
    )
}

/// Conditions 10 and 12: what each customer owes is what was delivered, less what was paid.
fn of_customers(district: &District) -> Result<(), (u32, String)> {
    let mut delivered = vec![0; district.customers.len()];
    for order in district
        .orders
        .iter()
        .filter(|order| order.carrier.is_some())
    {
        let amounts = order.lines.iter().filter(|line| line.is_delivered);
        delivered[order.customer as usize] += amounts.map(|line| line.amount).sum::<i64>();
    }
    let mut paid = vec![0; district.customers.len()];
    for payment in &district.history {
        paid[payment.customer as usize] += payment.amount;
    }
    for (number, customer) in district.customers.iter().enumerate() {
        same(
            10,
            "C_BALANCE",
            customer.balance,
            delivered[number] - paid[number],
        )?;
        let sum = customer.balance + customer.ytd_payment;
        same(12, "C_BALANCE + C_YTD_PAYMENT", sum, delivered[number])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scale;

    /// A condition, and what breaks it.
    type Break = (u32, fn(&mut Store));

    /// Each condition fails on what it is about.
    #[test]
    fn what_does_not_hold_is_found() {
        let breaks: [Break; 9] = [
            (1, |store| *store.warehouses[1].ytd.get_mut() += 1),
            (2, |store| district(store).next_o_id += 1),
            (2, |store| {
                district(store).new_orders.pop_back();
            }),
            (3, |store| {
                district(store).new_orders.remove(3);
            }),
            (4, |store| district(store).orders[0].ol_cnt += 1),
            (5, |store| district(store).orders[0].carrier = None),
            (10, |store| district(store).customers[7].balance += 1),
            (12, |store| district(store).customers[7].ytd_payment += 1),
            (0, |store| {
                store.warehouses[1].stock[5].get_mut().unwrap().ytd += 1;
            }),
        ];
        for (condition, change) in breaks {
            let mut store = Store::new(Scale::small(), 1);
            assert_eq!(store.check(), Ok(()));
            change(&mut store);
            let found = store.check().unwrap_err();
            assert_eq!(
                (found.condition, found.warehouse),
                (condition, 1),
                "{found}"
            );
        }
    }

    fn district(store: &mut Store) -> &mut District {
        store.warehouses[1].districts[2].locked.get_mut().unwrap()
    }
}
