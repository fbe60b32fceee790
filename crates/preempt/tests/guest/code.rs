//! Ordinary code in guest mode.

use shinjuku_tests_support::{need, test_name};
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::stage::Stage;

thread_local! {
    static LOCAL: Cell<u64> = const { Cell::new(7) };
}

#[test]
fn the_standard_library_works() {
    let mut stage = need!(Stage::new(test_name!()));
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
    let mut stage = need!(Stage::new(test_name!()));
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
fn the_time_is_read_without_leaving_guest_mode() {
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let clock = std::fs::read_to_string(clock).unwrap_or_default();
    if !matches!(clock.trim(), "tsc" | "kvm-clock") {
        println!(
            "SKIPPED {}: the clock source is {clock:?}, which takes a system call anywhere",
            test_name!()
        );
        return;
    }
    let mut stage = need!(Stage::new(test_name!()));
    let (goes_back, counters) = stage.run(|| {
        let times: Vec<_> = (0..1000).map(|_| Instant::now()).collect();
        times.windows(2).any(|pair| pair[1] < pair[0])
    });
    assert!(!goes_back);
    assert_eq!(counters.left, 0, "{counters:?}");
    assert!(counters.forwarded < 100, "{counters:?}");
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
    let mut stage = need!(Stage::new(test_name!()));
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
    let mut stage = need!(Stage::new(test_name!()));
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
    let mut stage = need!(Stage::new(test_name!()));
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
    let mut stage = need!(Stage::new(test_name!()));
    let (output, _) = stage.run(|| std::process::Command::new("echo").arg("hello").output());
    assert_eq!(output.unwrap().stdout, b"hello\n");
    stage.end();
}

#[test]
fn a_job_can_fork() {
    let mut stage = need!(Stage::new(test_name!()));
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
    let mut stage = need!(Stage::new(test_name!()));
    let ((inside, allowed), _) = stage.run(|| {
        // SAFETY: the call returns a number; the set is plain bits, filled in by the kernel.
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
fn the_kernels_answers_are_those_of_any_code() {
    let mut stage = need!(Stage::new(test_name!()));
    let ((), counters) = stage.run(|| {
        // SAFETY: the calls read, and one sets this context's own thread pointer to its present
        // value.
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
    // Left once for the thread pointer, of which the host side has another.
    assert_eq!(counters.left, 1, "{counters:?}");
    stage.end();
}
