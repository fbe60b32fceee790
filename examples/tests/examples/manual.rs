//! The configuration in the manual works. (Its Rust code is compiled with the documentation's
//! tests.)

use shinjuku::Config;

#[test]
fn its_configuration_starts_on_this_machine() {
    let page = include_str!("../../../docs/getting-started.md");
    let sample = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|sample| sample.contains("[policy]"))
        .expect("the page has a configuration");
    let config = Config::from_toml(sample).unwrap();
    config.validate().unwrap();
    assert_eq!(config.workers, None, "it must suit small machines");
    assert_eq!(config.policy.kind, "c-pre-mq".into());
    let names: Vec<_> = config.class.iter().map(|class| &*class.name).collect();
    assert_eq!(names, ["get", "range"]);
}

#[test]
fn a_rack_is_configured_as_its_page_says() {
    let page = include_str!("../../../docs/rack.md");
    let mut samples = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let sample = samples.next().expect("the page has a configuration");
    let config = shinjuku_rack::Config::from_toml(sample).unwrap();
    let defaults = shinjuku_rack::TableConfig::default();
    assert_eq!(config.table.buckets, defaults.buckets);
    assert_eq!(config.table.age_ms, defaults.age_ms);
    let defaults = shinjuku_rack::FailureConfig::default();
    assert_eq!(config.failure.silence_ms, defaults.silence_ms);
    assert_eq!(config.failure.requests, defaults.requests);
    assert_eq!(config.failure.retry_ms, defaults.retry_ms);
    // What is commented out is right, too.
    let whole = sample.replace("\n# ", "\n");
    shinjuku_rack::Config::from_toml(&whole).unwrap();
}
