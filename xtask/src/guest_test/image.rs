//! What the emulators boot: Debian's kernel, and an initramfs with BusyBox, KVM's modules and the
//! test binaries.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::parts::Guest;
use super::suite::{Suite, libraries};
use super::{copy, remove};

/// Files to boot.
#[derive(Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
}

const INIT: &str = include_str!("init.sh");
/// KVM's modules in the kernel's package, and what they stand on.
const MODULES: [&str; 5] = [
    "virt/lib/irqbypass.ko",
    "drivers/crypto/ccp/ccp.ko",
    "arch/x86/kvm/kvm.ko",
    "arch/x86/kvm/kvm-amd.ko",
    "arch/x86/kvm/kvm-intel.ko",
];
/// What `init.sh` calls.
const APPLETS: [&str; 13] = [
    "sh", "mount", "mkdir", "ip", "echo", "uname", "cat", "grep", "insmod", "timeout", "poweroff",
    "[", "sleep",
];

/// Makes the initramfs in `directory`.
///
/// # Errors
/// If a part is missing or cannot be written.
pub fn make(directory: &Path, guest: &Guest, suites: &[Suite]) -> Result<Image> {
    let tree = directory.join("initramfs");
    match fs::remove_dir_all(&tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", tree.display()));
        }
        _ => {}
    }
    for below in ["bin", "dev", "proc", "sys", "tmp", "suite", "modules"] {
        fs::create_dir_all(tree.join(below))
            .with_context(|| format!("making {below} in {}", tree.display()))?;
    }
    let busybox = guest.root.join("bin/busybox");
    copy(&busybox, &tree.join("bin/busybox"))?;
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet))
            .with_context(|| format!("linking {applet}"))?;
    }
    let modules = guest
        .root
        .join("lib/modules")
        .join(&guest.kernel_release)
        .join("kernel");
    for module in MODULES {
        let from = modules.join(module);
        let name = from.file_name().context("a module has a name")?;
        copy(&from, &tree.join("modules").join(name))?;
    }
    let init = tree.join("init");
    fs::write(&init, INIT).with_context(|| format!("writing {}", init.display()))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
        .context("making init executable")?;
    for suite in suites {
        add_binary(&tree, &suite.binary, &suite.name)?;
    }
    let initramfs = directory.join("initramfs.cpio");
    archive(&busybox, &tree, &initramfs)?;
    Ok(Image {
        kernel: guest
            .root
            .join("boot")
            .join(format!("vmlinuz-{}", guest.kernel_release)),
        initramfs,
    })
}

/// Adds a program without its debugging information, and the libraries it needs.
fn add_binary(tree: &Path, binary: &Path, name: &str) -> Result<()> {
    let to = tree.join("suite").join(name);
    copy(binary, &to)?;
    // Without it the image is only larger.
    let _ = Command::new("strip")
        .arg("--strip-debug")
        .arg(&to)
        .stdin(Stdio::null())
        .output();
    for library in libraries(binary)? {
        let below = library
            .strip_prefix("/")
            .context("ldd answers absolute paths")?;
        copy(&library, &tree.join(below))?;
    }
    Ok(())
}

/// Packs `tree` as the kernel wants it.
fn archive(busybox: &Path, tree: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    let status = Command::new("sh")
        .arg("-c")
        .arg(r#"find . | "$0" cpio -o -H newc > "$1""#)
        .arg(busybox)
        .arg(to)
        .current_dir(tree)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("sh does not start")?;
    ensure!(
        status.success() && to.metadata().is_ok_and(|file| file.len() > 0),
        "the initramfs could not be packed"
    );
    Ok(())
}

/// Ticks at a fixed rate, not by timers of one shot: both emulators lose an interrupt at times, and
/// only the next tick, which comes by itself, makes a CPU look for interrupts again.
///
/// - QEMU before 10.2 loses one that comes while the CPU leaves a virtual machine: `do_vmexit`
///   clears a bit of `interrupt_request` without the lock, over bits that other threads set
///   (<https://lore.kernel.org/qemu-devel/20250829153115.1590048-2-pbonzini@redhat.com/>). With
///   timers of one shot the CPU could then stay in the virtual machine for good, and the other CPU
///   waited for its answer to a TLB flush, also for good.
/// - Bochs 3.0 stops both CPUs' timers of one shot after some minutes.
const PERIODIC_TICKS: &str = "highres=off nohz=off";

/// At its start the kernel counts ticks while its CPU loops for a while, and panics if there are
/// too few ("IO-APIC + timer doesn't work!"): on a busy host, which has the emulator wait.
const NO_TIMER_CHECK: &str = "no_timer_check";

/// The kernel's command line. `init.sh` reads what is not the kernel's. A suite may take `limit`.
///
/// # Errors
/// If a parameter or the filter has characters that would break the line.
pub fn command_line(parameters: &str, filter: &str, limit: Duration) -> Result<String> {
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-=:,.".contains(&byte))
    };
    let mut line = format!(
        "console=ttyS0,115200 quiet panic=-1 nokaslr mitigations=off tsc=reliable {PERIODIC_TICKS} {NO_TIMER_CHECK} guest.limit={}",
        limit.as_secs().max(1)
    );
    for parameter in parameters.split_whitespace() {
        ensure!(
            plain(parameter),
            "{parameter:?} is no parameter of a module"
        );
        line += &format!(" guest.parameter={parameter}");
    }
    if !filter.is_empty() {
        ensure!(plain(filter), "{filter:?} is no part of a test's name");
        line += &format!(" guest.filter={filter}");
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn parameters_and_filter_go_through_the_command_line() {
        let line = command_line("enable_apicv=1  nested=0", "guest::deep", LIMIT).unwrap();
        assert!(line.ends_with(
            " guest.limit=60 guest.parameter=enable_apicv=1 guest.parameter=nested=0 guest.filter=guest::deep"
        ));
        assert!(
            command_line("", "", LIMIT)
                .unwrap()
                .ends_with(" guest.limit=60")
        );
    }

    #[test]
    fn nothing_else_gets_onto_the_command_line() {
        assert!(command_line("a=$(reboot)", "", LIMIT).is_err());
        assert!(command_line("", "a b", LIMIT).is_err());
        assert!(command_line("", "a\"b", LIMIT).is_err());
    }

    #[test]
    fn init_calls_only_what_is_linked() {
        let builtin = [
            "export", "for", "do", "done", "case", "esac", "if", "then", "else", "fi", "in",
        ];
        for line in INIT.lines().map(str::trim) {
            let Some(word) = line.split([' ', ';']).next() else {
                continue;
            };
            let is_command = !word.is_empty()
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'[');
            assert!(
                !is_command || builtin.contains(&word) || APPLETS.contains(&word),
                "{word} is not in the initramfs"
            );
        }
    }
}
