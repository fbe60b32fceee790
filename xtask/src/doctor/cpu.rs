//! What the CPU offers, from CPUID and from the kernel's word on what of it programs may use.

use raw_cpuid::{CpuId, CpuIdReader};

use super::finding::Finding;
use super::root::Root;

/// Looks at the CPU that `cpuid` reads.
pub fn examine<R: CpuIdReader>(root: &Root, cpuid: R) -> Vec<Finding> {
    let cpu = CpuId::with_cpuid_reader(cpuid.clone());
    vec![
        model(&cpu),
        hypervisor(&cpu),
        fsgsbase(root),
        tsc(root, &cpu),
        vectors(&cpu),
        saving(&cpu),
        uintr(&cpuid),
        siblings(root),
    ]
}

fn model<R: CpuIdReader>(cpu: &CpuId<R>) -> Finding {
    let brand = cpu.get_processor_brand_string();
    Finding::of(
        "model",
        brand
            .map(|brand| brand.as_str().trim().to_owned())
            .ok_or("the CPU does not tell its name"),
        "no harm; a hypervisor hides it",
    )
}

fn hypervisor<R: CpuIdReader>(cpu: &CpuId<R>) -> Finding {
    const WHAT: &str = "bare metal";
    let virtual_machine = cpu
        .get_feature_info()
        .is_some_and(|info| info.has_hypervisor());
    if !virtual_machine {
        return Finding::found(WHAT, "no hypervisor");
    }
    let name = cpu.get_hypervisor_info().map_or_else(
        || "unnamed".to_owned(),
        |info| format!("{:?}", info.identify()),
    );
    Finding::missing(
        WHAT,
        format!("a virtual machine, hypervisor {name}"),
        "interrupts between cores cost several times as much here; measure on the machine you will run on",
    )
}

/// The flag in CPUID tells what the CPU can do; only the kernel's auxiliary vector tells that
/// programs may use it.
fn fsgsbase(root: &Root) -> Finding {
    let vector = std::fs::read(root.path("/proc/self/auxv")).unwrap_or_default();
    let looked = match shinjuku_bench::machine::fsgsbase_enabled(&vector) {
        true => Ok("programs may write the FS base"),
        false => Err("programs may not write the FS base: contexts cannot run"),
    };
    Finding::of(
        "FSGSBASE",
        looked,
        "needs Linux 5.9 or later, a CPU from Ivy Bridge or Zen 2 on, and no `nofsgsbase` on the kernel's command line",
    )
}

fn tsc<R: CpuIdReader>(root: &Root, cpu: &CpuId<R>) -> Finding {
    let promised = cpu
        .get_advanced_power_mgmt_info()
        .is_some_and(|info| info.has_invariant_tsc());
    let source = root
        .line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_else(|| "unknown".to_owned());
    let looked = match (promised, source.as_str()) {
        (true, _) => Ok(format!(
            "promised by the CPU; the kernel's clock is {source}"
        )),
        (_, "tsc" | "kvm-clock") => Ok(format!("not promised, but the kernel's clock is {source}")),
        _ => Err(format!("not promised, and the kernel's clock is {source}")),
    };
    Finding::of(
        "invariant TSC",
        looked,
        "the runtime's clock is the TSC: in a virtual machine pass the host's CPU model on (constant_tsc, nonstop_tsc)",
    )
}

