//! TPC-C's five transactions (standard specification, revision 5.11) over tables in memory: the
//! work of `cargo xtask bench connections`, where ZygOS (SOSP 2017) has Silo.
//!
//! | file | |
//! |---|---|
//! | `rows` | the tables' rows, and which lock each is under |
//! | `population` | the rows that are there at first (clause 4.3) |
//! | `draw` | what terminals enter, and the specification's uneven random numbers |
//! | `transactions` | the five transactions (clause 2) |
//! | `consistency` | what holds between transactions (clause 3.3.2) |
//! | `pace` | stretching transactions to a mean time, and how their times are distributed |
//!
//! **Isolation** is two-phase locking. A transaction takes the lock of one district, then those of
//! stock rows in ascending order, and gives none back before its last change. So transactions are
//! serialisable, and no two wait for each other. Three things need no lock: what never changes (the
//! items, the taxes), additions to sums that no transaction reads (`W_YTD`, `D_YTD`), and, as
//! clause 3.4.1 allows, Stock-Level's reading of stock, row by row.
//!
//! **Preemption** is held off from a transaction's first lock to its last change
//! ([`shinjuku::without_preemption`]): others would wait for a suspended holder. Delivery is a
//! transaction a district (clause 2.7.2), so that it can be preempted between two; Stock-Level can
//! be, between two rows. These are the long ones.

#![allow(missing_docs, reason = "only this project links it")]

mod consistency;
mod draw;
mod pace;
mod population;
mod rows;
mod transactions;

use std::sync::Mutex;
use std::sync::atomic::AtomicI64;

pub use consistency::Inconsistency;
pub use draw::{Input, Kind};
pub use pace::{Distribution, Pace};
pub use transactions::Outcome;

use rows::{District, DistrictRow, Item, Stock, WarehouseRow};

/// Districts of each warehouse (clause 1.2.1).
pub const DISTRICTS: usize = 10;

/// How many rows there are at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Warehouses, at least 1.
    pub warehouses: usize,
    /// Items, and so rows of stock in each warehouse.
    pub items: usize,
    /// Customers of each district, and so orders there at first.
    pub customers: usize,
}

impl Scale {
    /// The specification's, of so many warehouses; some 70 MB each.
    #[must_use]
    pub fn standard(warehouses: usize) -> Self {
        Self {
            warehouses,
            items: 100_000,
            customers: 3_000,
        }
    }

    /// A small one for tests, of the specification's shape.
    #[must_use]
    pub fn small() -> Self {
        Self {
            warehouses: 2,
            items: 500,
            customers: 60,
        }
    }
}

/// The tables.
#[derive(Debug)]
pub struct Store {
    scale: Scale,
    items: Box<[Item]>,
    warehouses: Box<[Warehouse]>,
    /// Steps of work for each row that a transaction touches, beside the row's own.
    row_steps: u64,
}

/// A warehouse with all that belongs to it.
#[derive(Debug)]
struct Warehouse {
    row: WarehouseRow,
    /// `W_YTD`, cents.
    ytd: AtomicI64,
    districts: Box<[DistrictPart]>,
    /// By the item's number.
    stock: Box<[Mutex<Stock>]>,
}

/// A district with all that belongs to it.
#[derive(Debug)]
struct DistrictPart {
    row: DistrictRow,
    /// `D_YTD`, cents.
    ytd: AtomicI64,
    locked: Mutex<District>,
}

impl Store {
    /// The scale that it was made with.
    #[must_use]
    pub fn scale(&self) -> Scale {
        self.scale
    }
}
