//! The emulators, as commands with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::image::Image;
use super::parts::{LIBRARIES, Missing, Packages, fetch_programs};
use super::{copy, posting, remove};
use crate::doctor::root::Root;
use crate::test::step::Step;

/// What is booted, and how.
#[derive(Debug)]
pub struct Boot<'a> {
    /// The kernel and its initramfs.
    pub image: &'a Image,
    /// The kernel's.
    pub command_line: &'a str,
    /// The file that the guest's console goes to.
    pub console: &'a Path,
    /// The time that it may take.
    pub limit: Duration,
}

/// Something that boots an [`Image`].
pub trait Emulator: Sized {
    /// What its files are called.
    const NAME: &'static str;
    /// Its options on the command line.
    const OPTIONS: &'static str;
    /// What KVM's module gets unless told otherwise.
    const MODULE_PARAMETERS: &'static str;
    /// The time it may take from its start to its end, which is some times what it takes.
    const LIMIT: Duration;
    /// Test targets to run beside those named `guest*`.
    const MORE_TARGETS: &'static [&'static str] = &[];
    /// Tests that may not skip themselves here: what the emulator is there for.
    const INSISTS_ON: &'static [&'static str] = &[];

    /// Finds it, or fetches it into `directory`.
    ///
    /// # Errors
    /// [`Missing`] with the reason.
    fn find(directory: &Path, mirror: &str) -> Result<Self, Missing>;

    /// The command that boots this, ending when the guest powers off.
    ///
    /// # Errors
    /// If what it boots from cannot be made.
    fn step(&self, boot: &Boot<'_>) -> Result<Step>;
}

/// QEMU, interpreting: an AMD CPU with SVM.
///
/// Its threads have to be those of version 8.1 or later, so it is Debian 13's, whatever the system
/// has:
///
/// - Before 8.1, with a thread for each CPU, one could go on with the translation of code that
///   another had just changed
///   (<https://lore.kernel.org/qemu-devel/20230707103611.5906-1-richard.henderson@linaro.org/>).
///   KVM has the kernel change its own code whenever a virtual machine is made: both CPUs then met
///   a breakpoint again and again that was long gone.
/// - With one thread for all CPUs (`thread=single`), also in 10.0, a wake-up of the thread between
///   `vmrun` and the next exit delivers the interrupt that `vmrun` injected a second time, masked
///   or not: `helper_vmrun` leaves it in `exception_index`. The frame on the interrupt stack is
///   then the handler's own, to which it returns for ever.
#[derive(Debug)]
pub struct Qemu {
    packages: Packages,
}

impl Emulator for Qemu {
    const NAME: &'static str = "qemu";
    const OPTIONS: &'static str = "--qemu";
    const MODULE_PARAMETERS: &'static str = "";
    const LIMIT: Duration = Duration::from_secs(8 * 60);
    /// The rack's XDP program, under the verifier of Debian 12's kernel (6.1).
    const MORE_TARGETS: &'static [&'static str] = &["rack"];
    const INSISTS_ON: &'static [&'static str] = &[
        "the_verifier_has_room_for_the_largest_configurations",
        "states::a_request_and_its_reply_go_there_and_back",
    ];

    fn find(directory: &Path, mirror: &str) -> Result<Self, Missing> {
        fetch_programs(directory, "trixie-qemu", &["qemu-system-x86"], mirror)
            .map(|packages| Self { packages })
    }

    fn step(&self, boot: &Boot<'_>) -> Result<Step> {
        let mut command = self.packages.start("usr/bin/qemu-system-x86_64", &[]);
        let settings = "-nodefaults -no-user-config -display none -monitor none -no-reboot -M q35 -m 2048 -smp 2 \
                        -accel tcg,thread=multi -cpu max,+svm";
        command.extend(settings.split_whitespace().map(str::to_owned));
        let shown = |path: &Path| path.display().to_string();
        for (option, value) in [
            ("-L", shown(&self.packages.at("usr/share/qemu"))),
            ("-L", shown(&self.packages.at("usr/share/seabios"))),
            ("-serial", format!("file:{}", boot.console.display())),
            ("-kernel", shown(&boot.image.kernel)),
            ("-initrd", shown(&boot.image.initramfs)),
            ("-append", boot.command_line.to_owned()),
        ] {
            command.extend([option.to_owned(), value]);
        }
        let program = command.remove(0);
        Ok(Step {
            name: "qemu",
            program,
            arguments: command,
            environment: Vec::new(),
            limit: boot.limit,
            has_tests: false,
            need: None,
        })
    }
}

/// Bochs: an Intel CPU with VMX.
#[derive(Debug)]
pub struct Bochs {
    packages: Packages,
    /// The program among the packages' files.
    program: &'static str,
    directory: PathBuf,
}

const PROGRAM: &str = "usr/bin/bochs-bin";

const SETTINGS: &str = include_str!("bochsrc");
/// Directories of libraries besides the usual one.
const MORE_LIBRARIES: [&str; 2] = ["pulseaudio", "bochs/plugins"];
const PACKAGES: [&str; 5] = [
    "bochs",
    "bochs-term",
    // What makes a disc that it can boot.
    "isolinux",
    "syslinux-common",
    "xorriso",
];

