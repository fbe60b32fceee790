//! Constructors reject what makes no sense.

use shinjuku_policy::{
    CFcfs, ClassId, ClassRule, ConfigError, DFcfs, MultiQueue, Nanos, SingleQueue, Stealing,
    Verified,
};

const RULE: ClassRule = ClassRule::new(Nanos(1), Nanos(1));

#[test]
fn capacity() {
    for given in [0, u32::MAX as usize, usize::MAX] {
        let error = Some(ConfigError::Capacity { given });
        assert_eq!(CFcfs::new(given).err(), error);
        assert_eq!(SingleQueue::new(given, Nanos(1)).err(), error);
        assert_eq!(MultiQueue::new(given, &[RULE]).err(), error);
        assert_eq!(DFcfs::new(given, 1).err(), error);
        assert_eq!(Stealing::new(given, 1, 0).err(), error);
        let policy = CFcfs::new(1).unwrap();
        assert_eq!(Verified::new(Box::new(policy), given).err(), error);
    }
}

#[test]
fn workers() {
    for given in [0, (1 << 16) + 1] {
        let error = Some(ConfigError::Workers { given });
        assert_eq!(DFcfs::new(1, given).err(), error);
        assert_eq!(Stealing::new(1, given, 0).err(), error);
    }
    assert!(DFcfs::new(1, 1 << 16).is_ok());
}

#[test]
fn classes() {
    assert_eq!(
        MultiQueue::new(1, &[]).err(),
        Some(ConfigError::Classes { given: 0 })
    );
    let too_many = vec![RULE; (1 << 16) + 1];
    assert_eq!(
        MultiQueue::new(1, &too_many).err(),
        Some(ConfigError::Classes { given: 65_537 })
    );

    let class = ClassId(1);
    let no_slo = ClassRule::new(Nanos(0), Nanos(1));
    assert_eq!(
        MultiQueue::new(1, &[RULE, no_slo]).err(),
        Some(ConfigError::ZeroSlo { class })
    );
    let no_quantum = ClassRule::new(Nanos(1), Nanos(0));
    let error = Some(ConfigError::ZeroQuantum { class });
    assert_eq!(MultiQueue::new(1, &[RULE, no_quantum]).err(), error);
    let error = Some(ConfigError::ZeroQuantum { class: ClassId(0) });
    assert_eq!(SingleQueue::new(1, Nanos(0)).err(), error);
}

#[test]
fn bounds_and_limits() {
    let multi = MultiQueue::new(1, &[RULE]).unwrap();
    assert_eq!(
        multi.with_queue_bound(0).err(),
        Some(ConfigError::ZeroQueueBound)
    );
    let distributed = DFcfs::new(1, 1).unwrap();
    assert_eq!(
        distributed.with_queue_bound(0).err(),
        Some(ConfigError::ZeroQueueBound)
    );
    let policy = CFcfs::new(1).unwrap();
    let verified = Verified::new(Box::new(policy), 1).unwrap();
    assert_eq!(
        verified.with_progress_limit(0).err(),
        Some(ConfigError::ZeroProgressLimit)
    );
}

#[test]
fn errors_name_the_value_and_the_choice() {
    let error = ConfigError::Workers { given: 0 };
    assert_eq!(error.to_string(), "0 workers: choose 1 to 65536");
}
