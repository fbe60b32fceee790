//! A Unix socket on which other processes watch a runtime: `shinjuku top` and `shinjuku trace`.
//!
//! A client sends one line, and gets one answer, after which the connection is closed:
//!
//! | line | answer |
//! |---|---|
//! | `statistics` | [`Statistics`], as JSON: one object |
//! | `trace MICROSECONDS` | a [`Trace`](crate::timeline::Trace) of that time, as its file |
//! | anything else | `{"error": "..."}` |
//!
//! A client can change nothing. The socket's file has mode 0600 from its first moment on. A few
//! threads serve one client each at a time, so that a client with a long trace holds up no other.
//! No read or write waits for longer than five seconds. The threads that serve requests have no
//! part in this.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shinjuku_net::Refusal;

use crate::observer::Observer;
use crate::preemption::QuantumInForce;
use crate::queued::QueuedRequest;
use crate::started::{StartedRequest, ThreadState};
use crate::statistics::{ClassStatistics, Histogram};
use crate::timeline::Quoted;

/// How long a client may take to send its line, and to take a part of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line, in bytes.
const LONGEST_LINE: u64 = 100;
/// How many of the oldest requests an answer lists.
const OLDEST: usize = 8;
/// The longest recording.
const LONGEST_TRACE: Duration = Duration::from_secs(10);
const BACKLOG: i32 = 16;
/// How many clients are served at a time.
const SERVERS: usize = 4;
/// How long the end waits for the threads.
const LONGEST_END: Duration = Duration::from_millis(500);

/// Why a runtime cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// Another process answers there.
    #[error("watch: another process listens on {0}: choose another path")]
    InUse(PathBuf),
    /// There is a file that is no socket.
    #[error("watch: {0} is there and is no socket: choose another path")]
    Occupied(PathBuf),
    /// The socket cannot be made.
    #[error("watch: cannot listen on {path}: {cause}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// A socket on which a runtime is watched. Dropping this closes the socket and removes its file.
/// See [`Observer::listen`].
#[derive(Debug)]
#[must_use = "no one can watch any more once it is dropped"]
pub struct WatchSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Observer {
    /// Lets other processes of the same user watch the runtime on a Unix socket at `path`. Removes
    /// a socket's file that a dead process has left there.
    ///
    /// # Errors
    /// [`WatchError`] says what is in the way.
    pub fn listen(&self, path: impl Into<PathBuf>) -> Result<WatchSocket, WatchError> {
        let path = path.into();
        remove_what_is_left(&path)?;
        let failed = |cause: io::Error| WatchError::Listen {
            path: path.clone(),
            cause,
        };
        let listener = listen(&path).map_err(failed)?;
        let listener = Arc::new(listener);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut socket = WatchSocket {
            path: path.clone(),
            listener,
            is_over,
            threads: Vec::with_capacity(SERVERS),
        };
        for _ in 0..SERVERS {
            let server = Server {
                observer: self.clone(),
                is_over: Arc::clone(&socket.is_over),
            };
            let accepts = Arc::clone(&socket.listener);
            let thread = std::thread::Builder::new()
                .name("shinjuku-watch".to_owned())
                .spawn(move || server.run(&accepts))
                .map_err(failed)?;
            socket.threads.push(thread);
        }
        Ok(socket)
    }
}

impl Drop for WatchSocket {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // This ends `accept` in all threads.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = fs::remove_file(&self.path);
        // The drop does not wait for a client that is slow to take its answer: that thread ends by
        // itself.
        let begin = Instant::now();
        let are_over = || self.threads.iter().all(JoinHandle::is_finished);
        while !are_over() && begin.elapsed() < LONGEST_END {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Binds the socket. Its file gets the mode that the socket has before, so that no other user can
/// connect at any moment.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket's file that a killed process has left.
fn remove_what_is_left(path: &Path) -> Result<(), WatchError> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(there) if !there.file_type().is_socket() => Err(WatchError::Occupied(path.to_owned())),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
                .map_err(|cause| WatchError::Listen {
                    path: path.to_owned(),
                    cause,
                }),
            _ => Err(WatchError::InUse(path.to_owned())),
        },
    }
}

