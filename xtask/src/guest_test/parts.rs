//! Debian's packages, fetched and unpacked beside the system.
//!
//! apt gets a configuration, lists and caches of its own and an empty list of installed packages,
//! so that it neither reads nor changes the system's, and works under any user. Signatures are
//! checked against the system's keyring of Debian's archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Why a part is not there.
#[derive(Debug)]
pub struct Missing(pub String);

type Found<T> = Result<T, Missing>;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Seconds for one call of apt.
const PATIENCE: &str = "300";

/// Where packages have their libraries.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Packages of one Debian release, unpacked.
#[derive(Debug)]
pub struct Packages {
    /// The unpacked tree.
    pub root: PathBuf,
}

impl Packages {
    /// The path of what the packages have at `below`.
    pub fn at(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// How to start one of their programs: with their own loader and libraries, since the system's
    /// may be older. `more`: directories of libraries besides the usual one, below it.
    pub fn start(&self, program: &str, more: &[&str]) -> Vec<String> {
        let libraries = self.at(LIBRARIES);
        let path: Vec<_> = [""]
            .iter()
            .chain(more)
            .map(|below| libraries.join(below).display().to_string())
            .collect();
        let loader = libraries.join("ld-linux-x86-64.so.2");
        vec![
            loader.display().to_string(),
            "--library-path".to_owned(),
            path.join(":"),
            self.at(program).display().to_string(),
        ]
    }
}

/// What a guest boots.
#[derive(Debug)]
pub struct Guest {
    /// The unpacked tree.
    pub root: PathBuf,
    /// The kernel's release, as its file names have it.
    pub kernel_release: String,
}

/// Debian 12's kernel and BusyBox.
pub fn fetch_guest(directory: &Path, mirror: &str) -> Found<Guest> {
    let apt = Apt::new(&directory.join("bookworm"), "bookworm", mirror)?;
    let packages = apt.unpacked(&["linux-image-amd64", "busybox-static"], |apt| {
        let kernel = apt.dependency("linux-image-amd64", "linux-image-6.")?;
        apt.run(&["download", &kernel, "busybox-static"], &apt.debs())
    })?;
    let release = fs::read_dir(packages.root.join("boot"))
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix("vmlinuz-").map(str::to_owned)
        });
    let Some(kernel_release) = release else {
        return Err(Missing(format!(
            "no kernel in {}: remove that directory and try again",
            packages.root.display()
        )));
    };
    Ok(Guest {
        root: packages.root,
        kernel_release,
    })
}

/// Programs of Debian 13 with all they need, in a directory called `name`.
pub fn fetch_programs(
    directory: &Path,
    name: &str,
    packages: &[&str],
    mirror: &str,
) -> Found<Packages> {
    let apt = Apt::new(&directory.join(name), "trixie", mirror)?;
    apt.unpacked(packages, |apt| {
        // With everything they depend on, down to libc: the system may have another one.
        let arguments = [
            "install",
            "--download-only",
            "--no-install-recommends",
            "-y",
        ];
        apt.run(&[&arguments[..], packages].concat(), &apt.debs())
    })
}

