//! Says what the feature `rocksdb` lacks, before its bindings fail with a less helpful message.

use std::path::Path;

/// The variables that name Debian's directories, and a file in each. `.cargo/config.toml` sets the
/// variables; the environment takes precedence.
const PLACES: [(&str, &str); 2] = [
    ("ROCKSDB_LIB_DIR", "librocksdb.so"),
    ("ROCKSDB_INCLUDE_DIR", "rocksdb/c.h"),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_none() {
        return;
    }
    for (variable, file) in PLACES {
        println!("cargo::rerun-if-env-changed={variable}");
        let Some(directory) = std::env::var_os(variable) else {
            continue;
        };
        let path = Path::new(&directory).join(file);
        if !path.exists() {
            println!(
                "cargo::error=the feature `rocksdb` needs {}: install Debian's librocksdb-dev (7.8) and libclang-dev, or set \
                 {variable}",
                path.display()
            );
        }
    }
}
