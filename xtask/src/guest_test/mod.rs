//! `cargo xtask guest-test`: the guest-mode tests on virtualisation hardware, and the rack's on a
//! kernel, that this machine does not have.
//!
//! An emulator boots Debian's kernel with KVM in it and runs test binaries from a small initramfs:
//!
//! - `--qemu`: QEMU's emulation with kvm-amd (`-cpu max,+svm`); and the tests of the rack's XDP
//!   program, which the verifier of Linux 6.1 must take;
//! - `--bochs`: Bochs 3 with kvm-intel;
//! - `--bochs --apicv`: the same with posted interrupts ([`posting`]), and the stress test besides.
//!
//! Kernel, BusyBox and emulators are Debian's packages, fetched and unpacked below `target/`, never
//! installed. Where a part cannot be had, the tier is skipped by name, with the reason. Everything
//! has a time limit: a suite in the guest, and the emulator as a whole, which is killed. Either way
//! the test that ran is named.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::test::step::{End, Step};
use shinjuku_bench::paths;

pub mod console;
pub mod emulator;
pub mod image;
pub mod parts;
pub mod posting;
pub mod suite;

use console::Console;
use emulator::{Bochs, BochsWithApicv, Boot, Emulator, Qemu};
use parts::Missing;

/// How often a tier is tried where the emulated machine itself stands still.
const ATTEMPTS: u32 = 2;

/// Arguments of `cargo xtask guest-test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Under QEMU's emulation, with kvm-amd.
    #[arg(long)]
    qemu: bool,
    /// Under Bochs, with kvm-intel.
    #[arg(long)]
    bochs: bool,
    /// With --bochs: with APICv, where interrupts must be found posted, and with the stress test.
    #[arg(long, requires = "bochs")]
    apicv: bool,
    /// A test target of crates/preempt, or `rack`, to run (may be given several times); those named
    /// guest* by default, with `--qemu` and rack.
    #[arg(long, value_name = "NAME")]
    test: Vec<String>,
    /// Run only tests whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Parameters for the module kvm-amd or kvm-intel, for example enable_apicv=1.
    #[arg(long, value_name = "PARAMETERS")]
    module_parameters: Option<String>,
    /// Where Debian's packages are fetched from.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://deb.debian.org/debian"
    )]
    mirror: String,
    /// Also copy the whole console here.
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Multiplies the time limits, for slow machines.
    #[arg(long, default_value_t = 1.0, value_parser = crate::test::patience)]
    patience: f64,
}

/// Runs `cargo xtask guest-test`.
///
/// # Errors
/// If no emulator is named, the suite cannot be built, or the emulator not be started. Failing
/// tests are no error but the exit code 1.
pub fn run(options: &Options) -> Result<ExitCode> {
    ensure!(
        options.qemu || options.bochs,
        "say where to run: --qemu, --bochs, or both"
    );
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for Ctrl-C")?;
    }
    let mut ok = true;
    if options.qemu {
        ok &= tier::<Qemu>(options, &stop)?;
    }
    if options.apicv {
        ok &= tier::<BochsWithApicv>(options, &stop)?;
    } else if options.bochs {
        ok &= tier::<Bochs>(options, &stop)?;
    }
    Ok(if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One tier. Answers whether all is well: passed, or skipped with a reason.
fn tier<E: Emulator>(options: &Options, stop: &AtomicBool) -> Result<bool> {
    let directory = paths::target_dir().join("guest-test");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    // Two runs would build in each other's files.
    let lock = std::fs::File::create(directory.join("lock")).context("making the lock")?;
    if lock.try_lock().is_err() {
        bail!("another guest-test runs in {}", directory.display());
    }
    let parts = E::find(&directory, &options.mirror)
        .and_then(|emulator| Ok((parts::fetch_guest(&directory, &options.mirror)?, emulator)));
    let (guest, emulator) = match parts {
        Ok(parts) => parts,
        Err(Missing(reason)) => {
            println!("SKIPPED guest-test {}: {reason}", E::OPTIONS);
            println!("0 passed, 0 failed, 1 skipped");
            return Ok(true);
        }
    };
    let suites = suite::build(&options.test, E::MORE_TARGETS)?;
    let image = image::make(&directory, &guest, &suites)?;
    let console_path = directory.join(format!("{}.log", E::NAME));
    let limit = E::LIMIT.mul_f64(options.patience);
    let command_line = image::command_line(
        options
            .module_parameters
            .as_deref()
            .unwrap_or(E::MODULE_PARAMETERS),
        &options.filter,
        // What is left is for the guest to start and to end.
        limit.mul_f64(0.8),
    )?;
    let step = emulator.step(&Boot {
        image: &image,
        command_line: &command_line,
        console: &console_path,
        limit,
    })?;
    println!(
        "== {}: {} with {}, at most {} s; tail -f {}",
        E::OPTIONS,
        guest.kernel_release,
        suites
            .iter()
            .map(|suite| suite.name.as_str())
            .collect::<Vec<_>>()
            .join(", "),
        step.limit.as_secs(),
        console_path.display()
    );
    boot::<E>(&step, &directory, &console_path, options, stop)
}

/// Boots the emulator until its kernel comes to an end; tells whether everything passed.
fn boot<E: Emulator>(
    step: &Step,
    directory: &Path,
    console_path: &Path,
    options: &Options,
    stop: &AtomicBool,
) -> Result<bool> {
    for attempt in 1..=ATTEMPTS {
        // What is left of another run must not be taken for this one's.
        remove(console_path)?;
        let outcome = step.run(directory, stop, &mut |line| println!("{line}"))?;
        let text = std::fs::read(console_path).unwrap_or_default();
        let console = Console::read(&String::from_utf8_lossy(&text));
        if let Some(copy) = &options.log {
            std::fs::write(copy, console.clean_text())
                .with_context(|| format!("writing {}", copy.display()))?;
        }
        // A choice of tests may leave them out.
        let all = options.test.is_empty() && options.filter.is_empty();
        let insists_on = if all { E::INSISTS_ON } else { &[] };
        let verdict = console
            .verdict()
            .and_then(|()| (insists_on.iter()).try_for_each(|test| console.insist_on(test)));
        if let (Err(why), Some(stall), true) = (&verdict, console.stall(), attempt < ATTEMPTS) {
            println!("{why}; the guest's kernel says: {stall}");
            println!("A CPU that stands still in the kernel is the emulator's doing: once more.");
            continue;
        }
        report(&console, &verdict, &outcome.end, outcome.elapsed);
        return Ok(verdict.is_ok());
    }
    unreachable!("the last attempt reports")
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn report(console: &Console, verdict: &Result<(), String>, end: &End, elapsed: Duration) {
    for line in &console.worth_showing {
        println!("{line}");
    }
    for skip in &console.tally.skipped {
        println!("skipped {}: {}", skip.name, skip.reason);
    }
    let mut failed = console.tally.failed;
    if let Err(why) = verdict {
        failed = failed.max(1);
        println!("FAILED: {why} (the emulator: {end:?})");
    }
    println!("the emulator ran for {:.0} s", elapsed.as_secs_f64());
    println!(
        "{} passed, {failed} failed, {} skipped",
        console.tally.passed,
        console.tally.skipped.len()
    );
}

/// A whole file, or an error that names it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    ensure!(from.is_file(), "there is no {}", from.display());
    std::fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}
