//! Where things are in the workspace.

use std::path::PathBuf;

/// The workspace root: the directory above this package.
///
/// Cargo sets `CARGO_MANIFEST_DIR` for `cargo run`; a binary started by hand falls back to where it
/// was built.
pub fn workspace_root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package
        .parent()
        .map_or_else(|| PathBuf::from("."), PathBuf::from)
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