/// apt, with everything it touches in one directory.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    fn new(directory: &Path, suite: &str, mirror: &str) -> Found<Self> {
        for (path, package) in [
            ("/usr/bin/apt-get", "apt"),
            ("/usr/bin/dpkg", "dpkg"),
            (KEYRING, "debian-archive-keyring"),
        ] {
            if !Path::new(path).exists() {
                return Err(Missing(format!(
                    "no {path}: it takes Debian's {package} to fetch the parts"
                )));
            }
        }
        let apt = Self {
            directory: directory.to_owned(),
        };
        for below in ["state/lists/partial", "cache/archives/partial", "root"] {
            let path = directory.join(below);
            fs::create_dir_all(&path).map_err(|error| cannot("make", &path, &error))?;
        }
        apt.write("status", "")?;
        apt.write(
            "sources.list",
            &format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"),
        )?;
        Ok(apt)
    }

    fn write(&self, name: &str, text: &str) -> Found<()> {
        let path = self.directory.join(name);
        fs::write(&path, text).map_err(|error| cannot("write", &path, &error))
    }

    /// Where fetched packages are put.
    fn debs(&self) -> PathBuf {
        self.directory.join("cache/archives")
    }

    /// Fetches and unpacks, unless that was done before for the same packages.
    fn unpacked(
        &self,
        packages: &[&str],
        fetch: impl FnOnce(&Self) -> Found<()>,
    ) -> Found<Packages> {
        let root = self.directory.join("root");
        let packages = packages.join(" ");
        let done = fs::read_to_string(self.directory.join("unpacked"));
        if done.is_ok_and(|done| done == packages) {
            return Ok(Packages { root });
        }
        println!(
            "fetching Debian's packages into {}",
            self.directory.display()
        );
        self.run(&["update"], &self.directory)?;
        fetch(self)?;
        let debs =
            fs::read_dir(self.debs()).map_err(|error| cannot("read", &self.debs(), &error))?;
        for deb in debs.flatten().map(|entry| entry.path()) {
            if deb.extension().is_some_and(|extension| extension == "deb") {
                let mut unpack = Command::new("dpkg");
                unpack.arg("-x").arg(&deb).arg(&root);
                finish(&mut unpack)?;
            }
        }
        // The packages themselves are of no use any more.
        let _ = fs::remove_dir_all(self.directory.join("cache"));
        self.write("unpacked", &packages)?;
        Ok(Packages { root })
    }

    /// The package beginning with `prefix` that `package` depends on.
    fn dependency(&self, package: &str, prefix: &str) -> Found<String> {
        let mut ask = self.command("apt-cache");
        let output = finish(ask.args(["depends", package]))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        dependency_in(&text, prefix)
            .ok_or_else(|| Missing(format!("{package} depends on no {prefix}*")))
    }

    /// Runs apt-get in `directory`.
    fn run(&self, arguments: &[&str], directory: &Path) -> Found<()> {
        fs::create_dir_all(directory).map_err(|error| cannot("make", directory, &error))?;
        let mut command = self.command("apt-get");
        finish(command.args(arguments).current_dir(directory)).map(drop)
    }

    fn command(&self, program: &str) -> Command {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", PATIENCE, program]);
        for (key, value) in [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
            ("Dir::State", at("state")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            // Root's apt fetches as another user, who may not write here.
            ("APT::Sandbox::User", "root".to_owned()),
            ("APT::Architecture", "amd64".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
        ] {
            command.arg("-o").arg(format!("{key}={value}"));
        }
        command
    }
}

/// Runs a command to its end; what it wrote to standard error is the reason if it fails.
pub fn finish(command: &mut Command) -> Found<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Missing(format!("{name} does not start: {error}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rfind(|line| !line.trim().is_empty());
    let arguments: Vec<_> = command
        .get_args()
        .map(|part| part.to_string_lossy())
        .collect();
    let last = arguments.last().map_or("", |last| last);
    Err(Missing(format!(
        "fetching Debian's packages failed ({name} ... {last}: {}): {}",
        output.status,
        line.unwrap_or("no reason given")
    )))
}

/// The part is missing because something cannot be done with a file.
pub fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Missing {
    Missing(format!("cannot {what} {}: {error}", path.display()))
}

fn dependency_in(text: &str, prefix: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_package_is_read_from_the_list_of_dependencies() {
        let text =
            "linux-image-amd64\n  Depends: linux-base\n  Depends: linux-image-6.1.0-56-amd64\n";
        let found = dependency_in(text, "linux-image-6.");
        assert_eq!(found.as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(
            dependency_in("x\n  Suggests: linux-image-6.1\n", "linux-image-6."),
            None
        );
    }

    #[test]
    fn a_mirror_that_is_not_there_is_a_reason_and_no_panic() {
        let directory = tempfile::tempdir().unwrap();
        let error = match fetch_guest(directory.path(), "file:///nowhere") {
            Ok(guest) => panic!("fetched {guest:?} from nowhere"),
            Err(Missing(reason)) => reason,
        };
        assert!(error.contains("Debian's"), "{error}");
        assert!(!directory.path().join("bookworm/unpacked").exists());
    }
}
