//! A server as a child process: started, filled, stopped and continued, and ended by its own pid
//! whatever happens.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use core_affinity::CoreId;
use rustix::fs::{Access, access, statfs};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use shinjuku_loadgen::{Control, Settings};

use super::contender::{Contender, Preemption, Program};
use super::{KEYS, VALUE};
use crate::harness::cpu_seconds;

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(60);
/// How long it may take to end when asked, before it is killed.
const END: Duration = Duration::from_secs(8);
/// How often to look.
const POLL: Duration = Duration::from_millis(20);

/// Where the programs are.
#[derive(Debug)]
pub struct Binaries {
    kv: PathBuf,
    /// Whether `kv` has RocksDB.
    rocksdb: bool,
    /// Options for `kv` besides each contender's own.
    options: Vec<String>,
}

impl Binaries {
    /// Builds the server of `examples/kv`, with RocksDB if it is wanted and there; `given` is taken
    /// as it is.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn find(
        given: Option<&Path>,
        options: Vec<String>,
        rocksdb: bool,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let binaries = |kv, rocksdb| Self {
            kv,
            rocksdb,
            options,
        };
        if let Some(kv) = given {
            return Ok(binaries(kv.to_owned(), rocksdb));
        }
        let kv = crate::paths::target_dir().join("release").join("kv");
        if rocksdb {
            match build(true) {
                Ok(()) => return Ok(binaries(kv, rocksdb)),
                Err(error) => notes.push(format!(
                    "skipped: all with RocksDB: {error:#} (Debian: librocksdb-dev)"
                )),
            }
        }
        build(false)?;
        Ok(binaries(kv, false))
    }
}

fn build(rocksdb: bool) -> Result<()> {
    let mut command = crate::paths::cargo();
    command
        .args(["build", "--quiet", "--release", "--package", "shinjuku-kv"])
        .args(["--features", "kvm"]);
    if rocksdb {
        command.args(["--features", "rocksdb"]);
        // Debian's library, instead of building one for half an hour.
        for (name, path) in [
            ("ROCKSDB_LIB_DIR", "/usr/lib/x86_64-linux-gnu"),
            ("ROCKSDB_INCLUDE_DIR", "/usr/include"),
        ] {
            if std::env::var_os(name).is_none() {
                command.env(name, path);
            }
        }
        let header = Path::new("/usr/include/rocksdb/c.h");
        ensure!(
            header.exists() || std::env::var_os("ROCKSDB_INCLUDE_DIR").is_some(),
            "{} is not there",
            header.display()
        );
    }
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "building shinjuku-kv failed ({status})");
    Ok(())
}

/// Where a server says that it does not care: the kernel picks a port.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// So many ports are tried for a program that cannot be told to pick one.
const ATTEMPTS: usize = 5;

/// Where a Linux has a file system in memory.
const MEMORY: &str = "/dev/shm";

/// Where a server has its files: in memory if there is such a file system, as in the paper (section
/// 4.4).
fn data(directory: &Path, name: &str) -> PathBuf {
    const TMPFS: i64 = 0x0102_1994;
    let is_tmpfs = statfs(MEMORY).is_ok_and(|found| found.f_type == TMPFS);
    if is_tmpfs && access(MEMORY, Access::WRITE_OK).is_ok() {
        let own = format!("shinjuku-bench-kv-{}-{name}", std::process::id());
        return Path::new(MEMORY).join(own);
    }
    directory.join(format!("{name}.data"))
}

/// What a server is given besides its command line.
#[derive(Clone, Debug)]
struct Place {
    cores: Vec<CoreId>,
    log: PathBuf,
    data: Option<PathBuf>,
}

/// A server has ended before it answered; with its last words.
#[derive(Debug, thiserror::Error)]
#[error("it ended at once: {0}")]
struct EndedAtOnce(String);

/// A running server. Dropped, it ends.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it listens; [`ANYWHERE`] until it has told.
    pub address: SocketAddr,
    log: PathBuf,
    is_redis: bool,
    /// Its files, if it has any; gone with it.
    data: Option<PathBuf>,
}

