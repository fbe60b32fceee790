//! The commands to a rack at work: a line of JSON each way, over a Unix socket that only its user
//! can open.
//!
//! The rack's loop looks after all clients in turn and waits for none of them: one that says
//! nothing, or half a command, or does not take its answer, keeps only its own place.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::{Rack, RackError, ServerConfig, Status, neighbour};

/// How long a command may take to be said, and its answer to be made and taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients at a time; for one more, the oldest is turned away.
const CLIENTS: usize = 64;
/// Clients that wait for a place.
const BACKLOG: i32 = 128;
/// How long adding a server may take: ARP's time, and some.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// The longest command, in bytes.
const LONGEST: usize = 1 << 16;

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Order {
    /// Tells what there is.
    Status,
    /// Adds a server, or opens it again.
    Add(ServerConfig),
    /// Gives a server no further requests.
    Drain(String),
    /// Gives a server no further requests, and forgets it.
    Remove(String),
    /// Ends the rack.
    Stop,
}

/// What became of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It is done.
    Done,
    /// What there is.
    Status(Status),
    /// It is not done, and why.
    Refused(String),
}

/// The socket of a rack at work; it removes its file when it is dropped.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// The oldest first.
    exchanges: VecDeque<Exchange>,
}

impl Control {
    /// Listens at `path`, in place of a socket that no rack listens at any more.
    ///
    /// # Errors
    /// If another rack listens there, something else than a socket is there, or there cannot be a
    /// socket.
    pub fn listen(path: &Path) -> Result<Self, RackError> {
        let wrong = |cause| RackError::File {
            path: path.to_owned(),
            cause,
        };
        remove_what_is_left(path).map_err(wrong)?;
        let listener = bound(path).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            exchanges: VecDeque::with_capacity(CLIENTS),
        })
    }

    /// Serves the commands that are there, and waits for no others. Returns whether one of them
    /// ends the rack.
    pub fn serve(&mut self, rack: &mut Rack) -> bool {
        // As many as can be held: more that come meanwhile are the next call's.
        for _ in 0..CLIENTS {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            if self.exchanges.len() == CLIENTS {
                self.exchanges.pop_front();
            }
            self.exchanges.extend(Exchange::new(stream));
        }
        let mut is_end = false;
        self.exchanges.retain_mut(|exchange| {
            let progress = exchange.go_on(rack, &mut is_end);
            // A client that is gone, or does not take the answer, goes without.
            let waits = progress.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            waits && exchange.since.elapsed() < PATIENCE
        });
        is_end
    }
}

/// A rack that was killed has left its socket's file: that nobody answers at.
fn remove_what_is_left(path: &Path) -> io::Result<()> {
    let refused = |why| Err(io::Error::new(ErrorKind::AddrInUse, why));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(there) if !there.file_type().is_socket() => refused("it is there and is no socket"),
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => refused("another rack listens there"),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
            Err(error) => Err(error),
        },
    }
}

/// A socket's mode before it is bound is its file's, so no one else can connect at any moment.
fn bound(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A client's command and its answer.
#[derive(Debug)]
struct Exchange {
    stream: UnixStream,
    stage: Stage,
    /// When the client began to say its command; once that is all there, since then.
    since: Instant,
}

/// How far an exchange has come.
#[derive(Debug)]
enum Stage {
    /// So much of the command has come.
    Asking(Vec<u8>),
    /// The command is all there, and is not done yet.
    Doing(Order),
    /// So much of the answer is left to send.
    Answering(Vec<u8>),
}

impl Exchange {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            stage: Stage::Asking(Vec::new()),
            since: Instant::now(),
        })
    }

    /// Goes on to its end; or, with `WouldBlock`, until client or ARP have to do their part. Sets
    /// `is_end` if the command ends the rack.
    fn go_on(&mut self, rack: &mut Rack, is_end: &mut bool) -> io::Result<()> {
        loop {
            match &mut self.stage {
                Stage::Asking(said) => {
                    let order = serde_json::from_slice(first_line(&self.stream, said)?);
                    self.since = Instant::now();
                    self.stage = match order {
                        Ok(order) => Stage::Doing(order),
                        Err(error) => {
                            let refused = Answer::Refused(format!("no command: {error}"));
                            Stage::Answering(line(&refused)?)
                        }
                    };
                }
                Stage::Doing(order) => {
                    let answer = done(order, rack, self.since)?;
                    *is_end |= matches!(order, Order::Stop);
                    self.stage = Stage::Answering(line(&answer)?);
                }
                Stage::Answering(left) => {
                    while !left.is_empty() {
                        let sent = self.stream.write(left)?;
                        left.drain(..sent);
                    }
                    return Ok(());
                }
            }
        }
    }
}

