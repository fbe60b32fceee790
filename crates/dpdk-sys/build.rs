//! Finds libdpdk and builds the shim; does nothing without the feature `link`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "link")]
    link();
}

#[cfg(feature = "link")]
fn link() {
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-changed=src/shim.h");
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .probe("libdpdk")
        .unwrap_or_else(|error| {
            eprintln!(
                "feature `dpdk` links DPDK 22.11 or later, which pkg-config does not find.\n\
                 Install it (Debian, Ubuntu: apt-get install libdpdk-dev pkg-config; Fedora: dnf install dpdk-devel \
                 pkgconf), set PKG_CONFIG_PATH to where libdpdk.pc is, or build without the feature.\n\n{error}"
            );
            std::process::exit(1);
        });
    let mut shim = cc::Build::new();
    shim.file("src/shim.c").warnings_into_errors(true);
    // The pkg-config crate does not pass on these cflags of libdpdk.pc; the inline functions need
    // both.
    shim.flag("-include").flag("rte_config.h");
    shim.flag("-march=corei7");
    for path in &dpdk.include_paths {
        shim.flag("-isystem").flag(path);
    }
    shim.compile("shinjuku_dpdk_shim");
    // rte_eth_from_rings is in a driver, which libdpdk.pc does not name.
    println!("cargo::rustc-link-lib=rte_net_ring");
}
