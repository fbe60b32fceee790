//! The commands to a rack at work: a line of JSON each way, over a Unix socket that only its user
//! can open.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Rack, RackError, ServerConfig, Status};

/// How long a command may take to be said, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long adding a server may take: ARP's time, and some.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// The longest command, in bytes.
const LONGEST: u64 = 1 << 16;

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
}

impl Control {
    /// Listens at `path`, in place of a socket that no rack listens at any more.
    ///
    /// # Errors
    /// If another rack listens there, or there cannot be a socket.
    pub fn listen(path: &Path) -> Result<Self, RackError> {
        let wrong = |cause| RackError::File {
            path: path.to_owned(),
            cause,
        };
        if UnixStream::connect(path).is_ok() {
            let taken = io::Error::new(ErrorKind::AddrInUse, "another rack listens there");
            return Err(wrong(taken));
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(wrong(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(wrong)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Serves the commands that wait. Returns whether one of them ends the rack.
    pub fn serve(&self, rack: &mut Rack) -> bool {
        let mut is_end = false;
        while let Ok((stream, _)) = self.listener.accept() {
            // Whoever does not take the answer goes without.
            is_end |= answer(&stream, rack).unwrap_or(false);
        }
        is_end
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn answer(stream: &UnixStream, rack: &mut Rack) -> io::Result<bool> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    let done = |result: Result<(), RackError>| match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Refused(error.to_string()),
    };
    let order = serde_json::from_str(&line);
    let answer = match &order {
        Ok(Order::Status) => match rack.status() {
            Ok(status) => Answer::Status(status),
            Err(error) => Answer::Refused(error.to_string()),
        },
        Ok(Order::Add(server)) => done(rack.add(server.clone())),
        Ok(Order::Drain(name)) => done(rack.drain(name)),
        Ok(Order::Remove(name)) => done(rack.remove(name)),
        Ok(Order::Stop) => Answer::Done,
        Err(error) => Answer::Refused(format!("no command: {error}")),
    };
    say(stream, &answer)?;
    Ok(matches!(order, Ok(Order::Stop)))
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
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}