/// The first line of what the client says, of which `said` has come before.
fn first_line<'a>(mut stream: &UnixStream, said: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    let mut piece = [0; 4096];
    while !said.contains(&b'\n') && said.len() < LONGEST {
        match stream.read(&mut piece)? {
            // It only looked whether a rack listens.
            0 if said.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            0 => break,
            length => said.extend(&piece[..length]),
        }
    }
    Ok(said.split(|byte| *byte == b'\n').next().unwrap_or_default())
}

/// Does what is ordered. `WouldBlock`: ARP, asked since then, may still find the server.
fn done(order: &Order, rack: &mut Rack, since: Instant) -> io::Result<Answer> {
    let result = match order {
        Order::Status => {
            return Ok(match rack.status() {
                Ok(status) => Answer::Status(status),
                Err(error) => Answer::Refused(error.to_string()),
            });
        }
        Order::Add(server) => match rack.add_if_known(server.clone()) {
            Err(RackError::NoNeighbour(_)) if since.elapsed() < neighbour::PATIENCE => {
                return Err(ErrorKind::WouldBlock.into());
            }
            added => added,
        },
        Order::Drain(name) => rack.drain(name),
        Order::Remove(name) => rack.remove(name),
        Order::Stop => Ok(()),
    };
    Ok(match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Refused(error.to_string()),
    })
}

/// Gives a command to the rack that listens at `path`.
///
/// # Errors
/// If none listens there, or it does not answer in time.
pub fn command(path: &Path, order: &Order) -> Result<Answer, RackError> {
    let wrong = |cause| RackError::File {
        path: path.to_owned(),
        cause,
    };
    let ask = || {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        say(&stream, order)?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    ask().map_err(wrong)
}

fn say(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&line(message)?)
}

fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_socket_that_nobody_answers_at_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        fs::write(&path, "a file of somebody's").unwrap();
        let refused = Control::listen(&path).unwrap_err().to_string();
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"a file of somebody's");
        fs::remove_file(&path).unwrap();

        // A link to a socket is none either.
        let elsewhere = directory.path().join("elsewhere");
        drop(UnixListener::bind(&elsewhere).unwrap());
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let refused = Control::listen(&path).unwrap_err().to_string();
        assert!(refused.contains("no socket"), "{refused}");
        fs::remove_file(&path).unwrap();

        drop(UnixListener::bind(&path).unwrap());
        let control = Control::listen(&path).unwrap();
        let second = Control::listen(&path).unwrap_err().to_string();
        assert!(second.contains("another rack listens there"), "{second}");
        UnixStream::connect(&path).unwrap();
        drop(control);
        assert!(!path.exists());
    }

    /// Another thread looks at the file all the time that it is there.
    #[test]
    fn the_socket_is_its_users_from_the_first_moment() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let start = Instant::now();
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut seen = 0;
                while seen < 200 && start.elapsed() < shinjuku_tests_support::PATIENCE {
                    if let Ok(there) = fs::symlink_metadata(&path) {
                        assert_eq!(there.permissions().mode() & 0o777, 0o600);
                        seen += 1;
                    }
                }
                seen
            });
            while !watching.is_finished() {
                drop(Control::listen(&path).unwrap());
            }
            assert_eq!(watching.join().unwrap(), 200, "it was there");
        });
    }
}
