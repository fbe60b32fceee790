//! Requests are served although their workers sleep, or other threads have the cores.
//!
//! Apart from `service`, and one test at a time, since these tests take the cores from others.

mod blocked;
mod symmetric;
