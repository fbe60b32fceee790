//! What decides how still the machine is under a measurement, and how much a server may take.

use rustix::process::{Resource, getrlimit};
use shinjuku_preempt::Realtime;

use super::finding::Finding;
use super::root::Root;

/// Looks at the kernel's settings and this process's limits.
pub fn examine(root: &Root) -> Vec<Finding> {
    let limit = |resource| {
        // No limit is written as none.
        getrlimit(resource).current.unwrap_or(u64::MAX)
    };
    vec![
        kernel(root),
        isolated(root),
        fifo(Realtime::enter(1).err().map(|error| error.to_string())),
        rtprio(limit(Resource::Rtprio)),
        throttling(root),
        governor(root),
        hugepages(root),
        files(limit(Resource::Nofile)),
        net_admin(root),
    ]
}

fn kernel(root: &Root) -> Finding {
    let release = root.line("/proc/sys/kernel/osrelease");
    let looked = release.ok_or("no /proc/sys/kernel/osrelease".to_owned());
    let looked = looked.and_then(|release| {
        let mut numbers = release
            .split(|character: char| !character.is_ascii_digit())
            .map(|number| number.parse().unwrap_or(0_u32));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match version >= (5, 9) {
            true => Ok(format!("Linux {release}")),
            false => Err(format!("Linux {release} is too old")),
        }
    });
    Finding::of("kernel", looked, "FSGSBASE takes Linux 5.9 or later")
}

fn isolated(root: &Root) -> Finding {
    Finding::of(
        "isolated cores",
        root.line("/sys/devices/system/cpu/isolated").ok_or("none"),
        "isolcpus=LIST nohz_full=LIST rcu_nocbs=LIST on the kernel's command line keeps other work off the measured cores",
    )
}

fn fifo(refused: Option<String>) -> Finding {
    Finding::of(
        "SCHED_FIFO",
        refused.map_or(Ok("permitted (tried)"), Err),
        "without it measurements are noisy, and a busy machine delays the dispatcher",
    )
}

fn rtprio(limit: u64) -> Finding {
    const WHAT: &str = "RLIMIT_RTPRIO";
    match limit {
        0 => Finding::missing(
            WHAT,
            "0: only with CAP_SYS_NICE may this process use real-time priorities",
            "`USER - rtprio 99` in /etc/security/limits.conf, or LimitRTPRIO=99 in the service's unit",
        ),
        u64::MAX => Finding::found(WHAT, "no limit"),
        limit => Finding::found(WHAT, limit.to_string()),
    }
}

fn throttling(root: &Root) -> Finding {
    const WHAT: &str = "unthrottled real time";
    match root.line("/proc/sys/kernel/sched_rt_runtime_us").as_deref() {
        Some("-1") => Finding::found(WHAT, "sched_rt_runtime_us is -1"),
        Some(value) => Finding::missing(
            WHAT,
            format!("sched_rt_runtime_us is {value} of every 1000000"),
            "threads under SCHED_FIFO that never sleep are stopped for the rest of each second; for a server that owns its \
             cores: sysctl kernel.sched_rt_runtime_us=-1",
        ),
        None => Finding::missing(
            WHAT,
            "the kernel does not tell",
            "look at sysctl kernel.sched_rt_runtime_us",
        ),
    }
}

fn governor(root: &Root) -> Finding {
    const WHAT: &str = "CPU governor";
    let mut governors: Vec<_> = root
        .names("/sys/devices/system/cpu")
        .iter()
        .filter_map(|cpu| {
            root.line(&format!(
                "/sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor"
            ))
        })
        .collect();
    governors.sort();
    governors.dedup();
    match governors.join(", ") {
        names if names == "performance" => Finding::found(WHAT, names),
        names if names.is_empty() => Finding::missing(
            WHAT,
            "the kernel does not control the frequency here",
            "in a virtual machine it is the host's; else load a cpufreq driver",
        ),
        names => Finding::missing(
            WHAT,
            names,
            "cpupower frequency-set -g performance: a core that sleeps deep or runs slow answers late",
        ),
    }
}

