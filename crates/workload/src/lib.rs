//! Workloads of the scheduling literature: what arrives when, how long it runs, and the figures
//! that sum up a run.
//!
//! Everything that measures or simulates the runtime draws its requests from here, so that
//! contenders meet the very same ones. A [`Mix`] describes the classes of requests; a [`Schedule`]
//! is drawn from it once; the server under test leaves one [`Record`] a request; a [`Summary`] sums
//! them up.
//!
//! ```
//! use shinjuku_workload::{Length, Mix, Schedule, ScheduleConfig, Summary, lindley};
//!
//! // 99.5 % of the requests take 0.5 us, the rest 500 us. Two workers, 70 % of their capacity.
//! let mix = Mix::named("hi")?;
//! let config = ScheduleConfig::at_load(0.7, 2, Length::Requests(20_000)).with_seed(7);
//! let schedule = Schedule::generate(&mix, &config)?;
//!
//! // Served first come, first served, the short ones wait behind the long ones.
//! let records = lindley::records(schedule.arrivals(), 2);
//! let summary = Summary::of(&mix, &records)?;
//! let short = summary.class(Mix::SHORT).expect("most are short");
//! assert!(short.p99_slowdown > 100.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module or type | what it holds |
//! |---|---|
//! | [`ServiceTime`] | distributions of service times, with their moments |
//! | [`Arrivals`], [`Gaps`] | Poisson, deterministic, bursty and recorded arrivals |
//! | [`Mix`], [`Class`] | classes of requests; the named mixes of the literature |
//! | [`Schedule`] | all arrivals of a run, drawn from a seed |
//! | [`Record`], [`Summary`] | latency, slowdown and throughput of a run |
//! | [`repeat`] | medians, spread and paired ratios over repeated runs |
//! | `injector` | with the feature of this name: a schedule as a transport of the runtime's |
//! | [`lindley`] | exact first-come-first-served baselines: Lindley, Kiefer and Wolfowitz, Pollaczek and Khinchine |

#![forbid(unsafe_code)]

mod arrival;
mod error;
#[cfg(feature = "injector")]
pub mod injector;
mod mix;
mod record;
mod schedule;
mod service;
mod values_file;

pub mod lindley;
pub mod repeat;

pub use arrival::{Arrivals, Gaps};
pub use error::WorkloadError;
pub use mix::{Class, Mix};
pub use record::{ClassFigures, Figures, Record, RecordError, Summary, nearest_rank};
pub use schedule::{Arrival, Length, Offered, Schedule, ScheduleConfig};
pub use service::ServiceTime;
