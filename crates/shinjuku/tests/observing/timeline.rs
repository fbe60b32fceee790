//! A recording shows what ran where, in every layout, and its file is what viewers expect.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use shinjuku::policy::ClassId;
use shinjuku::timeline::{RecordError, Slice, Stop, Trace};
use shinjuku::{
    ClassConfig, Config, LayoutKind, MechanismKind, PreemptionConfig, Runtime, Statistics,
    handler_fn, preempt_point,
};
use shinjuku_tests_support::PATIENCE;
const SHORT: ClassId = ClassId(0);
const LONG: ClassId = ClassId(1);

/// Records for a while. Meanwhile one thread submits requests that spin for 2 ms, and another one
/// short ones. Repeats that until a recording [has all](has_all) kinds of slices.
fn recorded(layout: LayoutKind, workers: usize) -> (Trace, Statistics) {
    let spin = |micros: u64| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(micros) {
            preempt_point();
        }
        micros
    };
    let config = Config::default()
        .layout(layout)
        .workers(workers)
        .contexts(64)
        // A thread that takes another's place has little room for slices.
        .rescue_after_ms(60_000.0)
        // Beside other programs, `auto` may find that no request is worth preempting.
        .preemption(PreemptionConfig::new(MechanismKind::Probe));
    let config = config.cores(shinjuku::CoresConfig::default().share(true));
    let runtime = Runtime::builder(handler_fn(spin))
        .config(config)
        .class([ClassConfig::new("short \"1\""), ClassConfig::new("long")])
        .start()
        .unwrap();
    let (handle, stop) = (runtime.handle(), AtomicBool::new(false));
    let load = |class, micros| {
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(handle.submit(class, micros).unwrap().wait(), Ok(micros));
        }
    };
    let trace = thread::scope(|scope| {
        scope.spawn(|| load(LONG, 2_000));
        scope.spawn(|| load(SHORT, 5));
        let start = Instant::now();
        let trace = loop {
            let trace = runtime
                .observer()
                .record(Duration::from_millis(50))
                .unwrap();
            if has_all(&trace) || start.elapsed() > PATIENCE {
                break trace;
            }
        };
        stop.store(true, Ordering::Relaxed);
        trace
    });
    // Shown if a check fails.
    println!("{}", runtime.description());
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    (trace, report.statistics.unwrap())
}

/// Whether a request of each class finished in the recording, and one was preempted and went on.
fn has_all(trace: &Trace) -> bool {
    let finished = |class| {
        let mut slices = trace.slices().iter();
        slices.any(|slice| slice.class == Some(class) && is_end(slice))
    };
    let resumed = by(trace, |slice| slice.request)
        .into_values()
        .any(|slices| slices.len() > 1);
    finished(SHORT) && finished(LONG) && resumed
}

fn by<Key: std::hash::Hash + Eq>(
    trace: &Trace,
    key: impl Fn(&Slice) -> Key,
) -> HashMap<Key, Vec<&Slice>> {
    let mut sorted = HashMap::<_, Vec<_>>::new();
    for slice in trace.slices() {
        sorted.entry(key(slice)).or_default().push(slice);
    }
    sorted
}

fn check(trace: &Trace, statistics: &Statistics) {
    assert_eq!(trace.dropped(), 0);
    assert!(trace.duration() >= Duration::from_millis(50));
    assert!(!trace.samples().is_empty());
    for (lane, slices) in by(trace, |slice| slice.lane) {
        for pair in slices.windows(2) {
            assert!(
                pair[0].end <= pair[1].start,
                "lane {lane}: {pair:?} overlap"
            );
        }
    }
    let (mut finished, mut resumed) = ([0, 0], 0);
    for slices in by(trace, |slice| slice.request).values() {
        let (last, before) = slices.split_last().unwrap();
        let goes_on = |slice: &Slice| slice.stop.is_preempted() || slice.stop == Stop::Blocked;
        assert!(before.iter().all(|slice| goes_on(slice)), "{slices:?}");
        assert!(before.iter().all(|slice| slice.class == last.class));
        assert!(slices.is_sorted_by_key(|slice| slice.age));
        resumed += before.len();
        if is_end(last) {
            let class = last.class.expect("what has finished is known");
            finished[usize::from(class.0)] += 1;
        }
    }
    assert!(resumed > 0, "no request was preempted and resumed");
    for (class, finished) in finished.into_iter().enumerate() {
        let all = statistics.classes[class].finished;
        assert!(
            (1..=all).contains(&finished),
            "class {class}: {finished} of {all}"
        );
    }
    check_file(trace);
}

