//! The command `shinjuku-rack` from its start to its end, in a network namespace of its own.
//!
//! Takes root, `ip`, and the XDP program; without them the tests say `SKIPPED`.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shinjuku_net::wire::RackSchedMessage;
use shinjuku_rack::control::{Answer, Order, command};
use shinjuku_rack::registration::Registration;
use shinjuku_rack::{Mode, RackError, ServerConfig, State, Status};
use shinjuku_tests_support::namespace::{Namespace, must};
use shinjuku_tests_support::process::{Process, Server};
use shinjuku_tests_support::{PATIENCE, comes_true};

const COMMAND: &str = env!("CARGO_BIN_EXE_shinjuku-rack");

/// The namespaces of a switch, with `east`, and of a server that may register, with `west`; and the
/// rack's files.
struct Place {
    switch: Namespace,
    server: Namespace,
    files: tempfile::TempDir,
}

impl Place {
    /// `None`, having said so, if this machine cannot.
    fn new(test: &str) -> Option<Self> {
        let made = match shinjuku_rack::datapath::missing() {
            Some(missing) => Err(format!("built without the XDP program: {missing}")),
            None => Self::make(),
        };
        match made {
            Ok(place) => Some(place),
            Err(reason) => {
                println!("SKIPPED {test}: {reason}");
                None
            }
        }
    }

