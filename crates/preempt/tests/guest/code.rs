//! Ordinary code in guest mode.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use shinjuku_preempt::{Completion, Outcome, Pool, PoolConfig, Worker, mailbox};

use crate::stage::{Stage, test_name};

thread_local! {
    static LOCAL: Cell<u64> = const { Cell::new(7) };
}

#[test]
fn the_standard_library_works() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let (seen, counters) = stage.run(|| {
        println!("hello from guest mode");
        let words: HashMap<_, _> = (0..1000u64).map(|n| (n.to_string(), n * n)).collect();
        assert_eq!(words["31"], 961);
        let mut big = vec![1u8; 64 << 20];
        for at in (0..big.len()).step_by(4096) {
            big[at] += 1;
        }
        assert_eq!(
            big.iter().map(|byte| u64::from(*byte)).sum::<u64>(),
            (64 << 20) + (64 << 8)
        );
        LOCAL.set(LOCAL.get() + 1);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(status.contains("Threads:"));
        let caught = std::panic::catch_unwind(|| {
            let empty: Vec<u32> = Vec::new();
            empty[std::hint::black_box(3)]
        });
        assert!(caught.is_err());
        LOCAL.get()
    });
    assert_eq!(seen, 8);
    assert!(counters.forwarded > 0, "{counters:?}");
    assert_eq!(counters.left, 0, "{counters:?}");
    stage.end();
}

#[test]
fn clocks_and_sleep_agree_with_the_hosts() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let before = Instant::now();
    let ((start, slept), _) = stage.run(|| {
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        (start, start.elapsed())
    });
    assert!(before <= start && start + slept <= Instant::now());
    assert!(slept >= Duration::from_millis(5));
    stage.end();
}

#[test]
fn vector_registers_compute_the_same() {
    #[target_feature(enable = "avx2,fma")]
    fn sum(scale: f64) -> f64 {
        use std::arch::x86_64::*;
        let mut lanes = _mm256_set1_pd(1.5);
        for _ in 0..100 {
            lanes = _mm256_fmadd_pd(lanes, _mm256_set1_pd(scale), _mm256_set1_pd(0.5));
        }
        let mut all = [0.0; 4];
        // SAFETY: four numbers of room.
        unsafe { _mm256_storeu_pd(all.as_mut_ptr(), lanes) };
        all.iter().sum()
    }
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        println!("SKIPPED {}: this CPU has no AVX2", test_name!());
        return;
    }
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    // SAFETY: the CPU has it, as was just seen, and guest mode has what the CPU has.
    let (inside, counters) = stage.run(|| unsafe { sum(std::hint::black_box(1.01)) });
    // SAFETY: as above.
    let outside = unsafe { sum(std::hint::black_box(1.01)) };
    assert_eq!(inside, outside);
    assert_eq!(counters.left, 0, "{counters:?}");
    stage.end();
}

#[test]
fn files_and_sockets_work() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = [0; 5];
        stream.read_exact(&mut text).unwrap();
        stream.write_all(&text).unwrap();
    });
    let path = std::env::temp_dir().join(format!("shinjuku-guest-{}", std::process::id()));
    let file = path.clone();
    let ((), counters) = stage.run(move || {
        std::fs::write(&file, "in guest mode").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "in guest mode");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut text = [0; 5];
        stream.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"hello");
    });
    assert_eq!(counters.left, 0, "{counters:?}");
    echo.join().unwrap();
    std::fs::remove_file(path).unwrap();
    stage.end();
}

#[test]
fn a_job_can_start_threads_and_the_worker_comes_back() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let (sum, counters) = stage.run(|| {
        let threads: Vec<_> = (0..4u64)
            .map(|n| std::thread::spawn(move || n * n))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum::<u64>()
    });
    assert_eq!(sum, 14);
    // Natively from the first `clone` on, until the next job.
    assert_eq!(counters.left, 1, "{counters:?}");
    let ((), counters) = stage.run(|| drop(std::fs::metadata("/")));
    assert!(counters.forwarded > 0 && counters.left == 0, "{counters:?}");
    stage.end();
}

#[test]
fn a_job_can_run_another_program() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let (output, _) = stage.run(|| std::process::Command::new("echo").arg("hello").output());
    assert_eq!(output.unwrap().stdout, b"hello\n");
    stage.end();
}

#[test]
fn a_job_can_fork() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let (status, counters) = stage.run(|| {
        // SAFETY: the child only ends.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(7),
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    libc::WEXITSTATUS(status)
                }
            }
        }
    });
    assert_eq!(status, 7);
    assert_eq!(counters.left, 1, "{counters:?}");
    stage.end();
}

