//! Where guest mode cannot be, it says why.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use shinjuku_preempt::HardPreemption;
use shinjuku_preempt::guest::{Guest, GuestConfig, GuestError};

use crate::stage::{guest, test_name};

#[test]
fn without_permission_there_is_one_clear_line() {
    const NOBODY: u32 = 65534;
    if std::env::var_os("SHINJUKU_TEST_CHILD").is_some() {
        // SAFETY: nothing is preempted.
        let error = Guest::install(unsafe { HardPreemption::allow() }, GuestConfig::default());
        let error = error.expect_err("nobody has no permission");
        assert!(matches!(error, GuestError::NoPermission), "{error}");
        assert!(
            error
                .to_string()
                .contains("add the user to the group `kvm`")
        );
        assert_eq!(error.to_string().lines().count(), 1);
        println!("refused as it should be");
        return;
    }
    let Some(_) = guest(test_name!(), GuestConfig::default()) else {
        return;
    };
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED {}: only root can be somebody else", test_name!());
        return;
    }
    let child = Command::new("/proc/self/exe")
        .args([test_name!(), "--exact", "--nocapture"])
        .env("SHINJUKU_TEST_CHILD", "1")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    let Ok(output) = child else {
        println!("SKIPPED {}: others cannot run this program", test_name!());
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("refused as it should be"), "{text}");
}