impl Server {
    /// Starts a server and waits until it answers. It keeps to the first of `cores`, unless it
    /// spreads over both.
    ///
    /// # Errors
    /// Its program is not there, or it ends or does not answer.
    pub fn start(
        contender: &Contender,
        binaries: &Binaries,
        cores: (CoreId, CoreId),
        directory: &Path,
        name: &str,
    ) -> Result<Self> {
        let place = Place {
            cores: match contender.spreads() {
                true => vec![cores.0, cores.1],
                false => vec![cores.0],
            },
            log: directory.join(format!("{name}.log")),
            data: contender.needs_rocksdb().then(|| data(directory, name)),
        };
        if contender.program != Program::Redis {
            let command = kv(contender, binaries, cores.0, place.data.as_deref())?;
            let mut server = Self::launch(command, place, None)?;
            server.wait_until_it_answers()?;
            return Ok(server);
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Self::redis_at(free_address()?, place.clone()) {
                // Between its release and its use another process may take the port: once more,
                // then.
                Err(error) if attempts < ATTEMPTS && error.is::<EndedAtOnce>() => {}
                started => return started,
            }
        }
    }

    /// Starts a Redis at `address`.
    fn redis_at(address: SocketAddr, place: Place) -> Result<Self> {
        let mut server = Self::launch(redis(address), place, Some(address))?;
        server.wait_until_it_answers()?;
        Ok(server)
    }

    /// Starts a Redis at the address, or, without one, a server that picks its own.
    fn launch(mut command: Command, place: Place, redis: Option<SocketAddr>) -> Result<Self> {
        let Place { cores, log, data } = place;
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Self {
            child: spawn(command, &cores)?,
            address: redis.unwrap_or(ANYWHERE),
            log,
            is_redis: redis.is_some(),
            data,
        })
    }

    /// Puts the data in that is not there yet, and checks that all of it is.
    ///
    /// # Errors
    /// It is not.
    pub fn fill(&mut self, client: CoreId, stop: &AtomicBool) -> Result<()> {
        if self.is_redis {
            // The others have filled themselves, with the same keys.
            let settings = Settings {
                target: Some(self.address.to_string()),
                request: vec![format!("SET key:{{sequential}} {{value:{VALUE}}}").parse()?],
                keys: Some(KEYS),
                requests: Some(KEYS),
                saturate: Some(16),
                connections: Some(16),
                cores: vec![client.id],
                seconds: Some(60.0),
                warm_up: Some(0.0),
                ..Settings::default()
            };
            let plan = settings.check()?;
            let control = Control { stop, watch: None };
            plan.measure(plan.loads()[0], 1, &[], &control)?;
        }
        let size = self.ask("DBSIZE")?;
        ensure!(
            size == format!(":{KEYS}"),
            "it holds {size:?} keys, not {KEYS}"
        );
        Ok(())
    }

    /// What it said of itself when it started.
    pub fn description(&self) -> String {
        let told = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = told
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("listening on"))
            .collect();
        if self.is_redis {
            let version = lines.iter().find(|line| line.contains("Redis version="));
            let from = version.and_then(|line| line.split("Redis version=").nth(1));
            return format!("redis-server {}", from.unwrap_or("of unknown version"));
        }
        let place = match &self.data {
            Some(data) if data.starts_with(MEMORY) => "; its files are on a tmpfs",
            Some(_) => "; its files are on no tmpfs",
            None => "",
        };
        lines.join(" ") + place
    }

    /// The end of what it said.
    pub fn last_words(&mut self) -> String {
        let told = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = told.lines().rev().find(|line| !line.trim().is_empty());
        let status = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "it is still running".to_owned(),
        };
        format!("{status}; it said last: {:?}", last.unwrap_or_default())
    }

    /// CPU time that it has used, user's and system's, in seconds (in steps of the kernel's 10 ms).
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.child.id())
    }

    /// Stops it where it is.
    ///
    /// # Errors
    /// It is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server has ended: {status}");
        }
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // Not reaped before it is dropped, so the pid is its own.
        kill_process(Pid::from_child(&self.child), signal).context("cannot signal the server")
    }

    /// Sends an inline command, and gives the first line of the reply.
    fn ask(&self, command: &str) -> Result<String> {
        line(&mut self.send(command)?)
    }

    fn send(&self, command: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        Ok(stream)
    }

    /// Whether it is this server that answers, and not another process that has its address.
    fn answers(&mut self) -> Result<bool> {
        if self.address == ANYWHERE {
            let told = std::fs::read_to_string(&self.log)?;
            let mut lines = told.split_inclusive('\n');
            let address = lines.find_map(|line| {
                let line = line.strip_suffix('\n')?;
                line.strip_prefix("listening on ")
            });
            let Some(address) = address else {
                return Ok(false);
            };
            self.address = address.parse()?;
        }
        let mut stream = self.send("INFO server")?;
        let length: u64 = line(&mut stream)?.trim_start_matches('$').parse()?;
        let mut info = String::new();
        stream.take(length).read_to_string(&mut info)?;
        let id = info
            .lines()
            .find_map(|line| line.strip_prefix("process_id:"));
        Ok(id.is_some_and(|id| id.trim() == self.child.id().to_string()))
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        loop {
            if self.answers().unwrap_or(false) {
                return Ok(());
            }
            if self.child.try_wait()?.is_some() {
                bail!(EndedAtOnce(self.last_words()));
            }
            ensure!(
                Instant::now() < deadline,
                "it does not answer within {START:?}"
            );
            thread::sleep(POLL);
        }
    }
}

