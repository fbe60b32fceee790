//! The configuration in the manual works. (Its Rust code is compiled with the documentation's
//! tests.)

use shinjuku::Config;

#[test]
fn its_configuration_starts_on_this_machine() {
    let page = include_str!("../../docs/getting-started.md");
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