/// One of the threads behind the socket.
struct Server {
    observer: Observer,
    is_over: Arc<AtomicBool>,
}

impl Server {
    fn run(&self, listener: &UnixListener) {
        while !self.is_over.load(Ordering::Acquire) {
            match listener.accept() {
                // A client that goes away does no harm.
                Ok((client, _)) => drop(self.answer(&client)),
                // The process may be out of descriptors, for example, and have some again later.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn answer(&self, client: &UnixStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(client.take(LONGEST_LINE)).read_line(&mut line)?;
        let words: Vec<_> = line.split_whitespace().collect();
        let mut to = io::BufWriter::new(client);
        match words[..] {
            ["statistics"] => {
                let text = report(&self.observer);
                to.write_all(text.as_bytes())?;
            }
            ["trace", micros] => match micros.parse() {
                Ok(micros) => self.trace(Duration::from_micros(micros), &mut to)?,
                Err(_) => refuse(&mut to, "trace takes a time in microseconds")?,
            },
            _ => refuse(&mut to, "say `statistics` or `trace MICROSECONDS`")?,
        }
        to.flush()
    }

    fn trace(&self, duration: Duration, to: &mut impl Write) -> io::Result<()> {
        if duration > LONGEST_TRACE {
            return refuse(to, "a trace is of ten seconds at most");
        }
        let is_over = || self.is_over.load(Ordering::Acquire);
        match self.observer.record_unless(duration, is_over) {
            Ok(trace) => trace.write_json(to),
            Err(error) => refuse(to, &error.to_string()),
        }
    }
}

fn refuse(to: &mut impl Write, why: &str) -> io::Result<()> {
    writeln!(to, "{{\"error\":{}}}", Quoted(why))
}

/// The statistics, the threads and the oldest requests as one JSON object, with the names of their
/// fields.
fn report(observer: &Observer) -> String {
    let (statistics, description) = (&observer.statistics(), observer.description());
    let in_force = observer.in_force.as_ref();
    let in_force = in_force.map(|quanta| Quoted(&quanta.to_string()).to_string());
    let quanta: Vec<_> = observer.quanta_in_force().iter().map(quantum).collect();
    let queued = observer.queued();
    let threads: Vec<_> = observer.threads().iter().map(thread).collect();
    let has_dispatcher = !observer.arrangement.are_loops;
    let occupancy = has_dispatcher.then(|| format!("{:.4}", statistics.dispatcher_occupancy));
    let refused = |cause: Refusal| {
        let name = format!("{cause:?}");
        format!("{}:{}", Quoted(&name), statistics.refused.of(cause))
    };
    let refused = Refusal::ALL.map(refused).join(",");
    let waiting = queued.by_class.iter().copied().zip(observer.suspended());
    let classes: Vec<_> = (statistics.classes.iter().zip(waiting))
        .map(|(one, waiting)| class(one, waiting))
        .collect();
    let oldest = oldest(observer.oldest_requests(OLDEST), queued.oldest);
    let preemptions = &statistics.preemptions;
    let mut text = format!(
        "{{\"description\":{},\"uptime_seconds\":{:.6},\"dispatcher_occupancy\":{},\
         \"policy_set_aside\":{},\"refused\":{{{refused}}},\"classes\":[{}],\"threads\":[{}],\
         \"oldest\":[{}],\"quanta\":[{}],\"quantum_in_force\":{}",
        Quoted(&description),
        statistics.uptime.as_secs_f64(),
        occupancy.as_deref().unwrap_or("null"),
        statistics.policy_set_aside,
        classes.join(","),
        threads.join(","),
        oldest.join(","),
        quanta.join(","),
        in_force.as_deref().unwrap_or("null")
    );
    for (name, number) in [
        ("received", statistics.received),
        ("returned", statistics.returned),
        ("lost", statistics.lost),
        ("waiting", statistics.waiting),
        ("never_ran_beyond", queued.beyond),
        ("started", statistics.started),
        ("running", statistics.running),
        ("helped", statistics.helped),
        ("rescued", statistics.rescued),
        ("workers_blocked", statistics.workers_blocked),
        ("spares_exhausted", statistics.spares_exhausted),
        ("run_by_dispatcher", statistics.run_by_dispatcher),
        ("dispatcher_relieved", statistics.dispatcher_relieved),
        ("stalls_computing", statistics.stalls.computing),
        ("stalls_blocked", statistics.stalls.blocked),
        ("progress_interventions", statistics.progress_interventions),
        ("preempted_by_probe", preemptions.by_probe),
        ("preempted_by_compiled_probe", preemptions.by_compiled_probe),
        ("preempted_by_interrupt", preemptions.by_interrupt),
        ("preempted_at_guard", preemptions.at_guard),
        ("interrupts_sent", preemptions.interrupts_sent),
        ("interrupts_failed", preemptions.interrupts_failed),
        ("interrupts_late", preemptions.late),
        ("preemptions_requested", preemptions.requested),
        ("preemptions_deferred", preemptions.deferred),
        ("migrations", preemptions.migrations),
    ] {
        write!(text, ",\"{name}\":{number}").expect("a string takes all");
    }
    text += "}\n";
    text
}

/// The oldest of those that have started and of those that have not, the oldest first.
fn oldest(started: Vec<StartedRequest>, queued: Vec<QueuedRequest>) -> Vec<String> {
    let queued = queued.into_iter().map(|request| StartedRequest {
        class: request.class,
        age: request.age,
        thread: None,
        runs_for: Duration::ZERO,
    });
    let mut all: Vec<_> = (started.into_iter().map(|request| (request, false)))
        .chain(queued.map(|request| (request, true)))
        .collect();
    all.sort_by_key(|(request, _)| std::cmp::Reverse(request.age));
    all.truncate(OLDEST);
    all.iter()
        .map(|(one, never_ran)| request(one, *never_ran))
        .collect()
}

fn request(request: &StartedRequest, never_ran: bool) -> String {
    format!(
        "{{\"class\":{},\"age_nanos\":{},\"never_ran\":{never_ran},\"thread\":{},\
         \"runs_for_nanos\":{}}}",
        Quoted(&request.class),
        request.age.as_nanos(),
        or_null(request.thread.as_deref()),
        request.runs_for.as_nanos()
    )
}

fn thread(thread: &ThreadState) -> String {
    let waiting = thread.waiting.map(|number| number.to_string());
    format!(
        "{{\"name\":{},\"class\":{},\"runs_for_nanos\":{},\"waiting\":{}}}",
        Quoted(&thread.name),
        or_null(thread.class.as_deref()),
        thread.runs_for.as_nanos(),
        waiting.as_deref().unwrap_or("null")
    )
}

fn quantum(one: &QuantumInForce) -> String {
    let nanos = one.quantum.map(|quantum| quantum.as_nanos().to_string());
    format!(
        "{{\"class\":{},\"mechanism\":{},\"nanos\":{}}}",
        Quoted(&one.class),
        Quoted(&one.mechanism),
        nanos.as_deref().unwrap_or("null")
    )
}

fn or_null(name: Option<&str>) -> String {
    name.map_or_else(|| "null".to_owned(), |name| Quoted(name).to_string())
}

/// Of the class, beside what was counted: how many wait that never ran, and that did.
fn class(class: &ClassStatistics, (fresh, suspended): (u64, u64)) -> String {
    format!(
        "{{\"name\":{},\"never_ran\":{fresh},\"preempted\":{suspended},\"finished\":{},\"failed\":{},\"preemptions\":{},\"service_nanos\":{},\
         \"latency_nanos\":{},\"queue_nanos\":{},\"slowdown_thousandths\":{}}}",
        Quoted(&class.name),
        class.finished,
        class.failed,
        class.preemptions,
        class.service_nanos,
        buckets(&class.latency_nanos),
        buckets(&class.queue_nanos),
        buckets(&class.slowdown_thousandths)
    )
}

/// A histogram as pairs of a value and how often it occurred.
fn buckets(histogram: &Histogram) -> String {
    let pairs: Vec<_> = histogram
        .iter()
        .map(|(value, count)| format!("[{value},{count}]"))
        .collect();
    format!("[{}]", pairs.join(","))
}
