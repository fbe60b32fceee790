//! Every command: its name, how many arguments it takes, its class, and what it does.

use shinjuku::policy::ClassId;

use crate::call::{Call, Fault, Outcome};
use crate::server::Kv;

mod connection;
mod describe;
mod expiry;
mod info;
mod keys;
mod ranges;
mod strings;

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name, in lower case.
    pub name: &'static str,
    /// How many arguments it takes, its name included. Negative: at least that many.
    pub arity: i64,
    /// How long it takes, roughly.
    pub class: Class,
    /// Where keys stand among the arguments.
    pub keys: Keys,
    /// Whether it changes anything.
    pub writes: bool,
    run: fn(&Kv, &mut Call<'_>) -> Outcome,
}

/// The classes of requests, by their duration, for the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Takes some microseconds: one key, or none.
    Get,
    /// Takes microseconds to milliseconds, depending on the request: several keys, ranges, all
    /// keys.
    Scan,
}

impl Class {
    /// The classes' names, by number.
    pub const NAMES: [&str; 2] = ["get", "scan"];

    /// Its number.
    #[must_use]
    pub const fn id(self) -> ClassId {
        ClassId(self as u16)
    }
}

/// Where keys stand among a command's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// No argument is a key.
    None,
    /// The first argument is a key.
    First,
    /// All arguments are keys.
    All,
    /// Every other argument is a key, from the first on.
    Pairs,
}

impl Keys {
    /// The places of the first and the last key, and their distance, as Redis tells them.
    #[must_use]
    pub const fn places(self) -> (i64, i64, i64) {
        match self {
            Self::None => (0, 0, 0),
            Self::First => (1, 1, 1),
            Self::All => (1, -1, 1),
            Self::Pairs => (1, -1, 2),
        }
    }
}

const fn command(
    name: &'static str,
    arity: i64,
    class: Class,
    keys: Keys,
    writes: bool,
    run: fn(&Kv, &mut Call<'_>) -> Outcome,
) -> Command {
    Command {
        name,
        arity,
        class,
        keys,
        writes,
        run,
    }
}

const READS: bool = false;
const WRITES: bool = true;

/// All commands, the most frequent first.
#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[
    command("get",          2, Class::Get,  Keys::First, READS,  strings::get),
    command("set",         -3, Class::Get,  Keys::First, WRITES, strings::set),
    command("incr",         2, Class::Get,  Keys::First, WRITES, strings::incr),
    command("decr",         2, Class::Get,  Keys::First, WRITES, strings::decr),
    command("incrby",       3, Class::Get,  Keys::First, WRITES, strings::incrby),
    command("decrby",       3, Class::Get,  Keys::First, WRITES, strings::decrby),
    command("append",       3, Class::Get,  Keys::First, WRITES, strings::append),
    command("strlen",       2, Class::Get,  Keys::First, READS,  strings::strlen),
    command("setnx",        3, Class::Get,  Keys::First, WRITES, strings::setnx),
    command("setex",        4, Class::Get,  Keys::First, WRITES, strings::setex),
    command("psetex",       4, Class::Get,  Keys::First, WRITES, strings::psetex),
    command("getset",       3, Class::Get,  Keys::First, WRITES, strings::getset),
    command("getdel",       2, Class::Get,  Keys::First, WRITES, strings::getdel),

    command("del",         -2, Class::Get,  Keys::All,   WRITES, keys::del),
    command("unlink",      -2, Class::Get,  Keys::All,   WRITES, keys::del),
    command("exists",      -2, Class::Get,  Keys::All,   READS,  keys::exists),
    command("touch",       -2, Class::Get,  Keys::All,   READS,  keys::exists),
    command("mget",        -2, Class::Scan, Keys::All,   READS,  keys::mget),
    command("mset",        -3, Class::Scan, Keys::Pairs, WRITES, keys::mset),

    command("expire",      -3, Class::Get,  Keys::First, WRITES, expiry::expire),
    command("pexpire",     -3, Class::Get,  Keys::First, WRITES, expiry::pexpire),
    command("expireat",    -3, Class::Get,  Keys::First, WRITES, expiry::expireat),
    command("pexpireat",   -3, Class::Get,  Keys::First, WRITES, expiry::pexpireat),
    command("ttl",          2, Class::Get,  Keys::First, READS,  expiry::ttl),
    command("pttl",         2, Class::Get,  Keys::First, READS,  expiry::pttl),
    command("expiretime",   2, Class::Get,  Keys::First, READS,  expiry::expiretime),
    command("pexpiretime",  2, Class::Get,  Keys::First, READS,  expiry::pexpiretime),
    command("persist",      2, Class::Get,  Keys::First, WRITES, expiry::persist),

    command("type",         2, Class::Get,  Keys::First, READS,  keys::type_of),
    command("dbsize",       1, Class::Get,  Keys::None,  READS,  keys::dbsize),
    command("keys",         2, Class::Scan, Keys::None,  READS,  keys::keys),
    command("scan",        -2, Class::Scan, Keys::None,  READS,  keys::scan),
    command("flushdb",     -1, Class::Scan, Keys::None,  WRITES, keys::flush),
    command("flushall",    -1, Class::Scan, Keys::None,  WRITES, keys::flush),
    command("range",       -3, Class::Scan, Keys::None,  READS,  ranges::range),
    command("count-range",  3, Class::Scan, Keys::None,  READS,  ranges::count_range),

    command("ping",        -1, Class::Get,  Keys::None,  READS,  connection::ping),
    command("echo",         2, Class::Get,  Keys::None,  READS,  connection::echo),
    command("hello",       -1, Class::Get,  Keys::None,  READS,  connection::hello),
    command("auth",        -2, Class::Get,  Keys::None,  READS,  connection::auth),
    command("select",       2, Class::Get,  Keys::None,  READS,  connection::select),
    command("client",      -2, Class::Get,  Keys::None,  READS,  connection::client),
    command("reset",        1, Class::Get,  Keys::None,  READS,  connection::reset),
    command("quit",        -1, Class::Get,  Keys::None,  READS,  connection::quit),

    command("info",        -1, Class::Scan, Keys::None,  READS,  info::info),
    command("config",      -2, Class::Get,  Keys::None,  READS,  describe::config),
    command("command",     -1, Class::Scan, Keys::None,  READS,  describe::command),
    command("time",         1, Class::Get,  Keys::None,  READS,  connection::time),
    command("shutdown",    -1, Class::Get,  Keys::None,  READS,  connection::shutdown),
];

