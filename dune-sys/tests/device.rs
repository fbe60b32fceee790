//! The errors of opening where there is no Dune: every fake that a path can lead to.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dune_sys::{Device, DeviceError};

fn refused(path: &Path) -> DeviceError {
    Device::open_at(path).expect_err("this is not Dune")
}

#[test]
fn an_absent_device_says_that_the_module_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let error = refused(&directory.path().join("dune"));
    assert!(matches!(error, DeviceError::Absent { .. }), "{error:?}");
    assert!(error.to_string().contains("module is not loaded"));
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let regular = directory.path().join("regular");
    std::fs::write(&regular, "not a device").unwrap();
    let fifo = directory.path().join("fifo");
    let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
    // SAFETY: makes a FIFO at a path of ours.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for (path, want) in [
        (directory.path(), "a directory"),
        (&regular, "a regular file"),
        (&fifo, "a FIFO"),
        (Path::new("/dev/null"), "character device 1:3"),
        (&link, "character device 1:3"),
    ] {
        let error = refused(path);
        let DeviceError::AnotherFile { what, .. } = &error else {
            panic!("{}: {error}", path.display());
        };
        assert_eq!(what, want);
    }
    assert_eq!(std::fs::read(&regular).unwrap(), b"not a device");
}

#[test]
fn a_file_that_may_not_be_opened_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dune");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    let opened = std::thread::spawn(move || {
        // Root may open everything, so this thread accesses files as another user.
        // SAFETY: changes the calling thread's file-system user only.
        unsafe { libc::setfsuid(65534) };
        refused(&path)
    });
    let error = opened.join().unwrap();
    assert!(
        matches!(error, DeviceError::NotPermitted { .. }),
        "{error:?}"
    );
}

#[test]
fn a_dangling_link_and_a_file_in_the_way_are_errors_with_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert!(matches!(refused(&link), DeviceError::Absent { .. }));
    let below = directory.path().join("file");
    std::fs::write(&below, "").unwrap();
    let error = refused(&below.join("dune"));
    assert!(matches!(error, DeviceError::Open { .. }), "{error:?}");
    assert!(error.to_string().contains("file/dune"));
}

#[test]
fn the_real_device_answers_like_dune() {
    match Device::open() {
        Ok(device) => assert!(device.layout().phys_limit >= 1 << 36),
        Err(error) => println!("SKIPPED the_real_device_answers_like_dune: {error}"),
    }
}
