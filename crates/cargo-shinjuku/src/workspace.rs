//! What cargo tells of a workspace: its packages, how they depend on each other, and what their
//! manifests say to `cargo shinjuku`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The output of `cargo metadata`, as far as it matters here.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// The packages that were asked for.
    pub packages: Vec<Package>,
    workspace_members: Vec<String>,
    workspace_root: PathBuf,
    /// The workspace's own target directory.
    pub target_directory: PathBuf,
    metadata: Option<ManifestMetadata>,
    /// `None` if dependencies were not asked for.
    resolve: Option<Resolve>,
}

/// A package.
#[derive(Debug, Deserialize)]
pub struct Package {
    id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    metadata: Option<ManifestMetadata>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// The table `[package.metadata]` or `[workspace.metadata]`.
#[derive(Debug, Default, Deserialize)]
struct ManifestMetadata {
    #[serde(default)]
    shinjuku: OwnMetadata,
}

/// The table `shinjuku` in it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnMetadata {
    /// Names of packages that are not to be instrumented.
    #[serde(default)]
    skip: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// The packages by which build scripts compile C and C++ code.
const C_BUILDERS: [&str; 2] = ["cc", "cmake"];

impl Dependency {
    fn is_for_build(&self) -> bool {
        let mut kinds = self.dep_kinds.iter();
        kinds.any(|kind| kind.kind.as_deref() == Some("build"))
    }
}

impl Package {
    /// Whether it runs in the compiler.
    pub fn is_proc_macro(&self) -> bool {
        let mut kinds = self.targets.iter().flat_map(|target| &target.kind);
        kinds.any(|kind| kind == "proc-macro")
    }
}

impl Workspace {
    /// Asks `cargo metadata`, with `arguments`.
    ///
    /// # Errors
    /// If cargo fails, which says why by itself; or if a manifest's `metadata.shinjuku` is not
    /// understood.
    pub fn ask<S: AsRef<OsStr>>(arguments: &[S]) -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--format-version=1"])
            .args(arguments)
            .stderr(std::process::Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "`cargo metadata` failed");
        serde_json::from_slice(&output.stdout).context(
            "`[package.metadata.shinjuku]` and `[workspace.metadata.shinjuku]` have one key, `skip`, a list of names",
        )
    }

    /// The packages to skip, by name, each with the manifest that says so: the workspace's, or a
    /// member's.
    pub fn skipped(&self) -> BTreeMap<String, String> {
        let of = |metadata: &Option<ManifestMetadata>, manifest: &str| {
            let names = metadata.iter().flat_map(|metadata| &metadata.shinjuku.skip);
            names
                .map(|name| (name.clone(), manifest.to_owned()))
                .collect::<Vec<_>>()
        };
        let mut skipped: BTreeMap<_, _> = of(&self.metadata, "the workspace").into_iter().collect();
        let members = |package: &&Package| self.workspace_members.contains(&package.id);
        for package in self.packages.iter().filter(members) {
            skipped.extend(of(&package.metadata, &package.name));
        }
        skipped
    }

    /// Whether the lock file names what build scripts compile C with. `false` if there is none yet.
    pub fn may_have_c_code(&self) -> bool {
        let lock = std::fs::read_to_string(self.workspace_root.join("Cargo.lock"));
        lock.is_ok_and(|lock| {
            C_BUILDERS
                .iter()
                .any(|name| lock.contains(&format!("name = \"{name}\"\n")))
        })
    }

    /// The packages whose build scripts compile C or C++ code, as far as their dependencies tell.
    pub fn with_c_code(&self) -> BTreeSet<&str> {
        let builders: BTreeSet<&str> = (self.packages.iter())
            .filter(|package| C_BUILDERS.contains(&package.name.as_str()))
            .map(|package| package.id.as_str())
            .collect();
        let builds_with = |node: &&Node| {
            let mut all = node.deps.iter();
            all.any(|one| builders.contains(one.pkg.as_str()) && one.is_for_build())
        };
        let nodes = self.resolve.iter().flat_map(|resolve| &resolve.nodes);
        let ids: BTreeSet<&str> = nodes
            .filter(builds_with)
            .map(|node| node.id.as_str())
            .collect();
        (self.packages.iter())
            .filter(|package| ids.contains(package.id.as_str()))
            .map(|package| package.name.as_str())
            .collect()
    }

    /// The packages that are linked into the members' programs and tests. The others are for build
    /// scripts and proc macros, which are in neither themselves.
    pub fn linked(&self) -> BTreeSet<&str> {
        let nodes: BTreeMap<&str, &Node> = (self.resolve.iter())
            .flat_map(|resolve| &resolve.nodes)
            .map(|node| (node.id.as_str(), node))
            .collect();
        let proc_macros: BTreeSet<&str> = (self.packages.iter())
            .filter(|package| package.is_proc_macro())
            .map(|package| package.id.as_str())
            .collect();
        let mut linked = BTreeSet::new();
        let mut next: Vec<&str> = self.workspace_members.iter().map(String::as_str).collect();
        while let Some(id) = next.pop() {
            if proc_macros.contains(id) || !linked.insert(id) {
                continue;
            }
            let dependencies = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            let is_linked = |dependency: &&Dependency| {
                let kinds = &dependency.dep_kinds;
                kinds
                    .iter()
                    .any(|kind| kind.kind.as_deref() != Some("build"))
            };
            next.extend(dependencies.filter(is_linked).map(|one| one.pkg.as_str()));
        }
        (self.packages.iter())
            .filter(|package| linked.contains(package.id.as_str()))
            .map(|package| package.name.as_str())
            .collect()
    }
}

/// The cargo that called, or the one on the path.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