/// The command of this name, in any spelling.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS
        .iter()
        .find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// A request's class, by its command. Unknown commands are answered fast.
#[must_use]
pub fn class(name: &[u8]) -> u16 {
    find(name)
        .map_or(Class::Get, |command| command.class)
        .id()
        .0
}

impl Command {
    /// Executes the command.
    ///
    /// # Errors
    /// The error for the client, instead of a reply.
    pub fn run(&self, kv: &Kv, call: &mut Call<'_>) -> Outcome {
        check_arity(self.name, self.arity, call.left() as i64 + 1)?;
        (self.run)(kv, call)
    }
}

/// Full name, arity, and function.
type Subcommand = (&'static str, i64, fn(&Kv, &mut Call<'_>) -> Outcome);

/// Runs the subcommand that the next argument names.
fn subcommand(kv: &Kv, call: &mut Call<'_>, command: &str, known: &[Subcommand]) -> Outcome {
    let arguments = call.left() as i64 + 1;
    let name = call.argument()?;
    for (full, arity, run) in known {
        let own = full.split_once('|').map_or(*full, |(_, own)| own);
        if own.as_bytes().eq_ignore_ascii_case(&name) {
            check_arity(full, *arity, arguments)?;
            return run(kv, call);
        }
    }
    let name = c_string(&name, 128);
    let text = [
        b"ERR unknown subcommand '",
        name,
        b"'. Try ",
        command.as_bytes(),
        b" HELP.",
    ];
    Err(Fault::said(text.concat()))
}

fn check_arity(name: &str, arity: i64, arguments: i64) -> Outcome {
    if arguments == arity || arity < 0 && arguments >= -arity {
        Ok(())
    } else {
        Err(Fault::wrong_number(name))
    }
}

/// Redis's answer to an unknown command.
pub fn unknown(name: &[u8], call: &mut Call<'_>) -> Fault {
    /// About how many bytes of the arguments are repeated.
    const SHOWN: usize = 128;
    let mut shown = Vec::new();
    while let Some(argument) = call.take() {
        if shown.len() >= SHOWN {
            break;
        }
        let part = c_string(&argument, SHOWN - shown.len());
        shown = [&shown, &b"'"[..], part, b"' "].concat();
    }
    let name = c_string(name, SHOWN);
    let text = [
        b"ERR unknown command '",
        name,
        b"', with args beginning with: ",
        &shown,
    ];
    Fault::said(text.concat())
}

/// `bytes` as C prints them, up to a zero byte, or to `most`.
fn c_string(bytes: &[u8], most: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(most)];
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}
