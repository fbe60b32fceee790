//! The emulators, as commands with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::image::Image;
use super::parts::{Missing, Packages, fetch_bochs};
use super::{copy, remove};
use crate::doctor::root::Root;
use crate::test::step::Step;

/// Something that boots an [`Image`].
pub trait Emulator: Sized {
    /// Its option on the command line.
    const NAME: &'static str;
    /// What KVM's module gets unless told otherwise.
    const MODULE_PARAMETERS: &'static str;

    /// Finds it, or fetches it into `directory`.
    ///
    /// # Errors
    /// [`Missing`] with the reason.
    fn find(directory: &Path, mirror: &str) -> Result<Self, Missing>;

    /// The command that boots `image`, its console going to the file `console`, ending when the guest powers off.
    ///
    /// # Errors
    /// If what it boots from cannot be made.
    fn step(&self, image: &Image, command_line: &str, console: &Path) -> Result<Step>;
}

/// QEMU, interpreting: an AMD CPU with SVM.
#[derive(Debug)]
pub struct Qemu {
    program: PathBuf,
}

impl Emulator for Qemu {
    const NAME: &'static str = "qemu";
    const MODULE_PARAMETERS: &'static str = "";

    fn find(_: &Path, _: &str) -> Result<Self, Missing> {
        let search = std::env::var("PATH").unwrap_or_default();
        Root::of_this_machine()
            .program(&search, "qemu-system-x86_64")
            .map(|program| Self { program })
            .ok_or_else(|| {
                Missing("no qemu-system-x86_64: apt-get install qemu-system-x86".to_owned())
            })
    }

    fn step(&self, image: &Image, command_line: &str, console: &Path) -> Result<Step> {
        let mut arguments: Vec<String> =
            "-nodefaults -no-user-config -display none -monitor none -no-reboot -M q35 -m 2048 \
                                          -smp 2 -accel tcg,thread=multi -cpu max,+svm"
                .split_whitespace()
                .map(str::to_owned)
                .collect();
        for (option, value) in [
            ("-serial", format!("file:{}", console.display())),
            ("-kernel", image.kernel.display().to_string()),
            ("-initrd", image.initramfs.display().to_string()),
            ("-append", command_line.to_owned()),
        ] {
            arguments.extend([option.to_owned(), value]);
        }
        Ok(Step {
            name: "qemu",
            program: self.program.display().to_string(),
            arguments,
            environment: Vec::new(),
            limit: Duration::from_secs(8 * 60),
            has_tests: false,
            need: None,
        })
    }
}

/// Bochs: an Intel CPU with VMX.
#[derive(Debug)]
pub struct Bochs {
    packages: Packages,
    directory: PathBuf,
}

const SETTINGS: &str = include_str!("bochsrc");
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

impl Bochs {
    fn at(&self, below: &str) -> PathBuf {
        self.packages.root.join(below)
    }

    /// Starts a program of the packages with the packages' own libraries: the system's may be older.
    fn loader(&self) -> Vec<String> {
        let libraries = self.at(LIBRARIES);
        let path = ["", "pulseaudio", "bochs/plugins"]
            .map(|below| libraries.join(below).display().to_string())
            .join(":");
        let loader = libraries.join("ld-linux-x86-64.so.2");
        vec![
            loader.display().to_string(),
            "--library-path".to_owned(),
            path,
        ]
    }

    /// A disc with kernel and initramfs. Bochs has no other way to be given them.
    fn disc(&self, image: &Image, command_line: &str) -> Result<PathBuf> {
        let tree = self.directory.join("disc");
        for (from, name) in [
            (self.at("usr/lib/ISOLINUX/isolinux.bin"), "isolinux.bin"),
            (
                self.at("usr/lib/syslinux/modules/bios/ldlinux.c32"),
                "ldlinux.c32",
            ),
            (image.kernel.clone(), "vmlinuz"),
            (image.initramfs.clone(), "initrd"),
        ] {
            copy(&from, &tree.join(name))?;
        }
        // With timers of one shot Bochs 3.0 stops both CPUs' ticks after some minutes.
        let menu = format!(
            "default guest\nlabel guest\nkernel vmlinuz\nappend initrd=initrd highres=off nohz=off {command_line}\n"
        );
        std::fs::write(tree.join("isolinux.cfg"), menu).context("writing isolinux.cfg")?;
        let disc = self.directory.join("guest.iso");
        remove(&disc)?;
        let loader = self.loader();
        let output = Command::new(&loader[0])
            .args(&loader[1..])
            .arg(self.at("usr/bin/xorriso"))
            .args("-as mkisofs -quiet -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table -o".split(' '))
            .arg(&disc)
            .arg(&tree)
            .stdin(Stdio::null())
            .output()
            .context("xorriso does not start")?;
        ensure!(
            output.status.success(),
            "xorriso could not make {}: {}",
            disc.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(disc)
    }
}

impl Emulator for Bochs {
    const NAME: &'static str = "bochs";
    /// With APICv, Bochs 3.0 takes posted-interrupt descriptors only at whole pages (mended after 3.0), where KVM does not
    /// put them.
    const MODULE_PARAMETERS: &'static str = "enable_apicv=0";

