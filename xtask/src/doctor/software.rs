//! Libraries and programs that transports, examples and measurements use.

use std::process::{Command, Stdio};

use super::finding::Finding;
use super::root::Root;

/// Looks for them.
pub fn examine(root: &Root) -> Vec<Finding> {
    let search = std::env::var("PATH").unwrap_or_default();
    vec![
        library(
            "libdpdk",
            version_of("libdpdk"),
            "apt-get install libdpdk-dev: the DPDK transport is built without it only as declarations",
        ),
        rocksdb(root, version_of("rocksdb")),
        program(
            root,
            &search,
            "redis-server",
            "apt-get install redis-server: the reference in the RESP server's tests",
        ),
        program(
            root,
            &search,
            "clang",
            "apt-get install clang libbpf-dev: the rack is built without its XDP program",
        ),
    ]
}

/// What `pkg-config` says; `None` if it knows no such library, or is not there.
fn version_of(library: &str) -> Option<String> {
    let output = Command::new("pkg-config")
        .args(["--modversion", library])
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn library(what: &'static str, version: Option<String>, advice: &'static str) -> Finding {
    match version {
        Some(version) => Finding::found(what, format!("version {version}")),
        None => Finding::missing(what, "pkg-config does not know it", advice),
    }
}

/// Not every package of RocksDB brings a file for `pkg-config`.
fn rocksdb(root: &Root, version: Option<String>) -> Finding {
    const HEADER: &str = "/usr/include/rocksdb/c.h";
    if version.is_none() && root.path(HEADER).is_file() {
        return Finding::found("librocksdb", format!("there is {HEADER}"));
    }
    library(
        "librocksdb",
        version,
        "apt-get install librocksdb-dev: the paper's workload on RocksDB needs it",
    )
}

fn program(root: &Root, search: &str, what: &'static str, advice: &'static str) -> Finding {
    match root.program(search, what) {
        Some(path) => Finding::found(what, path.display().to_string()),
        None => Finding::missing(what, "not in PATH", advice),
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::made_up;
    use super::*;

    #[test]
    fn rocksdb_is_found_either_way() {
        let (_directory, root) = made_up(&[("/usr/include/rocksdb/c.h", "")]);
        assert!(rocksdb(&root, None).found);
        let (_directory, root) = made_up(&[]);
        assert!(!rocksdb(&root, None).found);
        assert_eq!(
            rocksdb(&root, Some("7.8.3".to_owned())).detail,
            "version 7.8.3"
        );
    }

    #[test]
    fn programs_are_looked_for_in_path() {
        let (_directory, root) = made_up(&[("/usr/bin/redis-server", "")]);
        assert!(program(&root, "/bin:/usr/bin", "redis-server", "install it").found);
        assert!(!program(&root, "/bin", "redis-server", "install it").found);
    }

    #[test]
    fn an_unknown_library_has_no_version() {
        assert_eq!(version_of("no-such-library-anywhere"), None);
    }
}