#[test]
fn the_cpu_number_is_the_workers() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let ((inside, allowed), _) = stage.run(|| {
        // SAFETY: the call answers a number; the set is plain bits, filled in by the kernel.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
            let cpu = libc::sched_getcpu();
            (cpu, cpu >= 0 && libc::CPU_ISSET(cpu as usize, &set))
        }
    });
    assert!(allowed, "CPU {inside}");
    stage.end();
}

#[test]
fn vcpus_are_used_again() {
    let Some(guest) = crate::stage::guest(test_name!(), Default::default()) else {
        return;
    };
    // More workers than there can be vCPUs.
    for id in 0..300 {
        let guest = guest.clone();
        let worker = std::thread::spawn(move || {
            let mut worker = Worker::bind(id).unwrap();
            worker
                .enter_guest_mode(&guest)
                .map_err(|error| error.to_string())
        });
        assert_eq!(worker.join().unwrap(), Ok(()));
    }
}

#[test]
fn the_kernels_answers_are_those_of_any_code() {
    let Some(mut stage) = Stage::new(test_name!()) else {
        return;
    };
    let ((), counters) = stage.run(|| {
        // SAFETY: the calls ask, and one changes this context's own thread pointer to what it is.
        unsafe {
            assert_eq!(libc::syscall(9999), -1);
            assert_eq!(*libc::__errno_location(), libc::ENOSYS);
            const ARCH_GET_FS: usize = 0x1003;
            let mut base = 0usize;
            assert_eq!(
                libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &mut base),
                0
            );
            let own: usize;
            std::arch::asm!("mov {}, fs:0", out(reg) own);
            assert_eq!(base, own);
        }
    });
    // For the thread pointer, which the host side has another of.
    assert_eq!(counters.left, 1, "{counters:?}");
    stage.end();
}

#[test]
fn programs_that_are_started_get_none_of_its_descriptors() {
    let Some(stage) = Stage::new(test_name!()) else {
        return;
    };
    let mut seen = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        // Other tests' come and go.
        let Ok(file) = std::fs::read_link(&path) else {
            continue;
        };
        let file = file.to_string_lossy();
        if !(file.contains("kvm") || file.contains("eventfd")) {
            continue;
        }
        let number = path.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
            continue;
        };
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = i32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        assert!(flags & libc::O_CLOEXEC != 0, "{file} stays open");
        seen += 1;
    }
    // The machine, and a worker's vCPU and eventfd; on most kernels its statistics.
    assert!(seen >= 3, "{seen}");
    stage.end();
}

#[test]
fn a_forked_child_goes_on_natively() {
    let Some(guest) = crate::stage::guest(test_name!(), Default::default()) else {
        return;
    };
    let mut pool = Pool::new(PoolConfig::default(), |job: fn() -> u64| job()).unwrap();
    let mut worker = Worker::bind(0).unwrap();
    worker.enter_guest_mode(&guest).unwrap();
    let link = worker.link();
    let returns = || link.guest_counters().unwrap().returns;
    let (mut sender, mut receiver) = mailbox(1);
    let mut run = |job: fn() -> u64| {
        sender
            .send(pool.idle.pop().unwrap().load(job).into())
            .ok()
            .unwrap();
        let (runnable, generation) = receiver.poll().unwrap();
        let Outcome::Finished(finished) = worker.run(runnable, generation) else {
            panic!("nobody interrupts it");
        };
        let (idle, answer) = finished.take();
        receiver.answer(Completion::Finished(idle));
        let Some((_, Completion::Finished(idle))) = sender.poll() else {
            panic!("just answered");
        };
        pool.idle.push(idle);
        answer.unwrap()
    };
    // SAFETY: the child runs one more job, and ends.
    let child = run(|| unsafe { libc::fork() } as u64) as i32;
    let before = returns();
    let answer = run(|| (0..100u64).map(std::hint::black_box).sum());
    if child == 0 {
        let natively = answer == 4950 && returns() == before;
        // SAFETY: runs nothing of the parent's.
        unsafe { libc::_exit(if natively { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7, "{status:#x}");
    assert_eq!(answer, 4950);
    assert!(returns() > before, "the parent goes on in guest mode");
    drop(worker);
    let end = pool.handles.hand_back(pool.idle, crate::stage::PATIENCE);
    assert_eq!(end.leaked, 0);
}
