//! Network namespaces that a test makes and removes, and the kernel's tools in them.

use std::fmt::{Display, Formatter};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::{Part, is_there, this_test};

/// A network namespace, removed with all that is in it. Shown, it is its name, of at most 15 bytes,
/// which an interface may have as well.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// A new namespace, whose name has `tag`, of at most two bytes, in it.
    ///
    /// # Errors
    /// Why this machine or this user cannot make one.
    pub fn new(tag: &str) -> Result<Self, String> {
        let mut number = 0;
        loop {
            // There can be one of this process's number, left over from a run that was killed.
            let name = format!("sj{}{tag}{number}", std::process::id());
            match run(&format!("ip netns add {name}")) {
                Ok(()) => return Ok(Self(name)),
                Err(reason) if reason.contains("File exists") && number < 100 => number += 1,
                Err(reason) => return Err(reason),
            }
        }
    }

    /// A command that runs `program` here.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0])
            .arg(program.as_ref());
        command
    }

    /// Runs a command line here.
    ///
    /// # Errors
    /// Its output, if it failed.
    pub fn run(&self, line: &str) -> Result<(), String> {
        run(&format!("ip netns exec {self} {line}"))
    }

    /// Runs `ip` with `arguments` here.
    ///
    /// # Errors
    /// Its output, if it failed.
    pub fn ip(&self, arguments: &str) -> Result<(), String> {
        run(&format!("ip -n {self} {arguments}"))
    }

    /// Gives `device` an address in a net of /24, and starts it.
    pub fn bring_up(&self, device: &str, address: Ipv4Addr) {
        must(self.ip(&format!("addr add {address}/24 dev {device}")));
        must(self.ip(&format!("link set {device} up")));
    }

    /// Calls `work` on a thread in this namespace, and gives its result. The threads that `work`
    /// starts are in the namespace, too.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let here = File::open(format!("/run/netns/{self}")).expect("the namespace is there");
        std::thread::scope(|scope| {
            let work = scope.spawn(move || {
                move_into_link_name_space(here.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may enter a namespace");
                work()
            });
            work.join().expect("the work succeeds")
        })
    }
}

impl Display for Namespace {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(&format!("ip netns delete {self}"));
    }
}

/// Runs a command line.
///
/// # Errors
/// Its output, if it failed.
pub fn run(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Err(format!(
                "`{line}`: {}",
                String::from_utf8_lossy(&said).trim()
            ))
        }
        Err(error) => Err(format!("`{line}`: {error}")),
    }
}

/// The result of a command that must not fail.
pub fn must<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|reason| panic!("{reason}"))
}

/// Two namespaces: for a device, and for its peer.
#[derive(Debug)]
pub struct Pair(pub [Namespace; 2]);

impl Pair {
    /// Makes two namespaces with these tags, for `test`. `None` if this machine cannot run the
    /// test; says then that it is skipped.
    #[must_use]
    pub fn new(test: &str, tags: [&str; 2]) -> Option<Self> {
        match Self::make(tags) {
            Ok(pair) => Some(pair),
            Err(reason) => {
                println!("SKIPPED {test}: {reason}");
                None
            }
        }
    }

    fn make([first, second]: [&str; 2]) -> Result<Self, String> {
        for tool in ["ping", "arping", "ethtool", "tcpdump"] {
            if !is_there(tool) {
                return Err(format!("{tool} is not installed"));
            }
        }
        if !Path::new("/dev/net/tun").exists() {
            return Err("there is no /dev/net/tun".to_owned());
        }
        let pair = Self([Namespace::new(first)?, Namespace::new(second)?]);
        for namespace in &pair.0 {
            // IPv6 sends packets by itself, which the tests would count.
            let off = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; \
                       echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6";
            let _ = namespace.command("sh").args(["-c", off]).output();
        }
        Ok(pair)
    }

    /// Makes a veth pair: `va` in the first namespace, `vb` in the second.
    pub fn join(&self) {
        let [first, second] = &self.0;
        must(run(&format!(
            "ip link add va netns {first} type veth peer name vb netns {second}"
        )));
        must(first.ip("link set va up"));
        // The kernel would leave checksums to a network card, and a veth has none.
        must(second.run("ethtool -K vb tx off"));
    }
}

impl Part {
    /// Starts a part of the test in `namespace`.
    #[must_use]
    pub fn start_in(namespace: &Namespace, part: &str) -> Self {
        let this = this_test("part");
        let mut command = namespace.command(this.get_program());
        command.args(this.get_args());
        Self::start(command, part)
    }
}
