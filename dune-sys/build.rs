//! Finds libdune for the feature `libdune`; without the feature there is nothing to build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "libdune")]
    link();
}

/// By LIBDUNE_DIR, or by pkg-config where somebody has installed it.
#[cfg(feature = "libdune")]
fn link() {
    println!("cargo::rerun-if-env-changed=LIBDUNE_DIR");
    let Some(directory) = std::env::var_os("LIBDUNE_DIR").map(std::path::PathBuf::from) else {
        let found = pkg_config::Config::new().statik(true).probe("libdune");
        if found.is_err() {
            fail("LIBDUNE_DIR is not set, and pkg-config does not know libdune");
        }
        return;
    };
    let archive = directory.join("libdune.a");
    println!("cargo::rerun-if-changed={}", archive.display());
    if !archive.is_file() {
        fail(&format!("there is no {}", archive.display()));
    }
    println!("cargo::rustc-link-search=native={}", directory.display());
    println!("cargo::rustc-link-lib=static=dune");
}

#[cfg(feature = "libdune")]
fn fail(what: &str) -> ! {
    println!(
        "cargo::error=the feature `libdune` links libdune.a, but {what}. Clone https://github.com/zxjcarrot/libdbos (the \
         fork for Linux 6.2 to 6.11), run `make -C libdune`, and set LIBDUNE_DIR to the directory `libdune` in it; or \
         build without the feature"
    );
    // Cargo reports the line above.
    std::process::exit(1)
}
