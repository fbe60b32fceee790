//! Finds libdune for the feature `libdune`; without the feature there is nothing to build.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=LIBDUNE_DIR");
    if std::env::var_os("CARGO_FEATURE_LIBDUNE").is_none() {
        return;
    }
    let Some(directory) = std::env::var_os("LIBDUNE_DIR").map(PathBuf::from) else {
        fail("LIBDUNE_DIR is not set");
    };
    let archive = directory.join("libdune.a");
    println!("cargo::rerun-if-changed={}", archive.display());
    if !archive.is_file() {
        fail(&format!("there is no {}", archive.display()));
    }
    println!("cargo::rustc-link-search=native={}", directory.display());
    println!("cargo::rustc-link-lib=static=dune");
}

fn fail(what: &str) -> ! {
    println!(
        "cargo::error=the feature `libdune` links libdune.a, but {what}. Clone https://github.com/zxjcarrot/libdbos (the \
         fork for Linux 6.2 to 6.11), run `make -C libdune`, and set LIBDUNE_DIR to the directory `libdune` in it; or \
         build without the feature"
    );
    // Cargo reports the line above.
    std::process::exit(1)
}
