//! What cargo's configuration says, as far as `cargo shinjuku` has to know it: the compiler's
//! wrapper that is there already, and what is built for.
//!
//! The environment comes before files, and of these the nearest to the working directory first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The wrapper that cargo would use without this program.
pub fn wrapper() -> Option<OsString> {
    let by_environment = ["RUSTC_WRAPPER", "CARGO_BUILD_RUSTC_WRAPPER"]
        .into_iter()
        .find_map(std::env::var_os);
    if let Some(wrapper) = by_environment {
        // An empty value means no wrapper, whatever the files say.
        return Some(wrapper).filter(|wrapper| !wrapper.is_empty());
    }
    directories().find_map(|directory| wrapper_of(&directory))
}

/// What cargo builds for by its configuration, where the arguments have no `--target`. `settings`
/// are the values of `--config`, which come before the environment: a file each, or what could be
/// in one.
pub fn targets<'a>(settings: impl Iterator<Item = &'a str>) -> Vec<String> {
    let by_arguments: Vec<_> = settings
        .filter_map(|setting| {
            let in_file = std::fs::read_to_string(setting);
            targets_of(
                &in_file
                    .unwrap_or_else(|_| setting.to_owned())
                    .parse()
                    .ok()?,
            )
        })
        .collect();
    let by_environment = || Some(vec![std::env::var("CARGO_BUILD_TARGET").ok()?]);
    let by_files = || directories().find_map(|directory| targets_of(&table(&directory)?));
    // Of several arguments cargo takes the last.
    (by_arguments.into_iter().next_back())
        .or_else(by_environment)
        .or_else(by_files)
        .unwrap_or_default()
}

/// Where cargo looks for its configuration.
fn directories() -> impl Iterator<Item = PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let parents: Vec<_> = (here.ancestors())
        .map(|parent| parent.join(".cargo"))
        .collect();
    parents.into_iter().chain(home)
}

/// The configuration file in a directory `.cargo`.
fn table(directory: &Path) -> Option<Table> {
    let text = ["config", "config.toml"]
        .iter()
        .find_map(|name| std::fs::read_to_string(directory.join(name)).ok())?;
    text.parse().ok()
}

/// `build.rustc-wrapper` of the configuration file in a directory `.cargo`.
fn wrapper_of(directory: &Path) -> Option<OsString> {
    let table = table(directory)?;
    let wrapper = table.get("build")?.get("rustc-wrapper")?.as_str()?;
    // Cargo searches the path for a name; a relative path is relative to the parent of `.cargo`.
    Some(match (wrapper.contains('/'), directory.parent()) {
        (true, Some(parent)) => parent.join(wrapper).into(),
        _ => wrapper.into(),
    })
}

/// `build.target`: one, or several.
fn targets_of(table: &Table) -> Option<Vec<String>> {
    match table.get("build")?.get("target")? {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(several) => {
            let several = several.iter().filter_map(Value::as_str);
            Some(several.map(String::from).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in a directory `.cargo`.
    fn written(text: &str) -> tempfile::TempDir {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join(".cargo");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("config.toml"), text).unwrap();
        parent
    }

    #[test]
    fn a_configured_wrapper_is_found_where_cargo_finds_it() {
        let wrapper_in = |text: &str| {
            let parent = written(text);
            let wrapper = wrapper_of(&parent.path().join(".cargo"));
            (wrapper, parent.path().to_owned())
        };
        assert_eq!(wrapper_in("").0, None);
        let (wrapper, _) = wrapper_in("[build]\nrustc-wrapper = \"sccache\"\n");
        assert_eq!(wrapper, Some("sccache".into()));
        let (wrapper, parent) = wrapper_in("[build]\nrustc-wrapper = \"tools/wrap\"\n");
        assert_eq!(wrapper, Some(parent.join("tools/wrap").into()));
    }

    #[test]
    fn one_target_or_several_are_read() {
        let targets_in = |text: &str| targets_of(&text.parse().unwrap());
        assert_eq!(targets_in("[build]\njobs = 1\n"), None);
        let one = "[build]\ntarget = \"mips-unknown-linux-gnu\"\n";
        assert_eq!(
            targets_in(one),
            Some(vec!["mips-unknown-linux-gnu".to_owned()])
        );
        let several = "[build]\ntarget = [\"one\", \"other\"]\n";
        assert_eq!(
            targets_in(several),
            Some(vec!["one".to_owned(), "other".to_owned()])
        );
    }

    #[test]
    fn the_last_argument_comes_before_the_others() {
        let parent = written("[build]\ntarget = \"of-a-file\"\n");
        let file = parent.path().join(".cargo/config.toml");
        let inline = "build.target = \"of-an-argument\"";
        let file = file.to_str().unwrap();
        assert_eq!(
            targets([file, inline].into_iter()),
            ["of-an-argument".to_owned()]
        );
        assert_eq!(
            targets([inline, file].into_iter()),
            ["of-a-file".to_owned()]
        );
    }
}