fn hugepages(root: &Root) -> Finding {
    let reserved: Vec<_> = root
        .names("/sys/kernel/mm/hugepages")
        .iter()
        .filter_map(|size| {
            let number = root.line(&format!("/sys/kernel/mm/hugepages/{size}/nr_hugepages"))?;
            (number != "0")
                .then(|| format!("{number} of {}", size.trim_start_matches("hugepages-")))
        })
        .collect();
    let looked = match reserved.is_empty() {
        true => Err("none reserved"),
        false => Ok(reserved.join(", ")),
    };
    Finding::of(
        "hugepages",
        looked,
        "DPDK wants some: sysctl vm.nr_hugepages=512",
    )
}

fn files(limit: u64) -> Finding {
    /// Enough for ten thousand connections.
    const ENOUGH: u64 = 16_384;
    let looked = match limit {
        u64::MAX => Ok("no limit".to_owned()),
        ENOUGH.. => Ok(limit.to_string()),
        _ => Err(limit.to_string()),
    };
    Finding::of(
        "open files (ulimit -n)",
        looked,
        "each TCP connection takes one: ulimit -n 65536, or LimitNOFILE=65536 in the service's unit",
    )
}

fn net_admin(root: &Root) -> Finding {
    const BIT: u64 = 1 << 12;
    let effective = root
        .field("/proc/self/status", "CapEff")
        .and_then(|field| u64::from_str_radix(&field, 16).ok())
        .unwrap_or(0);
    Finding::of(
        "CAP_NET_ADMIN",
        (effective & BIT != 0).then_some("yes").ok_or("no"),
        "tests of the DPDK transport over a TAP device need it: run them as root",
    )
}

#[cfg(test)]
mod tests {
    use super::super::root::made_up;
    use super::*;

    /// What is read from files.
    fn read(root: &Root) -> [Finding; 6] {
        [
            kernel(root),
            isolated(root),
            throttling(root),
            governor(root),
            hugepages(root),
            net_admin(root),
        ]
    }

    #[test]
    fn a_still_machine() {
        let (_directory, root) = made_up(&[
            ("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
            ("/sys/devices/system/cpu/isolated", "2-3\n"),
            ("/proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
            (
                "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "performance\n",
            ),
            (
                "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "performance\n",
            ),
            (
                "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "512\n",
            ),
            (
                "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
                "0\n",
            ),
            ("/proc/self/status", "Name:\tx\nCapEff:\t0000000000001000\n"),
        ]);
        let others = [fifo(None), rtprio(99), files(65_536)];
        for finding in read(&root).into_iter().chain(others) {
            assert!(finding.found, "{finding}");
        }
        assert_eq!(hugepages(&root).detail, "512 of 2048kB");
    }

    #[test]
    fn a_restless_machine() {
        let (_directory, root) = made_up(&[
            ("/proc/sys/kernel/osrelease", "5.4.0\n"),
            ("/sys/devices/system/cpu/isolated", "\n"),
            ("/proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
            (
                "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "performance\n",
            ),
            (
                "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "powersave\n",
            ),
            (
                "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "0\n",
            ),
            ("/proc/self/status", "CapEff:\tfffffffffffff0ff0fff\n"),
        ]);
        let others = [fifo(Some("refused".to_owned())), rtprio(0), files(1024)];
        for finding in read(&root).into_iter().chain(others) {
            assert!(!finding.found && finding.advice.is_some(), "{finding}");
        }
        assert_eq!(governor(&root).detail, "performance, powersave");
    }

    #[test]
    fn a_machine_that_tells_nothing() {
        let (_directory, root) = made_up(&[]);
        for finding in read(&root) {
            assert!(!finding.found, "{finding}");
        }
    }
}