impl Bochs {
    /// A disc with kernel and initramfs. Bochs has no other way to be given them.
    fn disc(&self, image: &Image, command_line: &str) -> Result<PathBuf> {
        let tree = self.directory.join("disc");
        for (from, name) in [
            (
                self.packages.at("usr/lib/ISOLINUX/isolinux.bin"),
                "isolinux.bin",
            ),
            (
                self.packages
                    .at("usr/lib/syslinux/modules/bios/ldlinux.c32"),
                "ldlinux.c32",
            ),
            (image.kernel.clone(), "vmlinuz"),
            (image.initramfs.clone(), "initrd"),
        ] {
            copy(&from, &tree.join(name))?;
        }
        let menu = format!(
            "default guest\nlabel guest\nkernel vmlinuz\nappend initrd=initrd {command_line}\n"
        );
        std::fs::write(tree.join("isolinux.cfg"), menu).context("writing isolinux.cfg")?;
        let disc = self.directory.join("guest.iso");
        remove(&disc)?;
        let xorriso = self.packages.start("usr/bin/xorriso", &MORE_LIBRARIES);
        let output = Command::new(&xorriso[0])
            .args(&xorriso[1..])
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
    const OPTIONS: &'static str = "--bochs";
    /// With APICv, Debian's Bochs does not start KVM's virtual machines: see [`posting`].
    const MODULE_PARAMETERS: &'static str = "enable_apicv=0";
    const LIMIT: Duration = Duration::from_secs(20 * 60);

    fn find(directory: &Path, mirror: &str) -> Result<Self, Missing> {
        let search = std::env::var("PATH").unwrap_or_default();
        // Bochs wants a terminal to draw its screen on.
        if Root::of_this_machine().program(&search, "script").is_none() {
            return Err(Missing("no script: apt-get install bsdutils".to_owned()));
        }
        Ok(Self {
            packages: fetch_programs(directory, "trixie-bochs", &PACKAGES, mirror)?,
            program: PROGRAM,
            directory: directory.to_owned(),
        })
    }

    fn step(&self, boot: &Boot<'_>) -> Result<Step> {
        let disc = self.disc(boot.image, boot.command_line)?;
        let bios = self.packages.at("usr/share/bochs");
        let log = self.directory.join("bochs-own.log");
        let mut settings = SETTINGS.to_owned();
        for (place, path) in [
            ("@BIOS@", bios.join("BIOS-bochs-latest")),
            ("@VGABIOS@", bios.join("VGABIOS-lgpl-latest")),
            ("@DISC@", disc),
            ("@CONSOLE@", boot.console.to_owned()),
            ("@LOG@", log),
        ] {
            settings = settings.replace(place, &path.display().to_string());
        }
        let settings_path = self.directory.join("bochsrc");
        std::fs::write(&settings_path, settings).context("writing bochsrc")?;
        let mut command = self.packages.start(self.program, &MORE_LIBRARIES);
        command.extend([
            "-q".to_owned(),
            "-f".to_owned(),
            settings_path.display().to_string(),
        ]);
        let quoted: Vec<_> = command.iter().map(|word| format!("'{word}'")).collect();
        let environment = [
            (
                "LTDL_LIBRARY_PATH",
                self.packages.at(LIBRARIES).join("bochs/plugins"),
            ),
            ("BXSHARE", bios),
            ("TERM", "linux".into()),
            ("TERMINFO", self.packages.at("usr/share/terminfo")),
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
                .map(|(name, value)| (name.to_owned(), value.display().to_string()))
                .into(),
            limit: boot.limit,
            has_tests: false,
            need: None,
        })
    }
}

/// Bochs with [`posting`]: an Intel CPU with VMX and APICv, so that interrupts are posted.
#[derive(Debug)]
pub struct BochsWithApicv(Bochs);

impl Emulator for BochsWithApicv {
    const NAME: &'static str = "bochs-apicv";
    const OPTIONS: &'static str = "--bochs --apicv";
    const MODULE_PARAMETERS: &'static str = "enable_apicv=1";
    const LIMIT: Duration = Duration::from_secs(30 * 60);
    const MORE_TARGETS: &'static [&'static str] = &["stress_in_guest_mode"];
    const INSISTS_ON: &'static [&'static str] = &[
        "interrupts::five_hundred_interrupts_are_posted",
        "ordinary_code_survives_preemption_in_guest_mode",
    ];

    fn find(directory: &Path, mirror: &str) -> Result<Self, Missing> {
        const MENDED: &str = "usr/bin/bochs-bin-apicv";
        let bochs = Bochs::find(directory, mirror)?;
        posting::mend(&bochs.packages.at(PROGRAM), &bochs.packages.at(MENDED))?;
        println!("{}", posting::WHAT_WAS_DONE);
        Ok(Self(Bochs {
            program: MENDED,
            ..bochs
        }))
    }

    fn step(&self, boot: &Boot<'_>) -> Result<Step> {
        self.0.step(boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_gets_kernel_initramfs_and_console() {
        let qemu = Qemu {
            packages: Packages { root: "/q".into() },
        };
        let image = Image {
            kernel: "/k".into(),
            initramfs: "/i".into(),
        };
        let boot = Boot {
            image: &image,
            command_line: "quiet a=b",
            console: Path::new("/c.log"),
            limit: Duration::from_secs(1),
        };
        let step = qemu.step(&boot).unwrap();
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
