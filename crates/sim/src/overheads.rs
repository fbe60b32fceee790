//! What scheduling costs. The default is zero: the ideal system.
//!
//! A measured set comes from the `costs` of a `cargo xtask bench` run: a map from operation to
//! nanoseconds in its `results.json`. Names that are not in this table belong to other measurements
//! and are ignored; a missing name costs nothing.
//!
//! | name in `costs` | field |
//! |---|---|
//! | `sim/network` | [`network_ns`](Overheads::network_ns) |
//! | `sim/dispatch` | [`dispatch_ns`](Overheads::dispatch_ns) |
//! | `sim/message` | [`message_ns`](Overheads::message_ns) |
//! | `sim/switch` | [`switch_ns`](Overheads::switch_ns) |
//! | `sim/preempt-send` | [`preempt_send_ns`](Overheads::preempt_send_ns) |
//! | `sim/preempt-delay` | [`preempt_delay_ns`](Overheads::preempt_delay_ns) |
//! | `sim/preempt-receive` | [`preempt_receive_ns`](Overheads::preempt_receive_ns) |
//! | `sim/probe-interval` | [`probe_interval_ns`](Overheads::probe_interval_ns) |
//! | `sim/late-share` | [`late_share`](Overheads::late_share) (a share, not ns) |
//! | `sim/late` | [`late_ns`](Overheads::late_ns) |
//! | `sim/steal` | [`steal_ns`](Overheads::steal_ns) |
//! | `sim/interrupt` | [`interrupt_ns`](Overheads::interrupt_ns) |
//! | `sim/away-every` | [`away_every_ns`](Overheads::away_every_ns) |
//! | `sim/away` | [`away_ns`](Overheads::away_ns) |
//!
//! The last four are those of the layouts without a dispatcher of their own ([`crate::Layout`]).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::SimError;

/// The most that a cost may be: a second.
const MOST_NS: u64 = 1_000_000_000;

/// The costs of a server's parts, in ns, each at most a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overheads {
    /// The networker's time per request: one request at a time, before the dispatcher sees it.
    pub network_ns: u64,
    /// The dispatcher's time to hand out one request; the dispatcher does one thing at a time.
    pub dispatch_ns: u64,
    /// A message between two cores, one way: networker to dispatcher, dispatcher to worker, worker
    /// to dispatcher.
    pub message_ns: u64,
    /// The worker's time to start or resume a request.
    pub switch_ns: u64,
    /// The dispatcher's time to send one preemption.
    pub preempt_send_ns: u64,
    /// From the end of sending until the worker can take the preemption, beyond a message.
    pub preempt_delay_ns: u64,
    /// The worker's time to take a preemption and save the request.
    pub preempt_receive_ns: u64,
    /// The time between two probes in the request's code: a preemption waits a uniform share of it.
    pub probe_interval_ns: u64,
    /// The share of preemptions that are late, 0 to 1.
    pub late_share: f64,
    /// How late the late preemptions are.
    pub late_ns: u64,
    /// An idle loop's time to take over the turn of another.
    pub steal_ns: u64,
    /// The time that an interrupt takes from a loop within a request, beside what it is for.
    pub interrupt_ns: u64,
    /// The mean time between bursts of other programs' work on a core; 0: none come.
    pub away_every_ns: u64,
    /// The mean length of such a burst, exponentially distributed.
    pub away_ns: u64,
}

impl Overheads {
    /// No cost at all.
    pub const IDEAL: Self = Self {
        network_ns: 0,
        dispatch_ns: 0,
        message_ns: 0,
        switch_ns: 0,
        preempt_send_ns: 0,
        preempt_delay_ns: 0,
        preempt_receive_ns: 0,
        probe_interval_ns: 0,
        late_share: 0.0,
        late_ns: 0,
        steal_ns: 0,
        interrupt_ns: 0,
        away_every_ns: 0,
        away_ns: 0,
    };