    fn make() -> Result<Self, String> {
        let (switch, server) = (Namespace::new("c")?, Namespace::new("c")?);
        switch.ip(&format!(
            "link add east type veth peer name west netns {server}"
        ))?;
        switch.ip("addr add 10.78.0.1/24 dev east")?;
        server.ip("addr add 10.78.0.7/24 dev west")?;
        switch.ip("link set east up")?;
        server.ip("link set west up")?;
        Ok(Self {
            switch,
            server,
            files: tempfile::tempdir().unwrap(),
        })
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    fn configure(&self) -> String {
        let path = self.path("rack.toml");
        let socket = self.path("socket");
        let text = format!(
            "address = '10.78.0.1'\ninterfaces = ['east']\nmode = 'generic'\ncontrol = '{socket}'\n\
             table = {{ buckets = 16, age_ms = 50 }}\n\
             registration = {{ listen = '10.78.0.1:7777', from = ['10.78.0.7/32'] }}\n\
             [[type]]\nname = 'short'\nport = 1234\nformat = 'racksched'\nbalancer = 'power-of-2'\n\
             load_info = 'int1'\n\
             [[server]]\nname = 'a'\naddress = '10.78.0.2'\nworkers = 4\n\
             mac = '02:00:00:00:00:0a'\ninterface = 'east'\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A command, run to its end within the namespace.
    fn command(&self, arguments: &str) -> Output {
        let output = self.prepare(arguments).stdin(Stdio::null()).output();
        output.unwrap()
    }

    fn prepare(&self, arguments: &str) -> Command {
        Self::prepare_in(&self.switch, arguments)
    }

    fn prepare_in(namespace: &Namespace, arguments: &str) -> Command {
        let mut command = namespace.command(COMMAND);
        command.args(arguments.split_whitespace());
        command
    }

    /// A command to the rack, which does it.
    fn does(&self, arguments: &str) -> String {
        let output = self.to_rack(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command to the rack, which does not; returns why.
    fn refuses(&self, arguments: &str) -> String {
        let output = self.to_rack(arguments);
        assert!(!output.status.success(), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn to_rack(&self, arguments: &str) -> Output {
        self.command(&format!("{arguments} --control {}", self.path("socket")))
    }

    fn status(&self) -> Status {
        serde_json::from_str(&self.does("status --json")).unwrap()
    }

    fn state(&self, name: &str) -> Option<State> {
        let status = self.status();
        let server = status.servers.iter().find(|server| server.name == name);
        server.map(|server| server.state)
    }

    fn until(&self, name: &str, state: Option<State>) {
        let is_so = comes_true(|| self.state(name) == state);
        assert!(is_so, "{name} is never {state:?}");
    }
}

/// Starts a rack with this mode and these interfaces.
fn start(place: &Place, mode: &str, interfaces: &str) -> Server {
    let path = place.configure();
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("generic", mode)
        .replace("['east']", interfaces);
    std::fs::write(&path, text).unwrap();
    Server::start(&mut place.prepare(&format!("start {path}")), "ready").unwrap()
}

/// Whether a program is on the interface.
fn is_attached(place: &Place) -> bool {
    let mut command = place.switch.command("ip");
    let output = command.args(["link", "show", "east"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

#[test]
fn servers_come_and_go_while_it_runs() {
    let Some(place) = Place::new("servers_come_and_go_while_it_runs") else {
        return;
    };
    let rack = start(&place, "generic", "['east']");
    assert!(is_attached(&place));
    let table = place.does("status");
    for word in ["rack 10.78.0.1 on east (generic mode)", "10.78.0.2", "open"] {
        assert!(table.contains(word), "{table}");
    }
    place.does("add b 10.78.0.3 --types short --mac 02:00:00:00:00:0b --interface east");
    place.does("drain a");
    assert_eq!(place.state("a"), Some(State::Draining));
    assert_eq!(place.state("b"), Some(State::Open));
    place.does("add a 10.78.0.2 --workers 2 --mac 02:00:00:00:00:0a --interface east");
    assert_eq!(place.state("a"), Some(State::Open));
    assert_eq!(place.status().servers[0].workers, 2);

    place.does("remove b");
    place.until("b", None);
    for (arguments, says) in [
        ("drain b", "there is no server \"b\""),
        ("remove b", "there is no server \"b\""),
        ("add b 10.78.0.2", "there is server a at 10.78.0.2"),
        ("add a 10.78.0.9", "there is server a at 10.78.0.2"),
        ("add c 10.78.0.4 --types long", "there is no type \"long\""),
        ("add c 10.78.0.4 --workers 0", "server.workers of c is 0"),
    ] {
        let said = place.refuses(arguments);
        assert!(said.contains(says), "{arguments}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // No second one beside it.
    let second = place.command(&format!("start {}", place.path("rack.toml")));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another rack listens there"), "{said}");

    place.does("stop");
    assert!(rack.ended().contains("server b is gone"));
    assert!(!is_attached(&place));
    let said = place.refuses("status");
    assert!(said.contains("socket"), "{said}");
}

/// Whoever read its output has gone.
#[test]
fn a_rack_that_nobody_listens_to_goes_on() {
    let Some(place) = Place::new("a_rack_that_nobody_listens_to_goes_on") else {
        return;
    };
    let mut command = place.prepare(&format!("start {}", place.configure()));
    let command = command.stdin(Stdio::null());
    let mut rack = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop((rack.0.stdout.take(), rack.0.stderr.take()));
    let is_up = comes_true(|| place.to_rack("status").status.success());
    assert!(is_up, "{:?}", rack.0.try_wait());
    // An event, which the rack says.
    place.does("remove a");
    place.until("a", None);
    place.status();
    place.does("stop");
    let status = rack.end().expect("it ends");
    assert!(status.success(), "{status}");
}

/// What the rack has not answered, nor turned away.
fn is_held(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = (&*stream).read(&mut [0; 8]);
    stream.set_nonblocking(false).unwrap();
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// All that the rack says to a client.
fn said_to(mut stream: &UnixStream) -> String {
    let mut said = String::new();
    // One that is turned away with something unread is reset.
    let _ = stream.read_to_string(&mut said);
    said
}

/// One says nothing, one half a command, one takes no answer, and one adds a server that ARP does
/// not find: the others' commands are done meanwhile. Then the silent are turned away.
#[test]
fn a_silent_client_keeps_no_other_waiting() {
    let Some(place) = Place::new("a_silent_client_keeps_no_other_waiting") else {
        return;
    };
    let rack = start(&place, "generic", "['east']");
    let path = place.path("socket");
    let connect = |said: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        stream
    };
    let adding = Order::Add(ServerConfig {
        name: "c".to_owned(),
        address: [10, 78, 0, 4].into(),
        workers: 1,
        types: None,
        mac: None,
        interface: None,
    });
    let adding = serde_json::to_string(&adding).unwrap() + "\n";
    // A silent client may be so for 5 s, and ARP takes 3 s: `None` if the commands took as long.
    let meanwhile = || {
        let connected = Instant::now();
        // More than can be held at a time.
        let silent: Vec<_> = (0..80).map(|_| connect("")).collect();
        let mut half = connect("{\"drain\":");
        let _deaf = connect("\"status\"\n");
        let adding = connect(&adding);
        let orders = [Order::Drain("a".to_owned()), Order::Status];
        for order in orders.iter().cycle().take(10) {
            let answer = command(Path::new(&path), order).unwrap();
            assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
        }
        let are_held = is_held(&silent[79]) && is_held(&half) && is_held(&adding);
        let _ = half.write_all(b"\"b\"}\n");
        let is_done = said_to(&half).contains("there is no server");
        (are_held && is_done).then_some((connected, silent, adding))
    };
    let mut found = None;
    comes_true(|| {
        found = meanwhile();
        found.is_some()
    });
    let (connected, silent, adding) = found.expect("the silent keep nobody waiting");

    let refused = said_to(&adding);
    assert!(refused.contains("10.78.0.4"), "{refused}");
    for client in &silent {
        assert_eq!(said_to(client), "", "it is turned away");
    }
    let turned_away = connected.elapsed();
    assert!(turned_away >= Duration::from_secs(4), "{turned_away:?}");
    place.does("stop");
    rack.ended();
}

/// Old entries of a large table wait for the sweep; until then they lead to the server's number.
#[test]
fn a_removed_server_is_there_until_the_table_has_been_swept() {
    let test = "a_removed_server_is_there_until_the_table_has_been_swept";
    let Some(place) = Place::new(test) else {
        return;
    };
    let path = place.configure();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("buckets = 16", "buckets = 65536")).unwrap();
    let start = &mut place.prepare(&format!("start {path}"));
    let _rack = Server::start(start, "ready").unwrap();
    let removed = Instant::now();
    place.does("remove a");
    place.until("a", None);
    let after = removed.elapsed();
    assert!(
        after >= Duration::from_millis(50 + 2 * 16 * 20),
        "{after:?}"
    );
}

/// A lease, or an age, that no test outlives.
const LONG_MS: u64 = 3_600_000;

/// The server's host registers `z` at the rack, in the test's own process.
fn register(place: &Place, workers: u16, lease_ms: u64) -> Result<(), RackError> {
    let registration = Registration {
        name: "z".to_owned(),
        workers,
        types: None,
        lease_ms,
    };
    let at = "10.78.0.1:7777".parse().unwrap();
    // The switch has a second to answer, which on a busy machine it may not have had.
    let mut answer = None;
    comes_true(|| {
        let one = place.server.within(|| registration.send(at));
        let is_late = matches!(&one, Err(error) if error.to_string().contains("does not answer"));
        answer = Some(one);
        !is_late
    });
    answer.expect("it was asked")
}

/// The first try may find that the kernel does not know the way back yet.
fn is_registered(place: &Place, workers: u16, lease_ms: u64) {
    let mut last = None;
    let is_registered = comes_true(|| {
        let one = register(place, workers, lease_ms);
        last = one.as_ref().err().map(ToString::to_string);
        one.is_ok()
    });
    assert!(is_registered, "{last:?}");
}

#[test]
fn a_renewal_may_change_workers() {
    let Some(place) = Place::new("a_renewal_may_change_workers") else {
        return;
    };
    let rack = start(&place, "generic", "['east']");
    let workers = || {
        let status = place.status();
        let z = status.servers.iter().find(|server| server.name == "z");
        z.map(|server| server.workers)
    };
    is_registered(&place, 3, LONG_MS);
    assert_eq!(workers(), Some(3));
    is_registered(&place, 5, LONG_MS);
    assert_eq!(workers(), Some(5));
    let refused = register(&place, 0, LONG_MS).unwrap_err().to_string();
    assert!(refused.contains("server.workers of z is 0"), "{refused}");
    assert_eq!(workers(), Some(5));

    // What a command has added a registration does not change.
    is_registered(&place, 5, 0);
    place.until("z", None);
    place.does("add z 10.78.0.7 --workers 2");
    let refused = register(&place, 5, LONG_MS).unwrap_err().to_string();
    assert!(refused.contains("`add` changes it"), "{refused}");
    register(&place, 2, LONG_MS).unwrap();
    assert_eq!(workers(), Some(2));
    place.does("stop");
    assert!(rack.ended().contains("server z has registered anew"));
}

#[test]
fn a_registered_server_keeps_its_lease_when_it_is_opened_again() {
    let Some(place) = Place::new("a_registered_server_keeps_its_lease_when_it_is_opened_again")
    else {
        return;
    };
    let _rack = start(&place, "generic", "['east']");
    is_registered(&place, 3, LONG_MS);
    place.does("drain z");
    place.does("add z 10.78.0.7 --workers 3");
    assert_eq!(place.state("z"), Some(State::Open));
    // One without a lease could renew none, and would stay.
    is_registered(&place, 3, 100);
    place.until("z", None);
}

/// The switch's process stood still until the lease was over; the renewal waited for it.
#[test]
fn a_renewal_that_came_in_time_is_taken_before_leases_end() {
    let test = "a_renewal_that_came_in_time_is_taken_before_leases_end";
    let Some(place) = Place::new(test) else {
        return;
    };
    let lease = Duration::from_secs(2);
    let rack = start(&place, "generic", "['east']");
    is_registered(&place, 3, LONG_MS);
    is_registered(&place, 3, lease.as_millis() as u64);
    rack.process.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let renewing = scope.spawn(|| is_registered(&place, 3, LONG_MS));
        std::thread::sleep(lease);
        rack.process.signal(Signal::CONT);
        renewing.join().unwrap();
    });
    place.does("stop");
    let said = rack.ended();
    assert!(!said.contains("expire"), "{said}");
}

/// Its kernel asks for the way to the switch by ARP, which tells the switch's kernel.
#[test]
fn a_server_that_comes_back_with_another_address_is_found() {
    let Some(place) = Place::new("a_server_that_comes_back_with_another_address_is_found") else {
        return;
    };
    let rack = start(&place, "generic", "['east']");
    let has_mac = |mac: &str| {
        let status = place.status();
        let z = status.servers.iter().find(|server| server.name == "z");
        z.is_some_and(|server| server.mac.to_string() == mac)
    };
    is_registered(&place, 3, LONG_MS);
    assert!(!has_mac("02:00:00:00:00:77"), "{}", place.status());
    must(place.server.ip("link set west address 02:00:00:00:00:77"));
    place.server.within(|| {
        let socket = UdpSocket::bind("10.78.0.7:0").unwrap();
        socket.send_to(&[], "10.78.0.1:9").unwrap();
    });
    assert!(comes_true(|| has_mac("02:00:00:00:00:77")), "it is lost");
    place.does("stop");
    assert!(rack.ended().contains("server z has another station"));
}

/// A second type, in Shinjuku's format, and a longer memory; what has failed is not tried again.
fn start_with_two_types(place: &Place, age_ms: u64) -> Server {
    let path = place.configure();
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("age_ms = 50", &format!("age_ms = {age_ms}"));
    let text = format!("failure = {{ retry_ms = 0 }}\n{text}");
    let more = "[[type]]\nname = 'plain'\nport = 1235\nformat = 'shinjuku'\n\
                balancer = 'shortest'\n";
    std::fs::write(&path, text + more).unwrap();
    Server::start(&mut place.prepare(&format!("start {path}")), "ready").unwrap()
}

/// Sends the rack a request of either type, which nobody answers.
fn ask(socket: &UdpSocket, number: u32) {
    let racksched = RackSchedMessage::request(3, number, 1000, 5).to_bytes();
    socket.send_to(&racksched, "10.78.0.1:1234").unwrap();
    socket.send_to(&[0; 16], "10.78.0.1:1235").unwrap();
}

#[test]
fn what_is_outstanding_outlasts_a_new_weight_but_not_its_age() {
    let test = "what_is_outstanding_outlasts_a_new_weight_but_not_its_age";
    let Some(place) = Place::new(test) else {
        return;
    };
    let outstanding = || place.status().servers[0].outstanding;
    let client = place
        .server
        .within(|| UdpSocket::bind("10.78.0.7:0").unwrap());
    let rack = start_with_two_types(&place, LONG_MS);
    (0..2).for_each(|number| ask(&client, number));
    assert!(comes_true(|| outstanding() == 4), "{}", outstanding());
    place.does("add a 10.78.0.2 --workers 2 --mac 02:00:00:00:00:0a --interface east");
    assert_eq!(place.status().servers[0].workers, 2);
    assert_eq!(outstanding(), 4, "it is as busy as before");
    place.does("stop");
    rack.ended();

    // Nothing is sent any more: neither table nor counter keeps what was lost.
    let _rack = start_with_two_types(&place, 1_000);
    (0..2).for_each(|number| ask(&client, number));
    let sent = || place.status().servers[0].sent;
    assert!(comes_true(|| sent() == 4), "{}", sent());
    assert!(comes_true(|| outstanding() == 0), "{}", outstanding());
}

/// One of its two ports answers, by datagrams that the test sends in its name.
#[test]
fn a_server_fails_for_the_type_that_it_does_not_answer() {
    let test = "a_server_fails_for_the_type_that_it_does_not_answer";
    let Some(place) = Place::new(test) else {
        return;
    };
    must(place.server.ip("addr add 10.78.0.2/24 dev west"));
    must(place.server.ip("route add 10.99.0.0/24 via 10.78.0.1"));
    let [client, port] = ["10.78.0.7:0", "10.78.0.2:1234"]
        .map(|at| place.server.within(|| UdpSocket::bind(at).unwrap()));
    let _rack = start_with_two_types(&place, 1_000);
    let mut number = 0;
    let mut go_on = || {
        number += 1;
        ask(&client, number);
        let reply = RackSchedMessage::request(3, number, 1000, 5).reply(1);
        port.send_to(&reply.to_bytes(), "10.99.0.5:4321").unwrap();
        place.status()
    };
    let has_failed = comes_true(|| go_on().servers[0].failed == ["plain"]);
    assert!(has_failed, "{}", place.status());
    let before = place.status();
    assert_eq!(before.servers[0].state, State::Open);
    assert!(place.does("status").contains("failed: plain"));
    let goes_on = comes_true(|| {
        let after = go_on();
        let is_asked = after.servers[0].sent > before.servers[0].sent;
        is_asked && after.causes["no-server"] > before.causes["no-server"]
    });
    assert!(goes_on, "{before}\n{}", place.status());
}

/// From another host; one that asks only half is turned away in time.
#[test]
fn prometheus_reads_what_the_status_says() {
    let Some(place) = Place::new("prometheus_reads_what_the_status_says") else {
        return;
    };
    let path = place.configure();
    let text = std::fs::read_to_string(&path).unwrap();
    let address = "10.78.0.1:9188";
    std::fs::write(&path, format!("metrics = '{address}'\n{text}")).unwrap();
    let rack = Server::start(&mut place.prepare(&format!("start {path}")), "ready").unwrap();
    let ask = |asked: &str| {
        let here = || TcpStream::connect(address).unwrap();
        let mut stream = place.server.within(here);
        stream.write_all(asked.as_bytes()).unwrap();
        stream
    };
    let read = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut page = String::new();
        // One that is cut off may be reset.
        let _ = stream.read_to_string(&mut page);
        page
    };
    let half = ask("GET /metrics HTTP/1.1\r\n");
    let page = read(ask("GET /metrics HTTP/1.1\r\nHost: rack\r\n\r\n"));
    let (header, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(header.starts_with("HTTP/1.1 200 OK"), "{header}");
    assert!(
        header.contains(&format!("Content-Length: {}", body.len())),
        "{header}"
    );
    let open = "shinjuku_rack_server_open{server=\"a\"} ";
    assert!(body.contains(&format!("{open}1")), "{body}");
    assert_eq!(read(half), "");
    // It follows the status.
    place.does("drain a");
    let is_drained = || read(ask("GET / HTTP/1.0\r\n\r\n")).contains(&format!("{open}0"));
    assert!(comes_true(is_drained));

    std::fs::write(&path, format!("metrics = '10.78.0.99:9188'\n{text}")).unwrap();
    place.does("stop");
    rack.ended();
    let output = place.command(&format!("start {path}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("metrics: 10.78.0.99:9188: "), "{said}");
}

/// The loopback's driver knows no XDP.
#[test]
fn all_interfaces_run_the_program_in_the_same_mode() {
    let Some(place) = Place::new("all_interfaces_run_the_program_in_the_same_mode") else {
        return;
    };
    for (asked, interfaces, mode) in [
        ("auto", "['east']", Mode::Driver),
        ("auto", "['east', 'lo']", Mode::Generic),
        ("generic", "['east', 'lo']", Mode::Generic),
        ("driver", "['east']", Mode::Driver),
    ] {
        let rack = start(&place, asked, interfaces);
        assert_eq!(place.status().mode, mode, "{asked} {interfaces}");
        place.does("stop");
        rack.ended();
    }
    let path = place.configure();
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("generic", "driver");
    std::fs::write(&path, text.replace("['east']", "['east', 'lo']")).unwrap();
    let output = place.command(&format!("start {path}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("lo: ") && !is_attached(&place), "{said}");
}

#[test]
fn a_server_registers_until_it_is_told_to_end() {
    let Some(place) = Place::new("a_server_registers_until_it_is_told_to_end") else {
        return;
    };
    let _rack = start(&place, "generic", "['east']");
    let arguments = format!("register 10.78.0.1:7777 z --workers 3 --lease-ms {LONG_MS}");
    let mut command = Place::prepare_in(&place.server, &arguments);
    let server = Server::start(&mut command, "registered").unwrap();
    assert_eq!(place.state("z"), Some(State::Open));
    server.end(Signal::TERM);
    place.until("z", None);
}

#[test]
fn what_does_not_start_says_why_in_a_line() {
    let Some(place) = Place::new("what_does_not_start_says_why_in_a_line") else {
        return;
    };
    let path = place.configure();
    let text = std::fs::read_to_string(&path).unwrap();
    for (before, after, says) in [
        ("['east']", "['north']", "interface north"),
        (
            "interface = 'east'",
            "interface = 'north'",
            "interface north",
        ),
        ("buckets = 16", "buckets = 17", "table.buckets is 17"),
    ] {
        std::fs::write(&path, text.replace(before, after)).unwrap();
        let output = place.command(&format!("start {path}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}

/// As another user, by `setpriv` of util-linux.
#[test]
fn who_may_not_is_told_what_is_missing() {
    let test = "who_may_not_is_told_what_is_missing";
    let Some(place) = Place::new(test) else {
        return;
    };
    let path = place.configure();
    let output = (place.switch.command("setpriv"))
        .args(["--bounding-set=-all", "--inh-caps=-all", COMMAND, "start"])
        .arg(path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("setpriv") {
        println!("SKIPPED {test}: {said}");
        return;
    }
    assert!(!output.status.success());
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("CAP_BPF and CAP_NET_ADMIN"), "{said}");
}