    fn find(directory: &Path, mirror: &str) -> Result<Self, Missing> {
        let search = std::env::var("PATH").unwrap_or_default();
        // Bochs wants a terminal to draw its screen on.
        if Root::of_this_machine().program(&search, "script").is_none() {
            return Err(Missing("no script: apt-get install bsdutils".to_owned()));
        }
        Ok(Self {
            packages: fetch_bochs(directory, mirror)?,
            directory: directory.to_owned(),
        })
    }

    fn step(&self, image: &Image, command_line: &str, console: &Path) -> Result<Step> {
        let disc = self.disc(image, command_line)?;
        let bios = self.at("usr/share/bochs");
        let log = self.directory.join("bochs-own.log");
        let mut settings = SETTINGS.to_owned();
        for (place, path) in [
            ("@BIOS@", bios.join("BIOS-bochs-latest")),
            ("@VGABIOS@", bios.join("VGABIOS-lgpl-latest")),
            ("@DISC@", disc),
            ("@CONSOLE@", console.to_owned()),
            ("@LOG@", log),
        ] {
            settings = settings.replace(place, &path.display().to_string());
        }
        let settings_path = self.directory.join("bochsrc");
        std::fs::write(&settings_path, settings).context("writing bochsrc")?;
        let mut command = self.loader();
        command.extend([
            self.at("usr/bin/bochs-bin").display().to_string(),
            "-q".to_owned(),
            "-f".to_owned(),
            settings_path.display().to_string(),
        ]);
        let quoted: Vec<_> = command.iter().map(|word| format!("'{word}'")).collect();
        let environment = [
            (
                "LTDL_LIBRARY_PATH",
                self.at(LIBRARIES)
                    .join("bochs/plugins")
                    .display()
                    .to_string(),
            ),
            ("BXSHARE", bios.display().to_string()),
            ("TERM", "linux".to_owned()),
            (
                "TERMINFO",
                self.at("usr/share/terminfo").display().to_string(),
            ),
        ];
        Ok(Step {
            name: "bochs",
            program: "sh".to_owned(),
            arguments: vec![
                "-c".to_owned(),
                "exec script -qec \"$0\" /dev/null > /dev/null".to_owned(),
                quoted.join(" "),
            ],
            environment: environment
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            limit: Duration::from_secs(20 * 60),
            has_tests: false,
            need: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_gets_kernel_initramfs_and_console() {
        let qemu = Qemu {
            program: "qemu".into(),
        };
        let image = Image {
            kernel: "/k".into(),
            initramfs: "/i".into(),
        };
        let step = qemu.step(&image, "quiet a=b", Path::new("/c.log")).unwrap();
        let has = |option: &str, value: &str| {
            step.arguments
                .windows(2)
                .any(|pair| pair == [option, value])
        };
        assert!(has("-kernel", "/k") && has("-initrd", "/i"));
        assert!(has("-append", "quiet a=b") && has("-serial", "file:/c.log"));
    }

    #[test]
    fn every_place_in_bochss_settings_is_filled() {
        let filled = ["@BIOS@", "@VGABIOS@", "@DISC@", "@CONSOLE@", "@LOG@"]
            .into_iter()
            .fold(SETTINGS.to_owned(), |settings, place| {
                assert!(settings.contains(place), "{place}");
                settings.replace(place, "/x")
            });
        assert!(!filled.contains('@'));
    }
}
