//! Where things are in the workspace. A file of its own, since the benches and the other commands
//! of `cargo xtask` have nothing else in common.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The workspace root: the nearest directory above this package that has the lock file.
///
/// Cargo sets `CARGO_MANIFEST_DIR` for `cargo run`; a binary started by hand falls back to where it
/// was built.
pub fn workspace_root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let has_lock = |directory: &&Path| directory.join("Cargo.lock").exists();
    let root = package.ancestors().find(has_lock);
    root.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Cargo's target directory: `CARGO_TARGET_DIR` where set, else `target` in the workspace root.
pub fn target_dir() -> PathBuf {
    let root = workspace_root();
    match std::env::var_os("CARGO_TARGET_DIR") {
        // A relative value is relative to the root here, because that is where our commands run
        // cargo.
        Some(directory) => root.join(directory),
        None => root.join("target"),
    }
}

/// Cargo, to be run in the workspace root.
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo.current_dir(workspace_root()).stdin(Stdio::null());
    cargo
}