/// A reply's first line, without its end.
fn line(stream: &mut TcpStream) -> Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") && line.len() < 1000 {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that is stopped gets no other signal before it goes on. Errors: it is gone already.
        let _ = self.signal(Signal::TERM);
        let _ = self.signal(Signal::CONT);
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(POLL);
        }
        if let Some(data) = &self.data {
            let _ = std::fs::remove_dir_all(data);
        }
    }
}

/// A port that is free now.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?)
}

fn redis(address: SocketAddr) -> Command {
    let mut command = Command::new("redis-server");
    command
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .args(["--bind", &address.ip().to_string()])
        .args(["--port", &address.port().to_string()]);
    command
}

fn kv(
    contender: &Contender,
    binaries: &Binaries,
    core: CoreId,
    data: Option<&Path>,
) -> Result<Command> {
    let Program::Kv {
        policy,
        layout,
        preemption,
        engine,
    } = contender.program
    else {
        bail!("it is redis-server");
    };
    ensure!(
        binaries.rocksdb || !contender.needs_rocksdb(),
        "it was built without RocksDB"
    );
    let mut own = vec![
        ("--listen", ANYWHERE.to_string()),
        ("--policy", policy.to_owned()),
        ("--layout", layout.to_owned()),
        ("--engine", engine.to_owned()),
        ("--load", KEYS.to_string()),
        ("--value-size", VALUE.to_string()),
    ];
    match preemption {
        Preemption::None => own.push(("--preemption", "none".to_owned())),
        Preemption::Auto { quantum } => {
            own.push(("--preemption", "auto".to_owned()));
            own.extend(quantum.map(|quantum| ("--quantum", quantum.to_owned())));
        }
        Preemption::Signal { quantum } => {
            own.push(("--preemption", "signal".to_owned()));
            own.push(("--quantum", quantum.to_owned()));
        }
    }
    if !contender.spreads() {
        own.push(("--core", core.id.to_string()));
    }
    if let Some(data) = data {
        std::fs::create_dir_all(data)
            .with_context(|| format!("cannot create {}", data.display()))?;
        own.push(("--data", data.display().to_string()));
    }
    // What the command line gives goes before them.
    own.retain(|(name, _)| !binaries.options.iter().any(|given| given == name));
    let mut command = Command::new(&binaries.kv);
    for (name, value) in own {
        command.args([name, &value]);
    }
    command.args(&binaries.options);
    Ok(command)
}

