//! What it takes to interrupt a worker without leaving its code: KVM, what the CPU does for
//! interrupts there, and Dune.
//!
//! KVM's module parameters say what it was told to use and found it can use. Whether interrupts
//! really arrive without an exit is only known by counting exits, which is the runtime's to do.

use std::path::Path;

use dune_sys::Device;
use kvm_ioctls::Kvm;

use super::finding::Finding;
use super::root::Root;

/// Looks at KVM and Dune.
pub fn examine(root: &Root) -> Vec<Finding> {
    vec![
        kvm(Path::new("/dev/kvm")),
        module(root),
        posted_interrupts(root),
        ipi_virtualisation(root),
        dune(),
        xapic(root),
    ]
}

/// Opens the device and asks for its version.
fn kvm(path: &Path) -> Finding {
    const WHAT: &str = "/dev/kvm";
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path);
    if let Err(error) = opened {
        return match error.kind() {
            std::io::ErrorKind::NotFound => Finding::missing(
                WHAT,
                "there is no such device",
                "load kvm-intel or kvm-amd; in a virtual machine have its host allow nested virtualisation",
            ),
            std::io::ErrorKind::PermissionDenied => Finding::missing(
                WHAT,
                "no permission to open it",
                "add the user to the group kvm (usermod -aG kvm USER), and log in again",
            ),
            _ => Finding::missing(
                WHAT,
                format!("it does not open: {error}"),
                "virtualisation may be switched off in the firmware; dmesg says why",
            ),
        };
    }
    // 12 is the one version since Linux 2.6.22.
    let version = path
        .to_str()
        .and_then(|path| std::ffi::CString::new(path).ok())
        .and_then(|path| Kvm::new_with_path(path).ok())
        .map(|kvm| kvm.get_api_version());
    match version {
        Some(12) => Finding::found(WHAT, "may be opened, API version 12"),
        _ => Finding::missing(
            WHAT,
            "it opens, but does not answer like KVM with API version 12",
            "something else stands in its place: look at ls -l /dev/kvm",
        ),
    }
}

/// KVM's back-end modules, loaded or built in.
fn backends(root: &Root) -> Vec<String> {
    let mut names = root.names("/sys/module");
    names.retain(|name| name.starts_with("kvm_"));
    names
}

fn module(root: &Root) -> Finding {
    const WHAT: &str = "KVM back-end";
    match backends(root).join(", ") {
        names if names.is_empty() => Finding::missing(
            WHAT,
            "no module kvm_*",
            "load kvm-intel or kvm-amd",
        ),
        names if names == "kvm_pvm" => Finding::found(WHAT, names).but(
            "this one is nested, in software: guest code runs at full speed in ring 3 only, and every interrupt exits",
        ),
        names => Finding::found(WHAT, names),
    }
}

fn switched_on(root: &Root, parameter: &str) -> Option<bool> {
    let value = root.line(&format!("/sys/module/{parameter}"))?;
    Some(matches!(value.as_str(), "Y" | "y" | "1"))
}

fn posted_interrupts(root: &Root) -> Finding {
    const WHAT: &str = "APICv or AVIC";
    let apicv = switched_on(root, "kvm_intel/parameters/enable_apicv");
    let avic = switched_on(root, "kvm_amd/parameters/avic");
    match (apicv, avic) {
        (Some(true), _) => Finding::found(WHAT, "APICv is on (kvm_intel enable_apicv)"),
        (_, Some(true)) => Finding::found(WHAT, "AVIC is on (kvm_amd avic)"),
        (Some(false), _) => Finding::missing(
            WHAT,
            "kvm_intel is loaded with enable_apicv off: the CPU lacks it, or it was switched off",
            "modprobe kvm_intel enable_apicv=1, on a CPU with posted interrupts (server CPUs from Ivy Bridge-EP on)",
        ),
        (_, Some(false)) => Finding::missing(
            WHAT,
            "kvm_amd is loaded with avic off",
            "modprobe kvm_amd avic=1, on a CPU with x2AVIC (Zen 4) or AVIC",
        ),
        (None, None) => Finding::missing(
            WHAT,
            "neither kvm_intel nor kvm_amd is loaded",
            "interrupts in guest mode exit to the kernel without it; it takes a machine with VT-x or SVM",
        ),
    }
}

