//! A failed start names its arguments and its cause. If DPDK itself failed, there is no second try.
#![allow(missing_docs)]

use shinjuku_dpdk_sys::{DpdkError, Eal, EalConfig};

#[test]
fn a_failed_start_names_arguments_and_cause_and_is_not_tried_again() {
    // This is not yet DPDK's failure, so it can be corrected.
    let core = Eal::init(&EalConfig::without_hardware(64).core(100_000));
    assert!(matches!(core, Err(DpdkError::Argument { .. })), "{core:?}");

    // There is no such driver.
    let config = EalConfig::without_hardware(64).device("net_nothing0,iface=nowhere");
    let error = Eal::init(&config).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DpdkError::Start { .. }), "{text}");
    for said in ["net_nothing0,iface=nowhere", "--no-huge"] {
        assert!(text.contains(said), "{text}");
    }
    println!("{text}");

    let again = Eal::init(&EalConfig::without_hardware(64));
    assert!(matches!(again, Err(DpdkError::FailedBefore)), "{again:?}");
    assert!(Eal::current().is_none());
}