/// Starts a command on these cores: a child has those of the thread that makes it.
fn spawn(mut command: Command, cores: &[CoreId]) -> Result<Child> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(core.id));
    let start = move || {
        sched_setaffinity(None, &set).context("cannot keep a server to its cores")?;
        command
            .spawn()
            .with_context(|| format!("cannot start {program}"))
    };
    thread::spawn(start)
        .join()
        .map_err(|_| anyhow::anyhow!("starting a server panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_or_ends_at_once_is_an_error() {
        let directory = std::env::temp_dir();
        let core = core_affinity::get_core_ids().unwrap()[0];
        let cores = (core, core);
        let binaries = |kv: &str| Binaries {
            kv: kv.into(),
            rocksdb: false,
            options: Vec::new(),
        };
        let start = |contender, kv: &str| {
            let name = format!("bench-kv-test-{}", std::process::id());
            Server::start(contender, &binaries(kv), cores, &directory, &name)
                .unwrap_err()
                .to_string()
        };
        assert!(start(&Contender::MQ, "/nowhere/kv").contains("cannot start"));
        assert!(start(&Contender::MQ, "/bin/false").contains("ended at once"));
        assert!(start(&Contender::ROCKSDB_MQ, "/bin/false").contains("without RocksDB"));
        let log = directory.join(format!("bench-kv-test-{}.log", std::process::id()));
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn rocksdb_has_plain_tables_in_memory_and_the_papers_quantum() {
        let binaries = Binaries {
            kv: "kv".into(),
            rocksdb: true,
            options: Vec::new(),
        };
        let core = core_affinity::get_core_ids().unwrap()[0];
        let directory = tempfile::tempdir().unwrap();
        let command = |contender| {
            let command = kv(contender, &binaries, core, Some(directory.path())).unwrap();
            let words = command.get_args().map(|word| word.to_string_lossy());
            words.collect::<Vec<_>>().join(" ")
        };
        for contender in [&Contender::ROCKSDB_SQ, &Contender::ROCKSDB_MQ] {
            let said = command(contender);
            for option in ["--engine rocksdb-plain", "--preemption auto --quantum 15us"] {
                assert!(said.contains(option), "{said}");
            }
        }
        assert!(!command(&Contender::MQ).contains("--quantum"));
        // Of its own name where it is shared, and gone with the server.
        let place = data(directory.path(), "rocksdb-sq");
        let is_own = place.starts_with(directory.path())
            || place
                .to_string_lossy()
                .contains(&std::process::id().to_string());
        assert!(is_own, "{}", place.display());
    }

    /// What answers at a port that was free a moment ago can be another Redis.
    #[test]
    fn another_process_at_the_port_is_not_taken_for_the_redis_that_was_started() {
        const NAME: &str =
            "another_process_at_the_port_is_not_taken_for_the_redis_that_was_started";
        if Command::new("redis-server").arg("-v").output().is_err() {
            eprintln!("SKIPPED {NAME}: there is no redis-server (Debian: redis-server)");
            return;
        }
        let other = TcpListener::bind(ANYWHERE).unwrap();
        let address = other.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in other.incoming().map_while(Result::ok) {
                let mut request = [0; 100];
                let length = stream.read(&mut request).unwrap_or(0);
                let reply = if request[..length].starts_with(b"PING") {
                    "+PONG\r\n"
                } else {
                    "$14\r\nprocess_id:1\r\n\r\n"
                };
                let _ = stream.write_all(reply.as_bytes());
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let place = Place {
            cores: core_affinity::get_core_ids().unwrap(),
            log: directory.path().join("log"),
            data: None,
        };
        let error = Server::redis_at(address, place).unwrap_err();
        assert!(error.is::<EndedAtOnce>(), "{error:#}");
    }
}
