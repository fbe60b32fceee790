//! Rows of the nine tables (clause 1.3), with the columns that transactions read or write, and
//! texts of the specification's lengths. Money is in cents, a rate in hundredths of a per cent.
//!
//! | under the lock of | |
//! |---|---|
//! | nothing, as they never change | `ITEM`; `WAREHOUSE` and `DISTRICT` without `YTD` |
//! | nothing, as they are only added to | `W_YTD`, `D_YTD` |
//! | the district | `D_NEXT_O_ID`; its `CUSTOMER`s, their `HISTORY`, `ORDER`, `NEW-ORDER`, `ORDER-LINE` |
//! | the row itself | `STOCK` |

use std::collections::VecDeque;

use crate::draw::LAST_NAMES;

#[derive(Debug, Clone, Copy)]
pub struct Address {
    pub street: [u8; 20],
    pub city: [u8; 20],
    pub state: [u8; 2],
    pub zip: [u8; 9],
}

/// What of a warehouse never changes.
#[derive(Debug, Clone, Copy)]
pub struct WarehouseRow {
    pub name: [u8; 10],
    pub address: Address,
    pub tax: i64,
}

/// What of a district never changes.
#[derive(Debug, Clone, Copy)]
pub struct DistrictRow {
    pub name: [u8; 10],
    pub address: Address,
    pub tax: i64,
}

#[derive(Debug, Clone, Copy)]
pub struct Item {
    pub name: [u8; 24],
    pub price: i64,
    pub data: [u8; 50],
}

/// A warehouse's stock of an item.
#[derive(Debug, Clone, Copy)]
pub struct Stock {
    pub quantity: i32,
    /// A text for each district.
    pub dist: [[u8; 24]; crate::DISTRICTS],
    pub ytd: u64,
    pub order_cnt: u32,
    pub remote_cnt: u32,
    pub data: [u8; 50],
}

/// What of a district changes.
#[derive(Debug)]
pub struct District {
    pub next_o_id: u32,
    /// By number, from 0.
    pub customers: Vec<Customer>,
    /// Numbers of the customers of each last name, by first name.
    pub by_last_name: Vec<Vec<u32>>,
    /// By number, from order 1.
    pub orders: Vec<Order>,
    /// Numbers of orders that are not delivered, the oldest first.
    pub new_orders: VecDeque<u32>,
    /// Payments of this district's customers.
    pub history: Vec<History>,
}

impl District {
    /// The customer of a last name whom the specification means: the one in the middle, by first
    /// name (clause 2.5.2.2). `None`: nobody is called that.
    pub fn named(&self, last_name: usize) -> Option<usize> {
        let all = &self.by_last_name[last_name % LAST_NAMES];
        all.get(all.len().saturating_sub(1) / 2)
            .map(|&customer| customer as usize)
    }

    /// The order of a number.
    pub fn order(&mut self, number: u32) -> &mut Order {
        &mut self.orders[number as usize - 1]
    }
}

#[derive(Debug, Clone)]
pub struct Customer {
    pub first: [u8; 16],
    /// The number of the last name.
    pub last: usize,
    pub address: Address,
    pub phone: [u8; 16],
    /// `C_CREDIT` is `BC`, not `GC`.
    pub bad_credit: bool,
    pub discount: i64,
    pub balance: i64,
    pub ytd_payment: i64,
    pub payment_cnt: u32,
    pub delivery_cnt: u32,
    pub data: [u8; 500],
    /// The number of the latest order; 0 if there is none. An index of `ORDER`, not a column.
    pub latest_order: u32,
}

/// A payment.
#[derive(Debug, Clone, Copy)]
pub struct History {
    pub customer: u32,
    /// Where it was paid.
    pub warehouse: u32,
    pub district: u32,
    pub amount: i64,
    #[expect(
        dead_code,
        reason = "written, as the specification says, and read by no transaction"
    )]
    pub data: [u8; 24],
}

#[derive(Debug, Clone)]
pub struct Order {
    pub number: u32,
    pub customer: u32,
    /// `None` before delivery.
    pub carrier: Option<u8>,
    #[expect(
        dead_code,
        reason = "written, as the specification says, and read by no transaction"
    )]
    pub all_local: bool,
    pub ol_cnt: u32,
    pub lines: Box<[OrderLine]>,
}

#[derive(Debug, Clone, Copy)]
pub struct OrderLine {
    pub item: u32,
    pub supply_warehouse: u32,
    pub is_delivered: bool,
    pub quantity: u8,
    pub amount: i64,
    #[expect(
        dead_code,
        reason = "written, as the specification says, and read by no transaction"
    )]
    pub dist_info: [u8; 24],
}
