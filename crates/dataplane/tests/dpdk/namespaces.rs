//! Network namespaces that a test makes and removes, with the kernel's tools in them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::parts::Part;

/// Why this machine cannot run these tests.
fn cannot_run(test: &str) -> Option<String> {
    for tool in ["ip", "ping", "arping", "ethtool", "tcpdump"] {
        let there = Command::new(tool)
            .arg("-V")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if there.is_err() {
            return Some(format!("{tool} is not installed"));
        }
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("there is no /dev/net/tun".to_owned());
    }
    match make(test) {
        Ok(probe) => {
            ip(&format!("netns delete {probe}"));
            None
        }
        Err(reason) => Some(format!("cannot make a network namespace ({reason})")),
    }
}

/// Makes a network namespace, and tells its name, under which there was none: one of this process's
/// number can be left over from a run that was killed.
fn make(suffix: &str) -> Result<String, String> {
    let mut number = 0;
    loop {
        let name = format!("sj{}{suffix}{number}", std::process::id());
        let made = Command::new("ip")
            .args(["netns", "add", &name])
            .output()
            .unwrap();
        let reason = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        match made.status.success() {
            true => return Ok(name),
            false if reason.contains("File exists") && number < 100 => number += 1,
            false => return Err(reason),
        }
    }
}

/// Two network namespaces, removed with all that is in them.
pub struct Namespaces {
    pub names: [String; 2],
}

impl Namespaces {
    /// For `test`. `None`, having said so, if this machine cannot.
    pub fn of(test: &str, suffixes: [&str; 2]) -> Option<Self> {
        if let Some(reason) = cannot_run(suffixes[0]) {
            println!("SKIPPED {test}: {reason}");
            return None;
        }
        Some(Self::new(suffixes))
    }

    fn new(suffixes: [&str; 2]) -> Self {
        let names = suffixes.map(|suffix| make(suffix).unwrap_or_else(|reason| panic!("{reason}")));
        let namespaces = Self { names };
        for name in &namespaces.names {
            // Its unasked-for packets would be counted.
            let off = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; \
                       echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6";
            let _ = namespaces.exec(name, "sh").args(["-c", off]).output();
        }
        namespaces
    }

    /// A veth pair: `va` in the first, `vb` in the second.
    pub fn join(&self) {
        let [first, second] = &self.names;
        ip(&format!(
            "link add va netns {first} type veth peer name vb netns {second}"
        ));
        ip(&format!("-n {first} link set va up"));
        // The kernel would leave checksums to a network card that there is not.
        run(self.exec(second, "ethtool").args(["-K", "vb", "tx", "off"]));
    }

    /// Gives `device` in `namespace` an address in a net of /24.
    pub fn bring_up(namespace: &str, device: &str, address: Ipv4Addr) {
        ip(&format!(
            "-n {namespace} addr add {address}/24 dev {device}"
        ));
        ip(&format!("-n {namespace} link set {device} up"));
    }

    pub fn exec(&self, namespace: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]);
        command
    }

    pub fn start(&self, namespace: &str, part: &str) -> Part {
        let this = std::env::current_exe().unwrap();
        Part::start(self.exec(namespace, this.to_str().unwrap()), part)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

pub fn ip(arguments: &str) {
    run(Command::new("ip").args(arguments.split_whitespace()));
}

pub fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