/// Whether a request ends with this slice.
fn is_end(slice: &Slice) -> bool {
    matches!(slice.stop, Stop::Finished | Stop::Failed)
}

/// Every event has what the format asks for, and the arrows' ends belong together.
fn check_file(trace: &Trace) {
    let mut text = Vec::new();
    trace.write_json(&mut text).unwrap();
    let file: Value = serde_json::from_slice(&text).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    assert_eq!(of_phase("X").count(), trace.slices().len());
    assert!(of_phase("X").all(|slice| {
        slice["ts"].is_f64() && slice["dur"].is_f64() && slice["args"]["stop"].is_string()
    }));
    assert!(of_phase("X").any(|slice| slice["name"] == "short \"1\""));
    let named: HashSet<_> = of_phase("M").map(|lane| lane["tid"].as_u64()).collect();
    assert!(of_phase("X").all(|slice| named.contains(&slice["tid"].as_u64())));
    let at = |phase| -> HashMap<_, _> {
        let end = |arrow: &Value| (arrow["id"].as_u64().unwrap(), arrow["ts"].as_f64().unwrap());
        of_phase(phase).map(end).collect()
    };
    let (from, to) = (at("s"), at("f"));
    assert!(!from.is_empty() && from.len() == to.len());
    let is_taken = |mark: &&Value| mark["name"].as_str().unwrap().starts_with("taken from ");
    let taken = trace.slices().iter();
    let taken = taken.filter(|slice| slice.taken_from.is_some()).count();
    assert_eq!(of_phase("i").filter(is_taken).count(), taken);
    let mut arrows = from.iter().map(|(id, start)| (*start, to[id]));
    assert_eq!(arrows.find(|(start, end)| end < start), None, "us");
    assert_eq!(of_phase("C").count(), trace.samples().len());
}

#[test]
fn a_worker_of_its_own() {
    let (trace, statistics) = recorded(LayoutKind::Threads, 1);
    check(&trace, &statistics);
}

#[test]
fn inline() {
    let (trace, statistics) = recorded(LayoutKind::Inline, 1);
    check(&trace, &statistics);
}

#[test]
fn symmetric() {
    let (trace, statistics) = recorded(LayoutKind::Symmetric, 2);
    check(&trace, &statistics);
}

/// All requests of one submitting thread come to one loop; the other one takes some of them.
#[test]
fn each_request_that_a_loop_takes_from_another_is_marked() {
    let spin = |()| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(200) {
            preempt_point();
        }
    };
    // Each thread keeps its loop, whose lane has its number.
    let config = Config::default()
        .layout(LayoutKind::Symmetric)
        .workers(2)
        .rescue_after_ms(60_000.0);
    let runtime = Runtime::builder(handler_fn(spin)).config(config).start();
    let runtime = runtime.unwrap();
    let (handle, stop) = (runtime.handle(), AtomicBool::new(false));
    let is_taken = |slice: &&Slice| slice.taken_from.is_some();
    let trace = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let tickets: Vec<_> = (0..20)
                    .map(|_| handle.submit(ClassId(0), ()).unwrap())
                    .collect();
                tickets
                    .into_iter()
                    .for_each(|ticket| ticket.wait().unwrap());
            }
        });
        let start = Instant::now();
        let trace = loop {
            let recorded = runtime.observer().record(Duration::from_millis(50));
            let trace = recorded.unwrap();
            let is_resumed = trace.slices().iter().any(|slice| slice.stop.is_preempted());
            if trace.slices().iter().any(|slice| is_taken(&slice)) && is_resumed
                || start.elapsed() > PATIENCE
            {
                break trace;
            }
        };
        stop.store(true, Ordering::Relaxed);
        trace
    });
    let taken: Vec<_> = trace.slices().iter().filter(is_taken).collect();
    assert!(!taken.is_empty(), "no loop helped");
    for slice in &taken {
        assert_ne!(slice.taken_from, Some(slice.lane), "{slice:?}");
        assert!(slice.taken_from < Some(2), "{slice:?}");
    }
    let mut text = Vec::new();
    trace.write_json(&mut text).unwrap();
    let file: Value = serde_json::from_slice(&text).unwrap();
    let marks = file["traceEvents"].as_array().unwrap().iter();
    let marks: HashSet<_> = marks
        .filter(|mark| mark["ph"] == "i" && mark["s"] == "t")
        .map(|mark| (mark["tid"].as_u64(), mark["name"].as_str()))
        .collect();
    for slice in taken {
        let name = format!("taken from {}", trace.lanes()[slice.taken_from.unwrap()]);
        let mark = (Some(slice.lane as u64), Some(name.as_str()));
        assert!(marks.contains(&mark), "{mark:?} is not in {marks:?}");
    }
}

