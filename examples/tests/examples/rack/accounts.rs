//! Where each packet of a test went, by the counts of client, switch and servers: what is missing
//! on one side is counted on another.

use rustix::process::Signal;
use shinjuku_tests_support::process::Server;

use super::client::Client;
use super::count;
use super::switch::Switch;

/// What a server counted, by the words that `synthetic` ends with.
struct Counts(String);

impl Counts {
    fn of(server: Server) -> Self {
        let said = server.end(Signal::TERM);
        let line = said.lines().find(|line| line.starts_with("UdpCounts"));
        Self(line.unwrap_or_else(|| panic!("no counts: {said}")).into())
    }

    fn get(&self, name: &str) -> u64 {
        let (_, rest) = (self.0.split_once(&format!(" {name}: ")))
            .unwrap_or_else(|| panic!("no {name}: {}", self.0));
        let digits = rest.split(|byte: char| !byte.is_ascii_digit()).next();
        digits.unwrap().parse().unwrap()
    }

    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.get(name)).sum()
    }
}

/// Every packet that the client has sent is in a reply that it got, or is counted by the server
/// that had no whole request of it; so no packet was lost between them. These servers were the
/// rack's only ones, and the client was alone; all requests had two packets.
pub fn assert_accounted(switch: &Switch, client: &Client, servers: Vec<Server>) {
    let (sent, received) = client.settle();
    assert_eq!(count(switch, "requests"), sent, "{}", switch.status());
    assert_eq!(count(switch, "replies"), received, "{}", switch.status());
    let servers: Vec<_> = servers.into_iter().map(Counts::of).collect();
    let all = |names: &[&str]| -> u64 { servers.iter().map(|counts| counts.sum(names)).sum() };
    // Both ways: what left the switch has come to a server, and what left a server to the switch.
    assert_eq!(all(&["received"]), sent);
    assert_eq!(all(&["sent"]), received);
    let causes = ["held", "expired", "evicted", "duplicate"];
    let dropped = all(&causes);
    let said: Vec<_> = servers.iter().map(|counts| &counts.0).collect();
    assert_eq!(sent, 2 * received + dropped, "{said:#?}");
    println!("{sent} packets, {received} replies; of no whole request: {dropped}");
}
