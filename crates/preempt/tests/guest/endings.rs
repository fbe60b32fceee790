//! A process with workers in guest mode ends at once when it is told to, whatever they do.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use shinjuku_preempt::guest::{GuestConfig, Sending};
use shinjuku_tests_support::{PATIENCE, need, test_name};

use crate::stage::{Stage, guest};

const STATES: [&str; 8] = [
    "spinning",
    "blocked",
    "native",
    "idle",
    "suspended",
    "storm",
    "posting",
    "starting",
];

#[test]
fn signals_end_the_process_in_every_state() {
    drop(need!(guest(test_name!(), Default::default())));
    for state in STATES {
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "endings::run_until_ended",
                    "--exact",
                    "--nocapture",
                    "--ignored",
                ])
                .env("SHINJUKU_TEST_STATE", state)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    if line.contains("reached the state") {
                        // The other end may have given up.
                        let _ = tell.send(());
                    }
                }
            });
            if told.recv_timeout(2 * PATIENCE).is_err() {
                child.kill().unwrap();
                panic!("{state} is not reached");
            }
            // SAFETY: our own child.
            unsafe { libc::kill(child.id() as i32, signal) };
            let asked = Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                // It takes a millisecond or so; the limit is for a process that never ends.
                assert!(
                    asked.elapsed() < Duration::from_secs(30),
                    "{state} survives {signal}"
                );
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(status.signal(), Some(signal), "{state}");
        }
    }
}

#[test]
#[ignore = "the child of another test"]
fn run_until_ended() {
    let state = std::env::var("SHINJUKU_TEST_STATE").unwrap_or_default();
    let posts = state == "posting";
    let config = GuestConfig {
        sending: if posts {
            Sending::Apic
        } else {
            Sending::default()
        },
        ..GuestConfig::default()
    };
    let mut stage = Stage::with("", config, 1).unwrap();
    let guest = stage.guest.clone();
    // With it the dispatcher is in guest mode, too.
    let _poster = posts.then(|| guest.post_from_this_thread().unwrap());
    // SAFETY: the process ends with its parent, if the test fails; and by Ctrl-C, which shells hide
    // from background processes.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::signal(libc::SIGINT, libc::SIG_DFL);
    }
    stage.run(|| ());
    let started = crate::stage::Flag::default();
    let flag = started.clone();
    let job = match state.as_str() {
        "idle" => stage.load(|| 0),
        "blocked" => stage.load(move || {
            let (mut from, _to) = std::io::pipe().unwrap();
            flag.set();
            from.read(&mut [0]).map_or(0, |count| count as u64)
        }),
        _ => {
            let native = state == "native";
            stage.load(move || {
                if native {
                    std::thread::spawn(|| ()).join().unwrap();
                }
                flag.set();
                loop {
                    std::hint::spin_loop();
                }
            })
        }
    };
    let mut dispatched = stage.send(0, job);
    if state == "idle" {
        stage.finish(0);
    } else {
        started.wait();
    }
    let kept = (state == "suspended").then(|| stage.preempt(0, &dispatched));
    println!("reached the state");
    loop {
        match state.as_str() {
            "storm" | "posting" => {
                let suspended = stage.preempt(0, &dispatched);
                dispatched = stage.send(0, suspended.into());
            }
            // Workers come and go, and threads for contexts.
            "starting" => Stage::with("", Default::default(), 2).unwrap().end(),
            _ => std::thread::sleep(Duration::from_secs(1)),
        }
        std::hint::black_box(&kept);
    }
}
