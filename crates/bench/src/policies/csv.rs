//! The results as CSV, for spreadsheets and plotting programs. Columns as in `docs/results.md`.

use super::results::{Policies, Run};
use crate::report::quoted;

const COLUMNS: &str = "mix,load,policy,mechanism,quantum_us,class,n,p50_us,p99_us,p999_us,p99_slowdown,throughput_rps,\
preemptions,offered_rps,saturated,refusals,unfinished,p99_us_min,p99_us_max,ideal_p99_us,predicted_p99_us,times_slower,\
times_slower_max";

/// A line for every run; an absent value is an empty field.
pub fn runs(runs: &[Run]) -> String {
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let mut text = format!("{COLUMNS}\n");
    for run in runs {
        let fields = [
            quoted(&run.mix),
            run.load.to_string(),
            quoted(&run.policy),
            quoted(&run.mechanism),
            optional(run.quantum_us),
            run.class.to_string(),
            run.n.to_string(),
            optional(run.p50_us),
            optional(run.p99_us),
            optional(run.p999_us),
            optional(run.p99_slowdown),
            run.throughput_rps.to_string(),
            run.preemptions.to_string(),
            run.offered_rps.to_string(),
            run.saturated.to_string(),
            run.refusals.to_string(),
            run.unfinished.to_string(),
            optional(run.p99_us_min),
            optional(run.p99_us_max),
            optional(run.ideal_p99_us),
            optional(run.predicted_p99_us),
            optional(run.times_slower),
            optional(run.times_slower_max),
        ];
        text += &fields.join(",");
        text.push('\n');
    }
    text
}

/// A line for every cost.
pub fn costs(results: &Policies) -> String {
    let mut text = String::from("operation,ns\n");
    for (name, ns) in &results.costs {
        text += &format!("{},{ns}\n", quoted(name));
    }
    text
}
