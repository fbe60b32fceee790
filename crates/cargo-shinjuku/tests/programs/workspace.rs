//! A workspace of one program with the real runtime, which `cargo-shinjuku` builds. Its artifacts
//! stay for the next time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program's workspace, named as the program.
pub struct Workspace {
    directory: PathBuf,
    name: &'static str,
}

impl Workspace {
    /// With `dependencies` besides the runtime, and `profile` for all.
    pub fn new(name: &'static str, dependencies: &str, profile: &str) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let workspace = Self { directory, name };
        let crates = here.parent().unwrap().display();
        workspace.write(
            "Cargo.toml",
            &format!(
                "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
                 {dependencies}\nshinjuku = {{ path = \"{crates}/shinjuku\" }}\n\
                 shinjuku-preempt = {{ path = \"{crates}/preempt\" }}\n\n[profile.dev]\n{profile}\n"
            ),
        );
        let lock = workspace.directory.join("Cargo.lock");
        if !lock.exists() {
            fs::copy(here.join("../../Cargo.lock"), lock).unwrap();
        }
        workspace
    }

    /// Writes a file. What stays the same keeps its time, so that cargo builds nothing anew.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.directory.join(path);
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Builds the program, and tells where it is.
    pub fn build(&self) -> PathBuf {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-shinjuku"));
        command
            .args(["shinjuku", "build", "--offline", "--target-dir"])
            .arg(self.directory.join("target"))
            .current_dir(&self.directory);
        for variable in [
            "CARGO_BUILD_TARGET",
            "RUSTC_WRAPPER",
            "RUSTFLAGS",
            "CC",
            "CXX",
        ] {
            command.env_remove(variable);
        }
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let target = self
            .directory
            .join("target/shinjuku/x86_64-unknown-linux-gnu");
        target.join("debug").join(self.name)
    }
}
