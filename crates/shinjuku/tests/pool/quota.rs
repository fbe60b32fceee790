//! The pool in a container: in a cgroup that has one core's worth of time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use shinjuku_tests_support::test_name;

use super::*;

/// Tells the process that the test starts which group it is in.
const GROUP: &str = "SHINJUKU_TEST_GROUP";
const CORE: &str = "100000";

/// A cgroup below the test's own, with one core's worth of time. Dropped, it is gone.
struct Group(PathBuf);

impl Group {
    /// `None`: the test may not make one here.
    fn make() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("shinjuku-quota-{}", std::process::id());
        let path_of = |is_it: fn(&str) -> bool| {
            let mut lines = own.lines().map(|line| line.splitn(3, ':'));
            let found = lines.find_map(|mut parts| is_it(parts.nth(1)?).then(|| parts.next())?);
            found.map(|path| path.trim_start_matches('/').to_owned())
        };
        let of_cpu = path_of(|controllers| controllers.split(',').any(|name| name == "cpu"));
        let (root, own, setting, value) = match of_cpu {
            Some(own) => (
                "/sys/fs/cgroup/cpu",
                own,
                "cpu.cfs_quota_us",
                CORE.to_owned(),
            ),
            None => {
                let own = path_of(str::is_empty)?;
                ("/sys/fs/cgroup", own, "cpu.max", format!("{CORE} {CORE}"))
            }
        };
        let path = Path::new(root).join(own).join(name);
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join(setting), value).ok()?;
        Some(group)
    }

    /// Runs this test in it.
    fn run(&self, test: &str) {
        let tasks = match self.0.join("tasks").exists() {
            true => "tasks",
            false => "cgroup.procs",
        };
        let output = Command::new("sh")
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.0.join(tasks))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(GROUP, &self.0)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{why}");
        assert!(said.contains("1 passed"), "nothing was run:\n{said}");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A count of the group's `cpu.stat`.
fn count(group: &str, name: &str) -> u64 {
    let text = fs::read_to_string(Path::new(group).join("cpu.stat")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

/// There is one loop for the one core, and it leaves the time that it does not need: what takes a
/// tenth of the quota is answered and never waits for the next period.
#[test]
fn a_quota_bounds_the_loops_and_idle_ones_do_not_use_it_up() {
    let Ok(group) = std::env::var(GROUP) else {
        let Some(group) = Group::make() else {
            println!(
                "SKIPPED {}: no cgroup with a quota can be made here",
                test_name!()
            );
            return;
        };
        return group.run("quota::a_quota_bounds_the_loops_and_idle_ones_do_not_use_it_up");
    };
    let pool = Pool::new(["interactive", "batch"]).unwrap();
    let threads = pool.observer().threads();
    assert_eq!(threads.len(), 1, "{}", pool.description());
    let now = || [count(&group, "nr_periods"), count(&group, "nr_throttled")];
    // What the start took may have to be waited for.
    thread::sleep(Duration::from_millis(300));
    let before = now();
    for round in 0..100u32 {
        let job = pool.run("interactive", move || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1) {
                std::hint::spin_loop();
            }
            round
        });
        assert_eq!(job.wait().unwrap(), round);
        thread::sleep(Duration::from_millis(9));
    }
    let after = now();
    let [periods, throttled] = [0, 1].map(|place| after[place] - before[place]);
    assert!(periods >= 5, "the group has no quota: {periods} periods");
    assert!(
        throttled * 10 <= periods,
        "{throttled} of {periods} periods were cut short"
    );
    assert!(pool.shutdown(PATIENCE).is_clean());
}
