//! The files of a machine: this one's, or a directory that stands in for it.

use std::path::{Path, PathBuf};

/// The directory that is `/` for the readers.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// This machine's.
    pub fn of_this_machine() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A directory with what a test wants to be read.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Where an absolute path lies.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.0.join(absolute.trim_start_matches('/'))
    }

    /// The whole text of a file; `None` if it cannot be read.
    pub fn text(&self, absolute: &str) -> Option<String> {
        std::fs::read_to_string(self.path(absolute)).ok()
    }

    /// A file's text without the white space around it; `None` if there is none.
    pub fn line(&self, absolute: &str) -> Option<String> {
        let text = self.text(absolute)?;
        let line = text.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// The value of `key` in a file of lines such as `key: value`.
    pub fn field(&self, absolute: &str, key: &str) -> Option<String> {
        self.text(absolute)?.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    }

    /// Names in a directory, sorted; empty if there is none.
    pub fn names(&self, absolute: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(absolute));
        let names = entries.into_iter().flatten().flatten();
        let mut names: Vec<_> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The first directory of `search` (such as `PATH`) that has `program`.
    pub fn program(&self, search: &str, program: &str) -> Option<PathBuf> {
        search
            .split(':')
            .filter(|directory| !directory.is_empty())
            .map(|directory| Path::new(directory).join(program))
            .find(|path| self.path(&path.to_string_lossy()).is_file())
    }
}

/// A directory with the given files.
#[cfg(test)]
pub fn made_up(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = Root::at(directory.path());
    for (path, text) in files {
        let path = root.path(path);
        std::fs::create_dir_all(path.parent().expect("a file has a directory")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    (directory, root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_below_the_root() {
        let (_directory, root) = made_up(&[
            ("/proc/meminfo", "A:   1 kB\nHugePages_Total:  8\n"),
            ("/proc/empty", " \n"),
            ("/usr/bin/tool", ""),
        ]);
        assert_eq!(
            root.field("/proc/meminfo", "HugePages_Total").as_deref(),
            Some("8")
        );
        assert_eq!(root.field("/proc/meminfo", "HugePages"), None);
        assert_eq!(root.line("/proc/empty"), None);
        assert_eq!(root.line("/proc/none"), None);
        assert_eq!(root.names("/proc"), ["empty", "meminfo"]);
        assert!(root.names("/none").is_empty());
        let found = root.program("/bin::/usr/bin", "tool");
        assert_eq!(found.as_deref(), Some(Path::new("/usr/bin/tool")));
        assert_eq!(root.program("/bin", "tool"), None);
    }
}
