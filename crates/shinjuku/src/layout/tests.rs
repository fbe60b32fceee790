use super::*;

/// A machine whose cores 0 to `cores - 1` are allowed.
fn machine(cores: usize) -> Machine {
    Machine {
        allowed: (0..cores).collect(),
        isolated: Vec::new(),
        parallelism: cores,
    }
}

fn config(toml: &str) -> Config {
    Config::from_toml(toml).unwrap()
}

fn plan(machine: &Machine, toml: &str) -> String {
    match Layout::plan_on(machine, &config(toml)) {
        Ok(layout) => layout.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn dispatcher_and_workers_take_a_core_each() {
    let layout = Layout::plan_on(&machine(4), &config("layout = \"threads\"")).unwrap();
    let expected = Layout {
        dispatcher: Some(0),
        workers: vec![Some(1), Some(2), Some(3)],
        inline: false,
        symmetric: false,
        slice: None,
        shared: false,
        why: None,
    };
    assert_eq!(layout, expected);
    assert_eq!(
        plan(&machine(4), "workers = 1"),
        "dispatcher on core 0, worker on core 1"
    );
}

#[test]
fn what_is_given_is_kept_and_the_rest_goes_around_it() {
    let cases = [
        (
            "[cores]\ndispatcher = 1",
            "dispatcher on core 1, workers on cores 0,2-3",
        ),
        (
            "[cores]\nworkers = [3, 0]",
            "dispatcher on core 1, workers on cores 3,0",
        ),
        (
            "workers = 2\n[cores]\ndispatcher = 3",
            "dispatcher on core 3, workers on cores 0-1",
        ),
        (
            "[cores]\ndispatcher = 2\nworkers = [1, 3]",
            "dispatcher on core 2, workers on cores 1,3",
        ),
    ];
    for (toml, layout) in cases {
        assert_eq!(plan(&machine(4), toml), layout, "{toml}");
    }
}

#[test]
fn isolated_cores_go_to_workers() {
    let mut machine = machine(6);
    machine.isolated = vec![0, 4, 5];
    assert_eq!(
        plan(&machine, "workers = 2"),
        "dispatcher on core 1, workers on cores 0,4"
    );
    assert_eq!(
        plan(&machine, "workers = 4"),
        "dispatcher on core 1, workers on cores 0,4-5,2"
    );
    // All isolated: one of them has to do for the dispatcher.
    machine.allowed = vec![4, 5];
    let threads = "layout = \"threads\"";
    assert_eq!(
        plan(&machine, threads),
        "dispatcher on core 4, worker on core 5"
    );
    // Not allowed: only if named.
    machine.allowed = vec![1, 2];
    assert_eq!(
        plan(&machine, threads),
        "dispatcher on core 1, worker on core 2"
    );
    assert_eq!(
        plan(&machine, "[cores]\nworkers = [4, 5]"),
        "dispatcher on core 1, workers on cores 4-5"
    );
}

#[test]
fn sharing_pins_only_what_is_given() {
    let cases = [
        (
            "workers = 9\n[cores]\nshare = true",
            "dispatcher on any core, 9 workers on any core",
        ),
        (
            "[cores]\nshare = true\ndispatcher = 1\nworkers = [1, 1, 0]",
            "dispatcher on core 1, workers on cores 1,1,0",
        ),
        (
            "workers = 1\n[cores]\nshare = true\ndispatcher = 0",
            "dispatcher on core 0, 1 worker on any core",
        ),
    ];
    for (toml, layout) in cases {
        assert_eq!(
            plan(&machine(2), toml),
            format!("{layout}, sharing cores"),
            "{toml}"
        );
    }
}

#[test]
fn one_core_is_shared_unless_told_otherwise() {
    let layout = Layout::plan_on(&machine(1), &config("layout = \"threads\"")).unwrap();
    let expected = Layout {
        dispatcher: None,
        workers: vec![None],
        inline: false,
        symmetric: false,
        slice: None,
        shared: true,
        why: None,
    };
    assert_eq!(layout, expected);
    assert_eq!(
        plan(&machine(1), "layout = \"threads\"\nworkers = 1"),
        "`workers` is 1, but must be at most 0 for each thread to have a core: the dispatcher takes one too, and \
         this process may use 1 (0): set cores.share = true"
    );
}

#[test]
fn inline_is_one_thread_on_one_core() {
    let layout = Layout::plan_on(&machine(1), &Config::default()).unwrap();
    let expected = Layout {
        dispatcher: Some(0),
        workers: vec![Some(0)],
        inline: true,
        symmetric: false,
        slice: None,
        shared: true,
        why: Some("there is one core"),
    };
    assert_eq!(layout, expected, "the default where there is one core");
    let inline = |rest: &str| plan(&machine(4), &format!("layout = \"inline\"\n{rest}"));
    assert_eq!(inline(""), "inline on core 0");
    assert_eq!(
        inline("workers = 1\n[cores]\nworkers = [2]"),
        "inline on core 2"
    );
    assert_eq!(inline("[cores]\ndispatcher = 3"), "inline on core 3");
    assert_eq!(
        inline("[cores]\ndispatcher = 3\nworkers = [3]"),
        "inline on core 3"
    );
    assert_eq!(inline("[cores]\nshare = true"), "inline on any core");
    assert_eq!(
        inline("workers = 2"),
        "`workers` is 2, but must be 1, since layout is \"inline\": leave it out, or choose layout = \"threads\""
    );
    assert_eq!(
        inline("[cores]\ndispatcher = 3\nworkers = [1]"),
        "`cores.workers[0]` is 1, but must be the same core as `cores.dispatcher`, since layout is \"inline\": give one \
         of the two, or choose layout = \"threads\""
    );
    let isolated = Machine {
        isolated: vec![2],
        ..machine(4)
    };
    assert_eq!(plan(&isolated, "layout = \"inline\""), "inline on core 2");
}

#[test]
fn a_quota_and_the_contexts_bound_the_automatic_number_of_workers() {
    let mut machine = machine(16);
    assert_eq!(machine.workers(&Config::default()), 15);
    assert_eq!(machine.workers(&config("contexts = 7")), 7);
    machine.parallelism = 3;
    assert_eq!(machine.workers(&Config::default()), 2);
    machine.parallelism = 1;
    assert_eq!(machine.workers(&Config::default()), 1);
    assert_eq!(machine.workers(&config("workers = 15")), 15);
}

#[test]
fn what_does_not_fit_is_named() {
    let cases = [
        (
            "layout = \"threads\"\nworkers = 4",
            "`workers` is 4, but must be at most 3 for each thread to have a core: the dispatcher takes one too, and \
             this process may use 4 (0-3): lower `workers`, or set cores.share = true",
        ),
        (
            "layout = \"threads\"\n[cores]\nworkers = [0, 1, 2, 3]",
            "`workers` is 4, but must be at most 3 for each thread to have a core: the dispatcher takes one too, and \
             this process may use 4 (0-3): lower `workers`, or set cores.share = true",
        ),
        (
            "workers = 3\n[cores]\nworkers = [1, 2]",
            "`cores.workers` is a list of 2, but must be a list of 3 cores, as `workers` says: give each worker a \
             core, or leave one of the two out",
        ),
        (
            "[cores]\nworkers = [1, 9]",
            "`cores.workers[1]` is 9, but must be a core that this process may use (0-3,6): choose one of these, or \
             change the process's affinity (taskset, cgroup cpuset.cpus)",
        ),
        (
            "[cores]\nshare = true\ndispatcher = 4",
            "`cores.dispatcher` is 4, but must be a core that this process may use (0-3,6): choose one of these, or \
             change the process's affinity (taskset, cgroup cpuset.cpus)",
        ),
        (
            "[cores]\nworkers = [1, 2, 1]",
            "`cores.workers[2]` is 1, but must be another core than `cores.workers[0]`: choose another, or set \
             cores.share = true",
        ),
        (
            "[cores]\ndispatcher = 2\nworkers = [1, 2]",
            "`cores.workers[1]` is 2, but must be another core than `cores.dispatcher`: choose another, or set \
             cores.share = true",
        ),
    ];
    let mut machine = machine(4);
    machine.isolated = vec![6];
    for (toml, message) in cases {
        assert_eq!(plan(&machine, toml), message, "{toml}");
    }
}

#[test]
fn core_lists_read_as_the_kernel_writes_them() {
    let cases = [
        ("\n", vec![]),
        ("3\n", vec![3]),
        ("1-3,6\n", vec![1, 2, 3, 6]),
        ("0-1,4,6-7", vec![0, 1, 4, 6, 7]),
    ];
    for (text, cores) in cases {
        assert_eq!(machine::parse_cores(text), cores);
        assert_eq!(CoreList(&cores).to_string(), text.trim());
    }
    assert_eq!(machine::parse_cores("2,x,5-,7"), [2, 7]);
    assert_eq!(machine::parse_cores("0-18446744073709551615").len(), CORES);
}

#[test]
fn a_thread_is_pinned_where_it_is_told() {
    let allowed = Machine::detect().unwrap().allowed;
    let last = *allowed.last().unwrap();
    let pinned = std::thread::spawn(move || {
        pin_current(last).unwrap();
        Machine::detect().unwrap().allowed
    });
    assert_eq!(pinned.join().unwrap(), [last]);
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let exists =
        |core: usize| std::path::Path::new(&format!("/sys/devices/system/cpu/cpu{core}")).exists();
    let absent = (0..CORES).rev().find(|&core| !exists(core));
    for core in absent.into_iter().chain([CORES, usize::MAX]) {
        let error = std::thread::spawn(move || pin_current(core))
            .join()
            .unwrap()
            .unwrap_err();
        assert_eq!(error.core, core);
        let message = error.to_string();
        let start = format!("this thread cannot be pinned to core {core}: ");
        assert!(
            message.starts_with(&start) && message.contains("cpuset"),
            "{message}"
        );
    }
}

#[test]
fn symmetric_is_a_loop_for_each_core_pinned_where_the_cores_are_its_own() {
    let symmetric =
        |machine: &Machine, rest: &str| plan(machine, &format!("layout = \"symmetric\"\n{rest}"));
    let four = machine(4);
    assert_eq!(symmetric(&four, ""), "4 symmetric loops on any core");
    assert_eq!(
        symmetric(&four, "workers = 1"),
        "1 symmetric loop on any core"
    );
    assert_eq!(
        symmetric(&four, "[cores]\nworkers = [1, 3]"),
        "2 symmetric loops on cores 1,3"
    );
    let quota = Machine {
        parallelism: 2,
        ..machine(4)
    };
    assert_eq!(symmetric(&quota, ""), "2 symmetric loops on any core");
    let own = Machine {
        isolated: (0..4).collect(),
        ..machine(4)
    };
    assert_eq!(symmetric(&own, ""), "4 symmetric loops on cores 0-3");
    assert_eq!(
        symmetric(&own, "[cores]\nshare = true"),
        "4 symmetric loops on any core"
    );
    assert_eq!(
        symmetric(&four, "[cores]\ndispatcher = 1"),
        "`cores.dispatcher` is 1, but must be left out, since layout is \"symmetric\": give the \
         loops' cores in `cores.workers`, or choose layout = \"threads\""
    );
}

#[test]
fn beside_other_threads_loops_spin_briefly_and_ask_for_short_slices() {
    let layout = |toml: &str| Layout::plan_on(&machine(2), &config(toml)).unwrap();
    let beside = layout("layout = \"symmetric\"");
    assert!(beside.slice.is_some() && !beside.shared);
    assert_eq!(beside.spins_for(Some(100_000)), Some(LONGEST_SPIN));
    assert_eq!(beside.spins_for(Some(1)), Some(1));
    assert_eq!(beside.spins_for(None), None);
    let own = layout("layout = \"symmetric\"\n[cores]\nworkers = [0, 1]");
    assert_eq!(
        (own.slice, own.spins_for(Some(100_000))),
        (None, Some(100_000))
    );
    assert!(layout("layout = \"symmetric\"\nworkers = 3").shared);
    // The process's other threads run on the only core, too.
    let alone = Layout::plan_on(&machine(1), &config("layout = \"symmetric\""));
    assert!(alone.unwrap().shared);
}

/// The layout that `auto` means, and why.
fn automatic(machine: &Machine, toml: &str) -> (String, &'static str) {
    let layout = Layout::plan_on(machine, &config(toml)).unwrap();
    let why = layout.why.expect("auto has its reason");
    (layout.to_string(), why)
}

#[test]
fn on_few_cores_auto_spares_none_for_a_dispatcher() {
    for (cores, layout) in [
        (2, "2 symmetric loops on any core"),
        (7, "7 symmetric loops on any core"),
        (8, "dispatcher on core 0, workers on cores 1-7"),
    ] {
        assert_eq!(automatic(&machine(cores), "").0, layout);
    }
    let quota = Machine {
        parallelism: 2,
        ..machine(16)
    };
    assert_eq!(automatic(&quota, "").0, "2 symmetric loops on any core");
    // As many workers as cores leave none for a dispatcher.
    for (toml, layout) in [
        ("workers = 4", "4 symmetric loops on any core"),
        (
            "[cores]\nworkers = [0, 1, 2, 3]",
            "4 symmetric loops on cores 0-3",
        ),
        ("realtime_priority = 1", "4 symmetric loops on cores 0-3"),
        ("[cores]\nshare = true", "4 symmetric loops on any core"),
        ("policy.kind = \"c-fcfs\"", "4 symmetric loops on any core"),
        (
            "preemption.mechanism = \"signal\"",
            "4 symmetric loops on any core",
        ),
    ] {
        assert_eq!(automatic(&machine(4), toml).0, layout, "{toml}");
    }
}

#[test]
fn what_the_user_has_set_goes_before_what_auto_would_choose() {
    for (toml, why) in [
        ("workers = 3", "leave a core"),
        ("[cores]\nworkers = [1, 3]", "leave a core"),
        ("workers = 4\ncores.share = true", "share cores"),
        ("[cores]\ndispatcher = 2", "names a core"),
        ("context_kind = \"kernel-thread\"", "kernel threads"),
        ("depth = 2", "`depth`"),
        ("preemption.mechanism = \"guest\"", "the mechanism"),
        (
            "preemption.mechanism = \"compiled-probe\"",
            "raises the gate",
        ),
        ("policy.kind = \"stealing\"", "tells workers apart"),
        ("policy.kind = \"d-FCFS\"", "tells workers apart"),
        ("policy.kind = \"darc\"", "tells workers apart"),
        ("policy.kind = \"mine\"", "own policy"),
    ] {
        let (layout, said) = automatic(&machine(4), toml);
        assert!(layout.starts_with("dispatcher on "), "{toml}: {layout}");
        assert!(said.contains(why), "{toml}: {said}");
    }
    let given = Layout::plan_on(&machine(2), &config("layout = \"threads\"")).unwrap();
    assert_eq!(given.why, None);
}

/// Isolated cores are not among those that the process starts with, and no other thread runs there.
#[test]
fn loops_on_hidden_cores_share_them_with_nobody() {
    let with_isolated = |cores, isolated: std::ops::Range<usize>| Machine {
        isolated: isolated.collect(),
        ..machine(cores)
    };
    let cases = [
        (
            with_isolated(2, 2..6),
            "layout = \"symmetric\"\n[cores]\nworkers = [2, 3, 4, 5]",
            false,
        ),
        (
            with_isolated(1, 1..3),
            "layout = \"symmetric\"\n[cores]\nworkers = [1, 2]",
            false,
        ),
        (
            with_isolated(1, 1..2),
            "layout = \"inline\"\n[cores]\nworkers = [1]",
            false,
        ),
        (
            with_isolated(1, 1..3),
            "layout = \"symmetric\"\n[cores]\nworkers = [0, 2]",
            true,
        ),
        (machine(2), "layout = \"symmetric\"\nworkers = 4", true),
        (machine(1), "layout = \"inline\"", true),
    ];
    for (machine, toml, shared) in cases {
        let layout = Layout::plan_on(&machine, &config(toml)).unwrap();
        assert_eq!(layout.shared, shared, "{toml}");
    }
}
