//! `shinjuku top` on a terminal: what it draws, and that the terminal is as it was afterwards,
//! whatever ends the program.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use shinjuku::{LayoutKind, Pool, preempt_point};

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u16 = 36;
const COLUMNS: u16 = 100;

/// A terminal with a program that runs in it. Dropped, both are gone.
struct Terminal {
    /// `None`: it was hung up.
    master: Option<OwnedFd>,
    slave: OwnedFd,
    written: Vec<u8>,
    program: Child,
}

impl Terminal {
    /// `shinjuku top` of the server at `socket`.
    fn top(socket: &Path) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(
            name,
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // In a session of its own, whose terminal this is.
        let program = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_shinjuku"), "top"])
            .args(["--every-ms", "100"])
            .arg(socket)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Self {
            master: Some(master),
            slave,
            written: Vec::new(),
            program,
        }
    }

    /// Takes what was written to it.
    fn read(&mut self) {
        let mut part = [0; 4096];
        let Some(master) = &self.master else { return };
        while let Ok(length @ 1..) = rustix::io::read(master, &mut part) {
            self.written.extend_from_slice(&part[..length]);
        }
    }

    /// Waits until the screen is as wanted, and gives its text.
    fn wait_for(&mut self, is_wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            self.read();
            let text = screen(&String::from_utf8_lossy(&self.written));
            if is_wanted(&text) {
                return text;
            }
            assert!(start.elapsed() < PATIENCE, "it never came:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether lines are edited and echoed, as a shell wants it.
    fn is_as_it_was(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn type_key(&self, key: &[u8]) {
        rustix::io::write(self.master.as_ref().unwrap(), key).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            self.read();
            if let Some(status) = self.program.try_wait().unwrap() {
                self.read();
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the program has left the screen that it drew on, and showed the cursor again. A
    /// thread of the kernel's hands on what was written, which may be after the program's end.
    fn has_left_the_screen(&mut self) -> bool {
        let start = Instant::now();
        loop {
            self.read();
            let written = String::from_utf8_lossy(&self.written);
            let after = written.rsplit("\x1b[?1049h").next().unwrap();
            let has_left = after.contains("\x1b[?1049l") && after.contains("\x1b[?25h");
            if has_left || start.elapsed() > PATIENCE {
                return has_left;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// What a screen shows on which this was written: text, and sequences that move the cursor, of
/// which all others do nothing.
fn screen(written: &str) -> String {
    let mut cells = vec![vec![' '; usize::from(COLUMNS)]; usize::from(ROWS)];
    let (mut row, mut column) = (0, 0);
    let mut symbols = written.chars();
    while let Some(symbol) = symbols.next() {
        if symbol != '\x1b' {
            if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = symbol;
            }
            column += 1;
            continue;
        }
        if symbols.next() != Some('[') {
            continue;
        }
        let mut parameters = String::new();
        let end = symbols.find(|symbol| {
            let is_end = ('@'..='~').contains(symbol);
            if !is_end {
                parameters.push(*symbol);
            }
            is_end
        });
        if end == Some('H') {
            let mut numbers = parameters
                .split(';')
                .map(|number| number.parse().unwrap_or(1));
            let mut next = || numbers.next().unwrap_or(1_usize).saturating_sub(1);
            (row, column) = (next(), next());
        }
    }
    let line = |cells: Vec<char>| cells.into_iter().collect::<String>().trim_end().to_owned();
    cells.into_iter().map(|cells| line(cells) + "\n").collect()
}

/// Short closures beside long ones, which `body` watches.
fn with_a_busy_pool(body: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("watch");
    let pool = Pool::builder(["interactive", "batch"])
        .layout(LayoutKind::Symmetric)
        .workers(2)
        .watch(socket.clone())
        .start()
        .unwrap();
    let spin = |micros: u64| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(micros) {
            preempt_point();
        }
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (class, micros) in [("interactive", 50), ("batch", 20_000), ("batch", 20_000)] {
            let (pool, is_over) = (&pool, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    pool.run(class, move || spin(micros)).wait().unwrap();
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        }
        let _end = SetAtTheEnd(&is_over);
        body(&socket);
    });
    assert!(pool.shutdown(PATIENCE).is_clean());
}

/// Threads end also if a test fails.
struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `--nocapture` shows the screen, of which docs/watching.md has one.
#[test]
fn top_draws_and_restores_the_terminal() {
    with_a_busy_pool(|socket| {
        let mut terminal = Terminal::top(socket);
        let parts = [
            "classes",
            "interactive",
            "batch",
            "threads now",
            "loop-0",
            "loop-1",
            "oldest requests",
            "/s: ",
            "q ends",
        ];
        let text = terminal
            .wait_for(|text| parts.iter().all(|part| text.contains(part)) && text.contains(" ms"));
        println!("{text}");
        assert!(!text.contains("dispatcher"), "{text}");
        assert!(!terminal.is_as_it_was());
        terminal.type_key(b"q");
        let status = terminal.wait();
        assert!(status.success(), "{status}");
        assert!(terminal.is_as_it_was() && terminal.has_left_the_screen());
    });
}

#[test]
fn a_signal_ends_top_with_the_terminal_restored() {
    with_a_busy_pool(|socket| {
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let mut terminal = Terminal::top(socket);
            terminal.wait_for(|text| text.contains("loop-0"));
            kill_process(Pid::from_child(&terminal.program), signal).unwrap();
            let status = terminal.wait();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
            assert!(terminal.is_as_it_was(), "{signal:?}");
            assert!(terminal.has_left_the_screen(), "{signal:?}");
        }
    });
}

/// As when a window is closed, or a connection breaks.
#[test]
fn top_ends_with_its_terminal() {
    with_a_busy_pool(|socket| {
        let mut terminal = Terminal::top(socket);
        terminal.wait_for(|text| text.contains("loop-0"));
        drop(terminal.master.take());
        assert!(!terminal.wait().success());
    });
}
