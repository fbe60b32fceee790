//! Bad plans are refused, with line and key.

use std::path::Path;

use shinjuku_loadgen::{Load, Settings};

/// Why a plan is refused.
fn refusal(plan: &str) -> String {
    let settings = Settings::parse(plan, Path::new("plan.toml"));
    match settings.and_then(Settings::check) {
        Ok(plan) => panic!("accepted: {plan:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_plan_says_as_much_as_the_command_line() {
    let plan = r#"
        target = "127.0.0.1:7000"
        request = ["get:9:GET key:{zipf}", "SCAN 0 COUNT 5000"]
        rate = [1e3, 2e3]
        arrivals = { kind = "deterministic" }
        pick = "random"
        cores = [0]
    "#;
    let plan = Settings::parse(plan, Path::new("plan.toml")).unwrap();
    let plan = plan.check().unwrap();
    assert_eq!(plan.classes(), ["get", "scan"]);
    assert_eq!(plan.loads(), [Load::Rate(1e3), Load::Rate(2e3)]);
}

#[test]
fn the_command_line_goes_before_the_plan() {
    let read = |text: &str| Settings::parse(text, Path::new("plan.toml")).unwrap();
    let plan = read("request = [\"PING\"]\nrate = 10\nseed = 5\nkeys = 7");
    let given = read("saturate = 2\nseed = 6");
    let both = given.or(plan);
    assert_eq!((both.seed, both.keys), (Some(6), Some(7)));
    assert_eq!(both.check().unwrap().loads(), [Load::Saturate(2)]);
}

#[test]
fn what_is_wrong_in_a_plan_is_named_with_its_line() {
    for (plan, expected) in [
        ("rate = 1\nreqeust = [\"PING\"]", ["line 2", "reqeust"]),
        ("rate = \"fast\"", ["line 1", "rate"]),
        ("rate = 0", ["line 1", "rate"]),
        (
            "\nconnections = 0\nrate = 1",
            ["plan.toml:2: connections", "between 1 and"],
        ),
        (
            "rate = 1\nseconds = -1.0",
            ["plan.toml:2: seconds", "it is -1"],
        ),
        (
            "rate = 1\n\nkeys = 2000000000",
            ["plan.toml:3: keys", "it is 2000000000"],
        ),
        ("zipf = nan", ["plan.toml:1: zipf", "NaN"]),
        ("rate = 1\nrequest = [\"GET {zip}\"]", ["line 2", "{zip}"]),
        (
            "rate = 1\nrequest = [\"get:0:GET k\"]",
            ["line 2", "weight"],
        ),
        ("mix = \"hot\"", ["line 1", "hot"]),
        (
            "arrivals = { kind = \"mmpp\", rate_ratio = 0.5, burst_fraction = 0.1, burst_requests = 2.0 }",
            ["line 1", "rate_ratio"],
        ),
        ("seconds = \"long\"", ["line 1", "seconds"]),
        ("pick = \"best\"", ["line 1", "best"]),
    ] {
        let refusal = refusal(plan);
        for part in expected {
            assert!(refusal.contains(part), "{part:?} is not in: {refusal}");
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused_by_key() {
    for (plan, expected) in [
        ("request = [\"PING\"]", "rate: "),
        ("rate = 1", "request: "),
        ("rate = 1\nsaturate = 1\nrequest = [\"PING\"]", "saturate: "),
        (
            "rate = 1\nrequest = [\"GET a\", \"GET b\"]",
            "request: two classes",
        ),
        (
            "saturate = 100\nconnections = 2000\nrequest = [\"PING\"]",
            "saturate: ",
        ),
        (
            "rate = 1\noutstanding = 5000\nrequest = [\"SET a {value:1000000}\"]",
            "outstanding: ",
        ),
        ("rate = 1\nprotocol = \"shinjuku\"", "mix: "),
        ("rate = 1\nmix = \"hi\"\nrequest = [\"PING\"]", "mix: "),
        (
            "rate = 1\nrequest = [\"PING\"]\nthreads = 2\nconnections = 1",
            "connections: ",
        ),
        (
            "rate = 1\nrequest = [\"PING\"]\nthreads = 2\ncores = [0]",
            "cores: ",
        ),
        (
            "rate = 1\nrequest = [\"PING\"]\nseconds = 1.0\nwarm_up = 1.0",
            "warm_up: ",
        ),
        (
            "rate = 1\nrequest = [\"PING\"]\ntarget = \"nowhere\"",
            "target: ",
        ),
    ] {
        let refusal = refusal(plan);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}

const UDP: &str = "rate = 1\nprotocol = \"shinjuku\"\nmix = \"hi\"\ntarget = \"10.0.0.1:9000\"\n";

#[test]
fn settings_of_a_transport_go_with_it() {
    for (plan, expected) in [
        (
            "address = \"10.0.0.2\"",
            "address: it goes with transport dpdk or xdp",
        ),
        (
            "device = \"net_null0\"",
            "device: it goes with transport dpdk",
        ),
        ("eal = [\"-m\", \"64\"]", "eal: it goes with transport dpdk"),
        (
            "interface = \"eth1\"",
            "interface: it goes with transport xdp",
        ),
        (
            "transport = \"sockets\"\ncopying = \"copy\"",
            "copying: it goes with transport xdp",
        ),
    ] {
        let refusal = refusal(&format!("{UDP}{plan}"));
        assert_eq!(refusal, expected);
    }
    for (plan, expected) in [
        ("transport = \"dpkd\"", ["line 5", "dpdk"]),
        ("address = \"10.0.0.2/40\"", ["line 5", "10.0.0.2/40"]),
        ("mac = \"1:2\"", ["line 5", "six pairs"]),
        ("eal = 3", ["line 5", "a list of texts"]),
        ("copying = \"none\"", ["line 5", "zero-copy"]),
    ] {
        let refusal = refusal(&format!("{UDP}{plan}"));
        assert!(
            expected.iter().all(|part| refusal.contains(part)),
            "{refusal}"
        );
    }
}

#[test]
#[cfg(not(any(feature = "dpdk", feature = "xdp")))]
fn a_transport_that_was_not_built_in_says_how_to_build_it() {
    for transport in ["dpdk", "xdp"] {
        let refusal = refusal(&format!("{UDP}transport = \"{transport}\""));
        let build = format!("-p shinjuku-loadgen --features {transport}");
        assert!(
            refusal.starts_with("transport: ") && refusal.contains(&build),
            "{refusal}"
        );
    }
}

#[test]
#[cfg(all(feature = "dpdk", feature = "xdp"))]
fn a_device_takes_what_it_needs() {
    for (plan, expected) in [
        ("transport = \"dpdk\"\naddress = \"10.0.0.2\"", "device: "),
        ("transport = \"dpdk\"\ndevice = \"net_null0\"", "address: "),
        ("transport = \"xdp\"\naddress = \"10.0.0.2\"", "interface: "),
        (
            "transport = \"xdp\"\ninterface = \"eth1\"\naddress = \"10.0.0.2\"\nthreads = 2",
            "threads: ",
        ),
    ] {
        let refusal = refusal(&format!("{UDP}{plan}"));
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}
