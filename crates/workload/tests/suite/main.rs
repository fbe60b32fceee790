//! Tests of the public interface, one module a source file. Every random number comes from a fixed
//! seed, so a test that passes once always passes; tolerances are five standard errors of the
//! sample at hand.

mod arrival;
#[cfg(feature = "injector")]
mod injector;
mod lindley;
mod mix;
mod record;
mod repeat;
mod schedule;
mod service;
mod statistics;
