use std::io::Write;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use shinjuku_workload::{ServiceTime, WorkloadError};

use crate::statistics::{assert_mean, assert_share, rng};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    service: ServiceTime,
}

fn parse(service: &str) -> Result<ServiceTime, toml::de::Error> {
    toml::from_str(&format!("service = {service}")).map(|plan: Plan| plan.service)
}

fn file_of(text: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text).unwrap();
    file
}

/// The moments are worked out by hand. The squares of a sample have the second moment as their
/// mean.
#[test]
fn moments_are_those_of_the_literature_and_of_samples() {
    let file = file_of(b"# ns\n100\n\n 300.5\n100\n");
    let third = 1.0 / 3.0;
    let cases = [
        ("fixed", ServiceTime::fixed(1.5), 1_500.0, 2.25e6),
        ("exponential", ServiceTime::exponential(2.0), 2_000.0, 8e6),
        ("lognormal", ServiceTime::lognormal(3.0, 1.0), 3_000.0, 10e6),
        (
            "bimodal",
            ServiceTime::bimodal(1.0, 100.0, 0.5),
            50_500.0,
            5_000.5e6,
        ),
        (
            "trimodal",
            ServiceTime::trimodal([1.0, 10.0, 100.0]),
            37_000.0,
            third * 10_101e6,
        ),
        // Least value 0.9 us, second moment 0.81 * 10 / 8.
        ("pareto", ServiceTime::pareto(1.0, 10.0), 1_000.0, 1.0125e6),
        ("tpcc", Ok(ServiceTime::tpcc()), 19_068.0, 901.4956e6),
        // Weights 1, 1/2, 1/3 over 11/6.
        (
            "zipf",
            ServiceTime::zipf(vec![1.0, 4.0, 9.0], 1.0),
            6_000.0 / 11.0 * 6.0,
            6e6 / 11.0 * 36.0,
        ),
        (
            "empirical",
            ServiceTime::empirical(file.path()),
            500.5 / 3.0,
            110_300.25 / 3.0,
        ),
    ];
    for (name, service, mean, second_moment) in cases {
        let service = service.unwrap();
        assert!(
            (service.mean_ns() / mean - 1.0).abs() < 1e-12,
            "{name}: {}",
            service.mean_ns()
        );
        let ratio = service.second_moment() / second_moment;
        assert!(
            (ratio - 1.0).abs() < 1e-12,
            "{name}: {}",
            service.second_moment()
        );
        let variation = second_moment / (mean * mean) - 1.0;
        assert!(
            (service.squared_variation() - variation).abs() < 1e-9,
            "{name}"
        );

        let mut rng = rng(1);
        let sample: Vec<_> = (0..100_000).map(|_| service.sample(&mut rng)).collect();
        assert_mean(name, &sample, mean);
        let squares: Vec<_> = sample.iter().map(|ns| ns * ns).collect();
        assert_mean(name, &squares, second_moment);
    }
}

/// Sample moments say little about a heavy tail: look at quantiles.
#[test]
fn heavy_tails_have_the_right_quantiles() {
    let n = 50_000;
    let above = |service: &ServiceTime, bound: f64| {
        let mut rng = rng(2);
        (0..n).filter(|_| service.sample(&mut rng) > bound).count()
    };
    // The median of a lognormal is mean / sqrt(1 + variation squared).
    let lognormal = ServiceTime::lognormal(1.0, 10.0).unwrap();
    assert_eq!(lognormal.squared_variation().round(), 100.0);
    let median = 1_000.0 / 101_f64.sqrt();
    assert_share("lognormal", above(&lognormal, median), n, 0.5);
    // One standard deviation of the logarithm higher: 15.87 %.
    let upper = median * 101_f64.ln().sqrt().exp();
    assert_share("lognormal", above(&lognormal, upper), n, 0.158_655);

    // Least value mean / 3; the tail is (least / x)^1.5.
    let pareto = ServiceTime::pareto(3.0, 1.5).unwrap();
    assert_eq!(pareto.second_moment(), f64::INFINITY);
    assert_eq!(pareto.squared_variation(), f64::INFINITY);
    assert_eq!(above(&pareto, 999.999), n);
    assert_share("pareto", above(&pareto, 4_000.0), n, 0.125);
    assert_eq!(
        ServiceTime::pareto(3.0, 2.0).unwrap().second_moment(),
        f64::INFINITY
    );
}