    /// The costs with the names of the [module](self)'s table.
    ///
    /// # Errors
    /// [`SimError::Parameter`] if one is negative, not finite or above a second, or the share
    /// above 1.
    pub fn from_costs(costs: &BTreeMap<String, f64>) -> Result<Self, SimError> {
        let cost = |name: &str| match costs.get(name) {
            None => Ok(0.0),
            Some(ns) if (0.0..=1e9).contains(ns) => Ok(*ns),
            Some(ns) => Err(SimError::parameter(
                "a cost of the costs map",
                format!("{name} = {ns}"),
                "it must lie between 0 and 1e9 ns",
            )),
        };
        let ns = |name: &str| cost(name).map(|ns| ns.round() as u64);
        Self {
            network_ns: ns("sim/network")?,
            dispatch_ns: ns("sim/dispatch")?,
            message_ns: ns("sim/message")?,
            switch_ns: ns("sim/switch")?,
            preempt_send_ns: ns("sim/preempt-send")?,
            preempt_delay_ns: ns("sim/preempt-delay")?,
            preempt_receive_ns: ns("sim/preempt-receive")?,
            probe_interval_ns: ns("sim/probe-interval")?,
            late_share: cost("sim/late-share")?,
            late_ns: ns("sim/late")?,
            steal_ns: ns("sim/steal")?,
            interrupt_ns: ns("sim/interrupt")?,
            away_every_ns: ns("sim/away-every")?,
            away_ns: ns("sim/away")?,
        }
        .checked()
    }

    /// The `costs` of a `results.json`.
    ///
    /// # Errors
    /// The file cannot be read or has no map `costs` of numbers; or as
    /// [`from_costs`](Self::from_costs).
    pub fn from_results(path: &Path) -> Result<Self, SimError> {
        #[derive(Deserialize)]
        struct Results {
            costs: BTreeMap<String, f64>,
        }
        let text = std::fs::read_to_string(path).map_err(|cause| SimError::Read {
            path: path.to_owned(),
            cause,
        })?;
        let results: Results = serde_json::from_str(&text).map_err(|error| SimError::Costs {
            path: path.to_owned(),
            what: format!("no map `costs` of operations to ns: {error}"),
        })?;
        Self::from_costs(&results.costs)
    }

    /// Sums of times stay far from overflow with costs of a second at most.
    pub(crate) fn checked(self) -> Result<Self, SimError> {
        let Self {
            network_ns,
            dispatch_ns,
            message_ns,
            switch_ns,
            preempt_send_ns,
            preempt_delay_ns,
            preempt_receive_ns,
            probe_interval_ns,
            late_share,
            late_ns,
            steal_ns,
            interrupt_ns,
            away_every_ns,
            away_ns,
        } = self;
        let costs = [
            ("network_ns", network_ns),
            ("dispatch_ns", dispatch_ns),
            ("message_ns", message_ns),
            ("switch_ns", switch_ns),
            ("preempt_send_ns", preempt_send_ns),
            ("preempt_delay_ns", preempt_delay_ns),
            ("preempt_receive_ns", preempt_receive_ns),
            ("probe_interval_ns", probe_interval_ns),
            ("late_ns", late_ns),
            ("steal_ns", steal_ns),
            ("interrupt_ns", interrupt_ns),
            ("away_every_ns", away_every_ns),
            ("away_ns", away_ns),
        ];
        if let Some((name, ns)) = costs.into_iter().find(|(_, ns)| *ns > MOST_NS) {
            let expected = "it must be at most 1e9 ns";
            return Err(SimError::parameter(name, ns, expected));
        }
        if !(0.0..=1.0).contains(&late_share) {
            let expected = "it must lie between 0 and 1";
            return Err(SimError::parameter("late_share", late_share, expected));
        }
        if away_every_ns > 0 && away_ns >= away_every_ns {
            let expected = "bursts must be shorter than the time between them";
            return Err(SimError::parameter("away_ns", away_ns, expected));
        }
        Ok(self)
    }
}
