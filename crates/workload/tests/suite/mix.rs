use serde::{Deserialize, Serialize};
use shinjuku_workload::{Class, Mix, ServiceTime, WorkloadError};

use crate::statistics::{assert_share, rng};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    mix: Mix,
}

#[test]
fn named_mixes_have_the_moments_of_the_literature() {
    // Mean in ns, second moment in us².
    for (name, mean, second_moment) in [
        ("hi", 2_997.5, 0.995 * 0.25 + 0.005 * 250_000.0),
        ("mid", 50_500.0, 5_000.5),
        ("tri", 37_000.0, 3_367.0),
        ("exp", 1_000.0, 2.0),
        ("fixed", 1_000.0, 1.0),
        ("lognormal", 1_000.0, 101.0),
        ("tpcc", 19_068.0, 901.4956),
    ] {
        let mix = Mix::named(name).unwrap();
        assert_eq!(mix.name(), name);
        assert!(
            (mix.mean_ns() / mean - 1.0).abs() < 1e-12,
            "{name}: {}",
            mix.mean_ns()
        );
        let ratio = mix.second_moment() / (second_moment * 1e6);
        assert!(
            (ratio - 1.0).abs() < 1e-12,
            "{name}: {}",
            mix.second_moment()
        );
        let two = mix.classes().len() == 2;
        assert_eq!(two, name == "hi" || name == "mid");
        assert!(Mix::NAMES.contains(&name));
    }
    assert!(Mix::NAMES.iter().all(|name| Mix::named(name).is_ok()));
}

#[test]
fn the_classes_of_tpcc_together_are_its_service_time() {
    let (mix, service) = (Mix::named("tpcc").unwrap(), ServiceTime::tpcc());
    assert!((mix.mean_ns() / service.mean_ns() - 1.0).abs() < 1e-12);
    assert!((mix.squared_variation() / service.squared_variation() - 1.0).abs() < 1e-12);
}

#[test]
fn short_comes_before_long() {
    let mix = Mix::named("hi").unwrap();
    assert_eq!(mix.classes()[usize::from(Mix::SHORT)].name, "short");
    assert_eq!(mix.classes()[usize::from(Mix::LONG)].name, "long");
    let class = |name: &str, us| Class::new(name, 1.0, ServiceTime::fixed(us).unwrap());
    let error = Mix::new("odd", vec![class("scan", 500.0), class("get", 1.0)]).unwrap_err();
    assert!(
        matches!(&error, WorkloadError::ClassOrder { class, .. } if class == "scan"),
        "{error}"
    );
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = Mix::named("high").unwrap_err().to_string();
    assert!(error.contains("\"high\""), "{error}");
    assert!(
        Mix::NAMES.iter().all(|name| error.contains(name)),
        "{error}"
    );
    assert_eq!("high".parse::<Mix>().unwrap_err().to_string(), error);
    assert_eq!("mid".parse::<Mix>().unwrap(), Mix::named("mid").unwrap());
}

#[test]
fn classes_come_by_their_weights() {
    let mix = Mix::named("hi").unwrap();
    let mut rng = rng(6);
    let n = 100_000;
    let long = (0..n)
        .filter(|_| mix.sample_class(&mut rng) == Mix::LONG)
        .count();
    assert_share("long", long, n, 0.005);
    assert!((mix.share(Mix::SHORT) - 0.995).abs() < 1e-12);
}

#[test]
fn classes_are_checked() {
    let service = ServiceTime::fixed(1.0).unwrap();
    assert!(matches!(
        Mix::new("none", Vec::new()),
        Err(WorkloadError::Empty { .. })
    ));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let class = Class::new("a", weight, service.clone());
        assert!(Mix::new("odd", vec![class]).is_err(), "{weight}");
    }
    let class = Class::new("a", f64::MAX, service.clone());
    assert!(Mix::new("heavy", vec![class.clone(), class]).is_err());
    let class = Class::new("a", 1.0, service.clone()).with_slo_us(0.0);
    assert!(Mix::new("strict", vec![class]).is_err());
    let many = vec![Class::new("a", 1.0, service); 65_536];
    assert!(matches!(
        Mix::new("many", many),
        Err(WorkloadError::TooMany { .. })
    ));
}

#[test]
fn mixes_survive_toml() {
    let store = vec![
        Class::new("get", 99.5, ServiceTime::exponential(1.2).unwrap()).with_slo_us(50.0),
        Class::new("scan", 0.5, ServiceTime::lognormal(480.0, 30.0).unwrap()),
    ];
    let mut mixes = vec![Mix::new("store", store).unwrap()];
    mixes.extend(Mix::NAMES.map(|name| Mix::named(name).unwrap()));
    for mix in mixes {
        let plan = Plan { mix };
        let text = toml::to_string(&plan).unwrap();
        assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan, "{text}");
    }
}

#[test]
fn toml_errors_say_what_is_wrong_inside() {
    let class = r#"{ name = "a", weight = 1, service = { kind = "fixed", us = 1 }"#;
    for (text, said) in [
        (r#"mix = "high""#.to_owned(), "named mixes are hi"),
        ("mix = 3".to_owned(), "the name of a mix"),
        (
            format!(r#"mix = {{ name = "m", classes = [{class}, color = 1 }}] }}"#),
            "color",
        ),
        (
            format!(r#"mix = {{ name = "m", classes = [{class} }}], seed = 1 }}"#),
            "seed",
        ),
        (
            format!(r#"mix = {{ name = "m", classes = [{class}, slo_us = -1 }}] }}"#),
            "slo_us is -1",
        ),
        (
            r#"mix = { name = "m", classes = [] }"#.to_owned(),
            "is empty",
        ),
    ] {
        let error = toml::from_str::<Plan>(&text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}
