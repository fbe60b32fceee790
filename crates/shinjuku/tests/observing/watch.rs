//! What clients of the watch socket get, and what they cannot do.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use shinjuku::error::WatchError;
use shinjuku::policy::ClassId;
use shinjuku::{
    ClassConfig, LayoutKind, PolicyConfig, Pool, Runtime, StartError, handler_fn, preempt_point,
};
use shinjuku_tests_support::PATIENCE;

/// A directory of the test's own.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shinjuku-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("watch")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn start(path: impl Into<PathBuf>) -> Result<Runtime<u64, u64>, StartError> {
    Runtime::builder(handler_fn(|n: u64| n + 1))
        .class([ClassConfig::new("get"), ClassConfig::new("range")])
        .workers(1)
        .cores(shinjuku::CoresConfig::default().share(true))
        .watch(path.into())
        .start()
}

fn ask(path: &Path, line: &str) -> String {
    let mut client = UnixStream::connect(path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close before it has read all of it.
    let _ = client.write_all(line.as_bytes());
    let mut answer = String::new();
    let _ = client.read_to_string(&mut answer);
    answer
}

fn json(path: &Path, line: &str) -> Value {
    let answer = ask(path, line);
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{line}: {error} in {answer}"))
}

#[test]
fn statistics_and_a_trace_are_told() {
    let directory = Directory::new("told");
    let path = directory.socket();
    let runtime = start(&path).unwrap();
    for n in 0..20 {
        assert_eq!(
            runtime.handle().submit(ClassId(0), n).unwrap().wait(),
            Ok(n + 1)
        );
    }
    let start = Instant::now();
    let statistics = loop {
        let statistics = json(&path, "statistics\n");
        // The last request is counted after its ticket is answered.
        if statistics["classes"][0]["finished"] == 20 || start.elapsed() > PATIENCE {
            break statistics;
        }
    };
    assert_eq!(statistics["received"], 20);
    // What `auto` has in force may change in between.
    let fixed = |description: &str| description.split("; now").next().unwrap().to_owned();
    let told = statistics["description"].as_str().unwrap();
    assert_eq!(fixed(told), fixed(&runtime.description()));
    assert_eq!(statistics["refused"]["QueueFull"], 0);
    let classes = statistics["classes"].as_array().unwrap();
    let names: Vec<_> = classes.iter().map(|class| &class["name"]).collect();
    assert_eq!(names, ["get", "range"]);
    let buckets = classes[0]["latency_nanos"].as_array().unwrap();
    let counted: u64 = buckets.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    assert_eq!(counted, 20);
    let trace = json(&path, "trace 5000\n");
    assert!(
        trace["traceEvents"]
            .as_array()
            .is_some_and(|events| !events.is_empty())
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
    assert!(!path.exists(), "the socket's file stays");
}

/// One request runs, and its context is the only one, so another waits that never ran.
#[test]
fn threads_and_what_waits_are_told() {
    for layout in [LayoutKind::Symmetric, LayoutKind::Threads] {
        let directory = Directory::new("now");
        let path = directory.socket();
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let handler = handler_fn(move |_: ()| {
            while !end.load(Ordering::Relaxed) {
                preempt_point();
            }
        });
        let runtime = Runtime::builder(handler)
            .class([ClassConfig::new("get"), ClassConfig::new("range")])
            .layout(layout)
            .workers(1)
            .contexts(1)
            .cores(shinjuku::CoresConfig::default().share(true))
            .policy(PolicyConfig::default().quantum_us(100.0))
            // However long the machine keeps a thread from its core, no other takes its place.
            .rescue_after_ms(60_000.0)
            .watch(path.clone())
            .start()
            .unwrap();
        let tickets = [1, 0].map(|class| runtime.handle().submit(ClassId(class), ()).unwrap());
        let never_ran = |of: &Value| [0, 1].map(|place| of[place]["never_ran"].clone());
        let start = Instant::now();
        // What is told of threads is later than what is told of the queue.
        let told = loop {
            let told = json(&path, "statistics\n");
            let oldest = &told["oldest"];
            if never_ran(&told["classes"]) == [1, 0]
                && told["threads"][0]["class"] == "range"
                && never_ran(oldest) == [false, true]
                && oldest[1]["class"] == "get"
            {
                break told;
            }
            assert!(start.elapsed() < PATIENCE, "{layout:?}: {told}");
        };
        let is_symmetric = layout == LayoutKind::Symmetric;
        let name = if is_symmetric { "loop-0" } else { "worker-0" };
        assert_eq!(told["threads"][0]["name"], name);
        assert_eq!(
            told["threads"][0]["waiting"].is_null(),
            !is_symmetric,
            "{told}"
        );
        assert_eq!(
            told["dispatcher_occupancy"].is_null(),
            is_symmetric,
            "{told}"
        );
        assert!(
            told["quanta"][0]["nanos"].as_u64() >= Some(100_000),
            "{told}"
        );
        is_over.store(true, Ordering::Relaxed);
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        let waits = json(&path, "statistics\n")["classes"][0]["never_ran"].clone();
        assert_eq!(waits, 0, "what has run waits no more");
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

#[test]
fn what_is_no_question_gets_an_answer_in_words() {
    let directory = Directory::new("words");
    let path = directory.socket();
    let runtime = start(&path).unwrap();
    let long = "x".repeat(10_000);
    for (line, why) in [
        ("\n", "say `statistics`"),
        ("trace\n", "say `statistics`"),
        ("trace soon\n", "in microseconds"),
        ("trace -5\n", "in microseconds"),
        ("trace 99999999999\n", "ten seconds"),
        ("shutdown\n", "say `statistics`"),
    ] {
        let answer = json(&path, line);
        assert!(
            answer["error"].as_str().unwrap().contains(why),
            "{line}: {answer}"
        );
    }
    ask(&path, &long);
    // One client says nothing, and one has gone.
    let silent = UnixStream::connect(&path).unwrap();
    drop(UnixStream::connect(&path).unwrap());
    drop(silent);
    assert_eq!(json(&path, "statistics\n")["received"], 0);
    drop(runtime);
}

#[test]
fn only_the_user_may_watch() {
    let directory = Directory::new("mode");
    let runtime = start(directory.socket()).unwrap();
    let mode = fs::metadata(directory.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(runtime);
}

#[test]
fn what_is_in_the_way_is_named() {
    let directory = Directory::new("in-the-way");
    let path = directory.socket();
    let why = |path: &Path| match start(path) {
        Err(StartError::Watch(error)) => error,
        other => panic!("{other:?}"),
    };
    fs::write(&path, "a file").unwrap();
    assert!(matches!(why(&path), WatchError::Occupied(_)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(why(&path), WatchError::InUse(_)));
    // Its process has died.
    drop(other);
    drop(start(&path).unwrap());
    assert!(!path.exists());
    let nowhere = why(Path::new("/nowhere/watch"));
    assert!(nowhere.to_string().contains("/nowhere/watch"), "{nowhere}");
}

#[test]
fn a_long_trace_does_not_hold_up_the_end() {
    let directory = Directory::new("end");
    let path = directory.socket();
    let runtime = start(&path).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"trace 10000000\n").unwrap();
    let start = Instant::now();
    assert!(runtime.shutdown(PATIENCE).is_clean());
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
}

/// A client that records for long, and one that says nothing, hold up no other client.
#[test]
fn clients_are_served_beside_each_other() {
    let directory = Directory::new("beside");
    let path = directory.socket();
    let runtime = start(&path).unwrap();
    let mut records = UnixStream::connect(&path).unwrap();
    records.write_all(b"trace 10000000\n").unwrap();
    let _silent = UnixStream::connect(&path).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..10 {
        assert_eq!(json(&path, "statistics\n")["received"], 0);
    }
    records.set_nonblocking(true).unwrap();
    let answered = records.read(&mut [0]);
    assert!(answered.is_err(), "the trace was over first: {answered:?}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_pool_tells_its_own_statistics() {
    let directory = Directory::new("pool");
    let pool = Pool::builder(["short"])
        .watch(directory.socket())
        .start()
        .unwrap();
    pool.run("short", || ()).wait().unwrap();
    assert!(pool.run("none", || ()).wait().is_err());
    let statistics = json(&directory.socket(), "statistics\n");
    assert_eq!(statistics["refused"]["UnknownClass"], 1);
    // `auto` may change its mind in between, and says so at the end.
    let at_start = |text: &str| text.split("; now ").next().map(str::to_owned);
    let told = statistics["description"].as_str().unwrap();
    assert_eq!(at_start(told), at_start(&pool.description()));
}
