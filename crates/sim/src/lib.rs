//! A discrete-event simulator in which the runtime's own scheduling policies schedule simulated
//! cores.
//!
//! Try a policy, a quantum, a number of cores or a rack before owning the machine; and see what
//! measured curves should be compared with: the same policy on cores whose scheduling costs
//! nothing, or costs what was measured.
//!
//! ```
//! use shinjuku_policy::{Nanos, cfcfs, single_queue};
//! use shinjuku_sim::{Scheduler, Scenario};
//! use shinjuku_workload::Mix;
//!
//! // 16 ideal workers at 70 % load; 99.5 % of the requests take 0.5 us, the rest 500 us.
//! let p99_us = |policy| {
//!     let scenario = Scenario::new(Mix::named("hi")?, 0.7, policy, 16).with_requests(50_000);
//!     Ok::<_, Box<dyn std::error::Error>>(scenario.run(1)?.tally.all().p99_ns / 1_000.0)
//! };
//! let fcfs = p99_us(Scheduler::of(cfcfs::REGISTERED))?;
//! let preemptive = p99_us(Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5)))?;
//! assert!(10.0 * preemptive < fcfs);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to simulate | use |
//! |---|---|
//! | a server under load | [`Scenario`]; several times, with confidence intervals: [`replicate`](fn@replicate) |
//! | a server by hand, event by event | [`Machine`], [`Server`] |
//! | processor sharing, exactly | [`sharing`], by [`Scheduler::sharing`] |
//! | what scheduling costs | [`Overheads`] |
//! | cores that dispatch for themselves, IX, ZygOS, Tiny Quanta | [`Layout`] |
//! | a rack behind a load-balancing switch | [`rack`] |
//! | queries that fan out | [`fanout`] |
//! | how many connections balance queues | [`imbalance`] |
//! | what a measured point should look like | [`predict`] |
//! | the SLOs that c-PRE-MQ is given | [`with_slos_alone`] |
//! | a sweep from a file | [`plan`], [`sweep`], and the command `shinjuku-sim` |
//! | queueing theory | [`theory`] |
//!
//! Pass a policy of your own to [`Scheduler::own`], and a balancer of your own to
//! [`rack::RackScenario::run_with`]. Every policy is called through [`shinjuku_policy::Verified`],
//! as in the runtime: with its checks and its progress rule.
//!
//! **Reproducible.** Time is in whole nanoseconds, events at the same time have a fixed order, and
//! every random number comes from the seed. **Bounded.** A simulation's memory does not grow with
//! simulated time.
#![forbid(unsafe_code)]

mod calendar;
mod error;
mod estimate;
pub mod fanout;
pub mod imbalance;
mod layout;
pub mod loops;
pub mod machine;
pub mod overheads;
pub mod plan;
mod predict;
mod presence;
pub mod rack;
pub mod replicate;
mod request;
pub mod scenario;
pub mod scheduler;
pub mod server;
pub mod sharing;
mod source;
pub mod sweep;
pub mod tally;
pub mod theory;

pub use error::SimError;
pub use estimate::Estimate;
pub use layout::Layout;
pub use loops::Loops;
pub use machine::Machine;
pub use overheads::Overheads;
pub use predict::{Predicted, Prediction, REQUESTS as PREDICT_REQUESTS, predict, with_slos_alone};
pub use replicate::{Replicated, Sample, Until, replicate};
pub use request::{Outcome, Request};
pub use scenario::{Run, Scenario};
pub use scheduler::Scheduler;
pub use server::{Server, Shape};
pub use tally::{Figures, Measure, Tally};