/// How long a request is seen to be blocked: from the slice that stops there to the next one.
fn blocked_for(trace: &Trace) -> Option<Duration> {
    let mut slices = trace.slices().iter();
    let first = slices.find(|slice| slice.stop == Stop::Blocked)?;
    let next = slices.find(|slice| slice.request == first.request);
    let back = next.map_or(trace.duration(), |next| next.start);
    Some(back.saturating_sub(first.end))
}

#[test]
fn a_request_that_blocks_stops_there_and_goes_on_after() {
    const SLEEP: Duration = Duration::from_millis(60);
    let sleep = |()| {
        preempt_point();
        thread::sleep(SLEEP);
    };
    for layout in [
        LayoutKind::Threads,
        LayoutKind::Symmetric,
        LayoutKind::Inline,
    ] {
        let cores = shinjuku::CoresConfig::default().share(true);
        let config = Config::default().layout(layout).workers(1).cores(cores);
        let runtime = Runtime::builder(handler_fn(sleep)).config(config).start();
        let runtime = runtime.unwrap();
        let start = Instant::now();
        // The recording is repeated if it began or looked too late.
        let trace = loop {
            let ticket = runtime.handle().submit(ClassId(0), ()).unwrap();
            let recorded = runtime.observer().record(SLEEP * 2);
            ticket.wait().unwrap();
            let trace = recorded.unwrap();
            let blocked = blocked_for(&trace);
            if blocked.is_some_and(|blocked| blocked > SLEEP / 2 && blocked < SLEEP * 2) {
                break trace;
            }
            let waited = start.elapsed();
            assert!(waited < PATIENCE, "{layout:?}: {:?}", trace.slices());
        };
        let mut text = Vec::new();
        trace.write_json(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("\"stop\":\"blocked in the kernel\""));
    }
}

/// Users often record a request that does not end.
#[test]
fn what_runs_all_the_time_is_there() {
    let (runs, stop) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (begun, over) = (Arc::clone(&runs), Arc::clone(&stop));
    let spin = move |(): ()| {
        begun.store(true, Ordering::Release);
        while !over.load(Ordering::Acquire) {
            preempt_point();
        }
    };
    let runtime = Runtime::builder(handler_fn(spin))
        .workers(1)
        .cores(shinjuku::CoresConfig::default().share(true))
        .start()
        .unwrap();
    let ticket = runtime.handle().submit(ClassId(0), ()).unwrap();
    let start = Instant::now();
    while !runs.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    let trace = runtime
        .observer()
        .record(Duration::from_millis(20))
        .unwrap();
    stop.store(true, Ordering::Release);
    ticket.wait().unwrap();
    let [slice] = trace.slices() else {
        panic!("{:?}", trace.slices());
    };
    assert_eq!(
        (slice.stop, slice.class, slice.start),
        (Stop::Running, Some(ClassId(0)), Duration::ZERO)
    );
    assert!(slice.end >= Duration::from_millis(20), "{slice:?}");
    let mut text = Vec::new();
    trace.write_json(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("still running") && text.contains("\"name\":\"default\""));
}

#[test]
fn one_recording_at_a_time() {
    let runtime = Runtime::builder(handler_fn(|n: u64| n)).start().unwrap();
    let (observer, other) = (runtime.observer(), runtime.observer());
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let first = thread::spawn(move || {
        while !ends.load(Ordering::Acquire) {
            let _ = observer.record(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let refused = std::iter::repeat_with(|| other.record(Duration::ZERO))
        .take_while(|_| start.elapsed() < PATIENCE)
        .any(|recorded| matches!(recorded, Err(RecordError::Busy)));
    assert!(refused);
    is_over.store(true, Ordering::Release);
    first.join().unwrap();
    drop(runtime);
    assert!(other.record(Duration::ZERO).unwrap().slices().is_empty());
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let runtime = Runtime::builder(handler_fn(|n: u64| n)).start().unwrap();
    let trace = runtime.observer().record(Duration::ZERO).unwrap();
    let error = trace.save("/nowhere/trace.json").unwrap_err();
    assert!(error.to_string().contains("/nowhere/trace.json"), "{error}");
}