fn vectors<R: CpuIdReader>(cpu: &CpuId<R>) -> Finding {
    let features = cpu.get_extended_feature_info();
    let has =
        |check: fn(&raw_cpuid::ExtendedFeatures) -> bool| features.as_ref().is_some_and(check);
    let names: Vec<_> = [
        ("AVX2", has(raw_cpuid::ExtendedFeatures::has_avx2)),
        ("AVX-512F", has(raw_cpuid::ExtendedFeatures::has_avx512f)),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect();
    let looked = match names.is_empty() {
        true => Err("neither AVX2 nor AVX-512"),
        false => Ok(names.join(", ")),
    };
    Finding::of(
        "vector registers",
        looked,
        "nothing needs them; contexts are saved with what there is",
    )
}

fn saving<R: CpuIdReader>(cpu: &CpuId<R>) -> Finding {
    let usable = cpu
        .get_feature_info()
        .is_some_and(|info| info.has_xsave() && info.has_oxsave());
    let size = cpu
        .get_extended_state_info()
        .map(|info| info.xsave_area_size_enabled_features());
    let size = size.filter(|_| usable);
    Finding::of(
        "XSAVE",
        size.map(|size| format!("{size} bytes for all registers in use"))
            .ok_or("the kernel has not switched it on"),
        "preemption by signal works without; posted interrupts do not",
    )
}

/// CPUID leaf 7, EDX bit 5.
fn uintr(cpuid: &impl CpuIdReader) -> Finding {
    const WHAT: &str = "UINTR";
    let there = cpuid.cpuid1(0).eax >= 7 && cpuid.cpuid2(7, 0).edx & (1 << 5) != 0;
    if there {
        Finding::found(WHAT, "the CPU has user interrupts")
            .but("no released Linux lets programs use them, and neither does this runtime yet")
    } else {
        Finding::missing(
            WHAT,
            "the CPU has no user interrupts",
            "Intel Sapphire Rapids and later have them; nothing here uses them yet",
        )
    }
}

fn siblings(root: &Root) -> Finding {
    const WHAT: &str = "a core for each thread";
    match root.line("/sys/devices/system/cpu/smt/active").as_deref() {
        Some("1") => Finding::missing(
            WHAT,
            "SMT is on: two logical CPUs share a core",
            "give dispatcher and workers a core each (`cores` in the configuration), or switch SMT off: \
             echo off > /sys/devices/system/cpu/smt/control",
        ),
        Some(_) => Finding::found(WHAT, "SMT is off"),
        None => Finding::missing(
            WHAT,
            "the kernel does not tell whether SMT is on",
            "look at lscpu --extended",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::made_up;
    use super::*;
    use raw_cpuid::CpuIdResult;

    const NOTHING: CpuIdResult = CpuIdResult {
        eax: 0,
        ebx: 0,
        ecx: 0,
        edx: 0,
    };

    fn find(findings: &[Finding], what: &str) -> Finding {
        let found = findings.iter().find(|finding| finding.what == what);
        found
            .unwrap_or_else(|| panic!("{what} was not looked at"))
            .clone()
    }

    /// A CPU with everything: leaf, sub-leaf, answer.
    fn rich(leaf: u32, sub: u32) -> CpuIdResult {
        match (leaf, sub) {
            (0, _) => CpuIdResult {
                eax: 0xd,
                ebx: 0x756e_6547,
                ecx: 0x6c65_746e,
                edx: 0x4965_6e69,
            },
            (1, _) => CpuIdResult {
                ecx: 1 << 26 | 1 << 27,
                ..NOTHING
            },
            (7, 0) => CpuIdResult {
                ebx: 1 << 5 | 1 << 16,
                edx: 1 << 5,
                ..NOTHING
            },
            (0xd, 0) => CpuIdResult {
                eax: 7,
                ebx: 2696,
                ..NOTHING
            },
            (0x8000_0000, _) => CpuIdResult {
                eax: 0x8000_0008,
                ..NOTHING
            },
            (0x8000_0002..=0x8000_0004, _) => CpuIdResult {
                eax: u32::from_le_bytes(*b"Fast"),
                ..NOTHING
            },
            (0x8000_0007, _) => CpuIdResult {
                edx: 1 << 8,
                ..NOTHING
            },
            _ => NOTHING,
        }
    }

    #[test]
    fn a_rich_machine_has_it_all() {
        let auxv: Vec<u8> = [26_u64, 0b10]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let (directory, root) = made_up(&[("/sys/devices/system/cpu/smt/active", "0\n")]);
        std::fs::create_dir_all(directory.path().join("proc/self")).unwrap();
        std::fs::write(root.path("/proc/self/auxv"), auxv).unwrap();
        let findings = examine(&root, rich);
        for finding in &findings {
            assert!(finding.found, "{finding}");
        }
        assert_eq!(find(&findings, "vector registers").detail, "AVX2, AVX-512F");
        assert!(find(&findings, "XSAVE").detail.starts_with("2696 bytes"));
        assert!(find(&findings, "model").detail.starts_with("Fast"));
    }

    #[test]
    fn a_poor_machine_lacks_it_all() {
        let poor = |leaf: u32, _: u32| match leaf {
            // Leaf 7 is beyond the last one: what it answers means nothing.
            0 => CpuIdResult { eax: 1, ..NOTHING },
            1 => CpuIdResult {
                ecx: 1 << 31,
                ..NOTHING
            },
            7 => CpuIdResult {
                edx: 1 << 5,
                ..NOTHING
            },
            _ => NOTHING,
        };
        let (_directory, root) = made_up(&[
            ("/sys/devices/system/cpu/smt/active", "1\n"),
            (
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
            ),
        ]);
        let findings = examine(&root, poor);
        for finding in &findings {
            assert!(!finding.found, "{finding}");
        }
        assert!(
            find(&findings, "bare metal")
                .detail
                .contains("virtual machine")
        );
        assert!(find(&findings, "invariant TSC").detail.contains("hpet"));
    }

    #[test]
    fn a_clock_that_the_kernel_trusts_will_do() {
        let (_directory, root) = made_up(&[(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "kvm-clock\n",
        )]);
        let findings = examine(&root, |_: u32, _: u32| NOTHING);
        assert!(find(&findings, "invariant TSC").found);
    }
}
