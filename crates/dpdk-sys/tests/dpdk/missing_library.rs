//! If libdpdk is missing or old, the build ends and names the package to install. The test runs the
//! build script again with a pkg-config that finds nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Cargo puts the script beside the folder that the script wrote to; the newest comes first, since
/// there may be some of earlier builds.
fn build_scripts() -> Vec<PathBuf> {
    let all = Path::new(env!("OUT_DIR")).ancestors().nth(2).unwrap();
    let folders = fs::read_dir(all).unwrap().map(|entry| entry.unwrap());
    let mut scripts: Vec<(SystemTime, PathBuf)> = folders
        .filter(|folder| {
            let name = folder.file_name().into_string().unwrap_or_default();
            name.starts_with(concat!(env!("CARGO_PKG_NAME"), "-"))
        })
        .map(|folder| folder.path().join("build-script-build"))
        .filter_map(|script| Some((script.metadata().ok()?.modified().ok()?, script)))
        .collect();
    scripts.sort();
    scripts
        .into_iter()
        .rev()
        .map(|(_, script)| script)
        .collect()
}

/// The build's message when pkg-config finds only the contents of `folder`.
fn complaint(folder: &Path) -> String {
    let triple = "x86_64-unknown-linux-gnu";
    let output = build_scripts()
        .iter()
        .map(|script| {
            Command::new(script)
                .env("PKG_CONFIG_LIBDIR", folder)
                .env_remove("PKG_CONFIG_PATH")
                .env("OUT_DIR", folder)
                .envs([("TARGET", triple), ("HOST", triple)])
                .output()
                .unwrap()
        })
        // Without the feature the script looks for nothing and succeeds.
        .find(|output| !output.status.success());
    let output = output.expect("the script of this build, which has the feature");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_build_without_the_library_names_the_package() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("missing_library");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let text = complaint(&folder);
    for said in [
        "apt-get install libdpdk-dev",
        "dpdk-devel",
        "PKG_CONFIG_PATH",
    ] {
        assert!(text.contains(said), "{text}");
    }
    let old = "Name: DPDK\nDescription: an old one\nVersion: 21.11.0\n";
    fs::write(folder.join("libdpdk.pc"), old).unwrap();
    let text = complaint(&folder);
    for said in ["22.11 or later", "21.11", "libdpdk-dev"] {
        assert!(text.contains(said), "{text}");
    }
}
