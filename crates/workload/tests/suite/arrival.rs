use std::io::Write;

use serde::{Deserialize, Serialize};
use shinjuku_workload::{Arrivals, WorkloadError};

use crate::statistics::{assert_mean, assert_share, rng};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    arrivals: Arrivals,
}

fn gaps(arrivals: &Arrivals, mean_gap_ns: f64, count: usize) -> Vec<f64> {
    let mut gaps = arrivals.gaps(mean_gap_ns).unwrap();
    let mut rng = rng(4);
    (0..count).map(|_| gaps.next_gap_ns(&mut rng)).collect()
}

fn trace_of(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn poisson_gaps_are_exponential() {
    let gaps = gaps(&Arrivals::poisson(), 200.0, 100_000);
    assert_mean("gaps", &gaps, 200.0);
    let squares: Vec<_> = gaps.iter().map(|gap| gap * gap).collect();
    assert_mean("squared gaps", &squares, 80_000.0);
    let long = gaps.iter().filter(|&&gap| gap > 400.0).count();
    assert_share("long gaps", long, gaps.len(), (-2.0_f64).exp());
}

#[test]
fn deterministic_gaps_are_equal() {
    assert_eq!(gaps(&Arrivals::deterministic(), 12.5, 4), [12.5; 4]);
}

/// Number of arrivals in a window of a two-state MMPP: mean and variance in closed form (Heffes and
/// Lucantoni, 1986).
#[test]
fn bursts_have_the_counts_of_theory() {
    let (ratio, fraction, requests) = (10.0, 0.1, 20.0);
    let arrivals = Arrivals::mmpp(ratio, fraction, requests).unwrap();
    let window = 40.0;
    let mut rng = rng(5);
    let counts: Vec<_> = (0..4_000)
        .map(|_| {
            let mut gaps = arrivals.gaps(1.0).unwrap();
            let mut at = gaps.next_gap_ns(&mut rng);
            let mut count = 0;
            while at <= window {
                count += 1;
                at += gaps.next_gap_ns(&mut rng);
            }
            f64::from(count)
        })
        .collect();
    assert_mean("count", &counts, window);

    let calm = 1.0 / 1.9;
    let burst = ratio * calm;
    let end_burst = burst / requests;
    let end_calm = end_burst * fraction / (1.0 - fraction);
    let change = end_burst + end_calm;
    let excess = 2.0 * end_burst * end_calm * (burst - calm).powi(2)
        / (change.powi(2) * (calm * end_burst + burst * end_calm));
    let settled = 1.0 - (1.0 - (-change * window).exp()) / (change * window);
    let dispersion = 1.0 + excess * settled;
    assert!(
        dispersion > 5.0,
        "the test should tell bursts from a Poisson process: {dispersion}"
    );

    let squares: Vec<_> = counts
        .iter()
        .map(|count| (count - window).powi(2))
        .collect();
    let (variance, error) = crate::statistics::mean_and_error(&squares);
    let expected = dispersion * window;
    assert!(
        (variance - expected).abs() < 5.0 * error,
        "{variance}, not {expected}"
    );
    assert!(error < 0.05 * expected, "{error} of {expected}");
}

/// Over many bursts, the start no longer shows: the stays themselves must have the right shares.
#[test]
fn bursts_keep_the_rate_in_the_long_run() {
    let arrivals = Arrivals::mmpp(10.0, 0.1, 2.0).unwrap();
    let mut rng = rng(9);
    let means: Vec<_> = (0..150)
        .map(|_| {
            let mut gaps = arrivals.gaps(300.0).unwrap();
            (0..2_000).map(|_| gaps.next_gap_ns(&mut rng)).sum::<f64>() / 2_000.0
        })
        .collect();
    assert_mean("mean gap", &means, 300.0);
}

#[test]
fn a_trace_is_replayed_in_a_circle_and_at_any_rate() {
    let file = trace_of("# gaps, ns\n100\n0\n500\n");
    let trace = Arrivals::trace(file.path()).unwrap();
    assert_eq!(trace.recorded_mean_gap_ns(), Some(200.0));
    assert_eq!(gaps(&trace, 200.0, 5), [100.0, 0.0, 500.0, 100.0, 0.0]);
    assert_eq!(gaps(&trace, 100.0, 3), [50.0, 0.0, 250.0]);
    assert_eq!(Arrivals::poisson().recorded_mean_gap_ns(), None);
}

#[test]
fn another_rate_stretches_the_same_gaps() {
    for arrivals in [Arrivals::poisson(), Arrivals::mmpp(5.0, 0.2, 10.0).unwrap()] {
        let (fast, slow) = (gaps(&arrivals, 100.0, 1_000), gaps(&arrivals, 400.0, 1_000));
        assert!(
            fast.iter()
                .zip(&slow)
                .all(|(fast, slow)| (fast * 4.0 - slow).abs() <= slow * 1e-12)
        );
    }
}

#[test]
fn parameters_and_files_are_checked() {
    for (arrivals, named) in [
        (Arrivals::mmpp(0.5, 0.1, 10.0), "rate_ratio"),
        (Arrivals::mmpp(10.0, 1.0, 10.0), "burst_fraction"),
        (Arrivals::mmpp(10.0, 0.1, 1e-9), "burst_requests"),
        (Arrivals::mmpp(10.0, f64::NAN, 10.0), "burst_fraction"),
    ] {
        match arrivals {
            Err(WorkloadError::Parameter { what, .. }) => assert_eq!(what, named),
            other => panic!("{named}: {other:?}"),
        }
    }
    for gap in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Arrivals::poisson().gaps(gap).is_err(), "{gap}");
    }
    let file = trace_of("1\n-2\n");
    let error = Arrivals::trace(file.path()).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}:2: \"-2\"", file.path().display())),
        "{error}"
    );
    let still = trace_of("0\n0\n");
    let error = Arrivals::trace(still.path()).unwrap_err().to_string();
    assert!(error.contains("mean gap of the trace"), "{error}");
}

#[test]
fn arrivals_survive_toml() {
    let file = trace_of("1\n2\n");
    for arrivals in [
        Arrivals::poisson(),
        Arrivals::deterministic(),
        Arrivals::mmpp(10.0, 0.1, 100.0).unwrap(),
        Arrivals::trace(file.path()).unwrap(),
    ] {
        let plan = Plan { arrivals };
        let text = toml::to_string(&plan).unwrap();
        assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan, "{text}");
    }
    let error =
        toml::from_str::<Plan>(r#"arrivals = { kind = "poisson", rate = 1.0 }"#).unwrap_err();
    assert!(error.to_string().contains("rate"), "{error}");
}