#[test]
fn discrete_laws_draw_each_value_by_its_weight() {
    let n = 50_000;
    let cases = [
        (
            ServiceTime::bimodal(0.5, 500.0, 0.005),
            vec![(500.0, 0.995), (500_000.0, 0.005)],
        ),
        (
            ServiceTime::zipf(vec![5.0, 3.0, 7.0], 2.0),
            vec![
                (5_000.0, 36.0 / 49.0),
                (3_000.0, 9.0 / 49.0),
                (7_000.0, 4.0 / 49.0),
            ],
        ),
        (
            Ok(ServiceTime::tpcc()),
            vec![
                (5_700.0, 0.44),
                (6_000.0, 0.04),
                (20_000.0, 0.44),
                (88_000.0, 0.04),
                (100_000.0, 0.04),
            ],
        ),
    ];
    for (service, values) in cases {
        let service = service.unwrap();
        let mut rng = rng(3);
        let sample: Vec<_> = (0..n).map(|_| service.sample(&mut rng)).collect();
        let mut known = 0;
        for (value, share) in values {
            let hits = sample.iter().filter(|&&ns| ns == value).count();
            assert_share("a value", hits, n, share);
            known += hits;
        }
        assert_eq!(known, n);
    }
}

#[test]
fn toml_names_are_those_of_the_constructors() {
    let cases = [
        (r#"{ kind = "fixed", us = 1 }"#, ServiceTime::fixed(1.0)),
        (
            r#"{ kind = "exponential", mean_us = 1.0 }"#,
            ServiceTime::exponential(1.0),
        ),
        (
            r#"{ kind = "lognormal", mean_us = 1, sd_us = 10 }"#,
            ServiceTime::lognormal(1.0, 10.0),
        ),
        (
            r#"{ kind = "bimodal", short_us = 0.5, long_us = 500, long_fraction = 0.005 }"#,
            ServiceTime::bimodal(0.5, 500.0, 0.005),
        ),
        (
            r#"{ kind = "trimodal", values_us = [1, 10, 100] }"#,
            ServiceTime::trimodal([1.0, 10.0, 100.0]),
        ),
        (
            r#"{ kind = "pareto", mean_us = 1, shape = 1.5 }"#,
            ServiceTime::pareto(1.0, 1.5),
        ),
        (r#"{ kind = "tpcc" }"#, Ok(ServiceTime::tpcc())),
        (
            r#"{ kind = "zipf", values_us = [1, 2], exponent = 0.9 }"#,
            ServiceTime::zipf(vec![1.0, 2.0], 0.9),
        ),
    ];
    for (text, service) in cases {
        assert_eq!(parse(text).unwrap(), service.unwrap(), "{text}");
    }
}

#[test]
fn wrong_toml_is_refused() {
    for (text, said) in [
        (
            r#"{ kind = "exponential", mean_us = 1.0, median_us = 1.0 }"#,
            "median_us",
        ),
        (r#"{ kind = "tpcc", mean_us = 1.0 }"#, "mean_us"),
        (r#"{ kind = "exponential" }"#, "mean_us"),
        (r#"{ kind = "uniform", mean_us = 1.0 }"#, "uniform"),
        (
            r#"{ kind = "exponential", mean_us = -1.0 }"#,
            "mean_us is -1",
        ),
        (
            r#"{ kind = "empirical", file = "no/such/file" }"#,
            "cannot open no/such/file",
        ),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let cases = [
        (ServiceTime::fixed(0.0), "us"),
        (ServiceTime::fixed(f64::NAN), "us"),
        (ServiceTime::exponential(f64::INFINITY), "mean_us"),
        (ServiceTime::exponential(1e300), "mean_us"),
        (ServiceTime::lognormal(1.0, 0.0), "sd_us"),
        (ServiceTime::bimodal(1.0, 2.0, 0.0), "long_fraction"),
        (ServiceTime::bimodal(1.0, 2.0, 1.0), "long_fraction"),
        (ServiceTime::trimodal([1.0, -1.0, 2.0]), "values_us"),
        (ServiceTime::pareto(1.0, 1.0), "shape"),
        (ServiceTime::zipf(vec![1.0], -0.1), "exponent"),
    ];
    for (service, named) in cases {
        match service {
            Err(WorkloadError::Parameter { what, .. }) => assert_eq!(what, named),
            other => panic!("{named}: {other:?}"),
        }
    }
    let empty = ServiceTime::zipf(Vec::new(), 1.0);
    assert!(
        matches!(empty, Err(WorkloadError::Empty { what: "values_us" })),
        "{empty:?}"
    );
}

#[test]
fn file_errors_name_file_and_line() {
    for (text, place, said) in [
        (
            &b"100\n# good\n\n12 us\n"[..],
            ":4",
            "\"12 us\" is not a number",
        ),
        (
            b"100\n0\n",
            ":2",
            "\"0\" is not a number of nanoseconds above zero",
        ),
        (b"inf\n", ":1", "\"inf\""),
        (b"NaN\n", ":1", "\"NaN\""),
        (b"1\n\xff\xfe\n", ":2", "cannot read"),
        (b"# nothing\n\n", "", "no values"),
    ] {
        let file = file_of(text);
        let error = ServiceTime::empirical(file.path()).unwrap_err().to_string();
        let start = format!("{}{place}: ", file.path().display());
        assert!(error.starts_with(&start), "{error}");
        assert!(error.contains(said), "{error}");
    }
    let directory = tempfile::tempdir().unwrap();
    assert!(ServiceTime::empirical(directory.path()).is_err());
}

fn any_service() -> impl Strategy<Value = ServiceTime> {
    let us = || 0.001..1e6_f64;
    let fixed = us().prop_map(ServiceTime::fixed);
    let exponential = us().prop_map(ServiceTime::exponential);
    let lognormal = (us(), us()).prop_map(|(mean, sd)| ServiceTime::lognormal(mean, sd));
    let bimodal = (us(), us(), 0.001..0.999)
        .prop_map(|(short, long, fraction)| ServiceTime::bimodal(short, long, fraction));
    let trimodal = [us(), us(), us()].prop_map(ServiceTime::trimodal);
    let pareto = (us(), 1.01..20.0).prop_map(|(mean, shape)| ServiceTime::pareto(mean, shape));
    let zipf = (prop::collection::vec(us(), 1..20), 0.0..5.0)
        .prop_map(|(values, exponent)| ServiceTime::zipf(values, exponent));
    let valid = |service: Result<ServiceTime, WorkloadError>| service.unwrap();
    prop_oneof![
        fixed,
        exponential,
        lognormal,
        bimodal,
        trimodal,
        pareto,
        zipf
    ]
    .prop_map(valid)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_service_time_is_positive_and_survives_toml(service in any_service(), seed: u64) {
        let (mean, second) = (service.mean_ns(), service.second_moment());
        prop_assert!(mean > 0.0 && mean.is_finite());
        prop_assert!(second >= mean * mean * (1.0 - 1e-12));
        let mut rng = rng(seed);
        for _ in 0..100 {
            let ns = service.sample(&mut rng);
            prop_assert!(ns > 0.0 && ns.is_finite(), "{ns}");
        }
        let plan = Plan { service };
        let text = toml::to_string(&plan).unwrap();
        prop_assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan);
    }
}