fn ipi_virtualisation(root: &Root) -> Finding {
    const WHAT: &str = "IPI virtualisation";
    let intel = switched_on(root, "kvm_intel/parameters/enable_ipiv");
    let avic = switched_on(root, "kvm_amd/parameters/avic");
    match (intel, avic) {
        (Some(true), _) => Finding::found(WHAT, "on (kvm_intel enable_ipiv)"),
        (_, Some(true)) => Finding::found(WHAT, "part of AVIC"),
        _ => Finding::missing(
            WHAT,
            "off, or the CPU lacks it",
            "with it a dispatcher in guest mode sends without a system call; Intel Sapphire Rapids and later, or AMD's AVIC",
        ),
    }
}

fn dune() -> Finding {
    const WHAT: &str = "/dev/dune";
    match Device::open() {
        Ok(device) => Finding::found(
            WHAT,
            format!(
                "answers; guest-physical memory ends at {:#x}",
                device.layout().phys_limit
            ),
        ),
        Err(error) => Finding::missing(
            WHAT,
            error.to_string(),
            "not needed: /dev/kvm does the same on stock kernels",
        ),
    }
}

/// Dune sends through the APIC's page, which is dead in x2APIC mode. The mode in force is not for
/// programs to see; the command line is.
fn xapic(root: &Root) -> Finding {
    const WHAT: &str = "xAPIC mode";
    let told = root
        .line("/proc/cmdline")
        .is_some_and(|line| line.split_whitespace().any(|word| word == "nox2apic"));
    if told {
        Finding::found(WHAT, "nox2apic is on the kernel's command line")
    } else {
        Finding::missing(
            WHAT,
            "no nox2apic on the kernel's command line",
            "only Dune needs it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::made_up;
    use super::*;

    #[test]
    fn module_parameters_tell_intel_from_amd() {
        let intel = [
            ("/sys/module/kvm_intel/parameters/enable_apicv", "Y\n"),
            ("/sys/module/kvm_intel/parameters/enable_ipiv", "N\n"),
        ];
        let (_directory, root) = made_up(&intel);
        assert!(posted_interrupts(&root).found);
        assert!(!ipi_virtualisation(&root).found);
        assert_eq!(module(&root), Finding::found("KVM back-end", "kvm_intel"));

        let (_directory, root) = made_up(&[("/sys/module/kvm_amd/parameters/avic", "1\n")]);
        assert!(posted_interrupts(&root).detail.contains("AVIC"));
        assert!(ipi_virtualisation(&root).found);

        let (_directory, root) = made_up(&[("/sys/module/kvm_amd/parameters/avic", "0\n")]);
        assert!(posted_interrupts(&root).advice.unwrap().contains("avic=1"));
        assert!(!ipi_virtualisation(&root).found);
    }

    #[test]
    fn a_nested_back_end_in_software_is_named() {
        let (_directory, root) = made_up(&[
            ("/sys/module/kvm/parameters/tdp_mmu", "N"),
            ("/sys/module/kvm_pvm/parameters/x", "1"),
        ]);
        let finding = module(&root);
        assert_eq!(finding.detail, "kvm_pvm");
        assert!(finding.advice.unwrap().contains("software"));
        assert!(!posted_interrupts(&root).found);
    }

    #[test]
    fn a_machine_without_kvm_gets_advice() {
        let (directory, root) = made_up(&[("/proc/cmdline", "quiet x2apic=1\n")]);
        assert!(!module(&root).found);
        assert!(!xapic(&root).found);
        let finding = kvm(&directory.path().join("kvm"));
        assert!(finding.detail.contains("no such device"), "{finding}");
    }

    #[test]
    fn another_file_in_kvms_place_is_no_kvm() {
        let (_directory, root) = made_up(&[("/dev/kvm", "text")]);
        for path in [root.path("/dev/kvm"), "/dev/null".into()] {
            let finding = kvm(&path);
            assert!(!finding.found, "{finding}");
        }
        assert!(kvm(&root.path("/dev")).detail.contains("does not open"));
    }

    #[test]
    fn nox2apic_is_a_whole_word() {
        let (_directory, root) = made_up(&[("/proc/cmdline", "quiet nox2apic\n")]);
        assert!(xapic(&root).found);
    }
}
