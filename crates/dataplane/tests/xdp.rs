//! The dataplane over AF_XDP against the kernel's own stack, at the other end of a veth pair in a
//! network namespace.
//!
//! Takes root, and `ip`, `ethtool`, `ping` and `arping`; without them the tests say `SKIPPED`.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use etherparse::{
    NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TransportSlice, VlanId,
};
use shinjuku_dataplane::packet::{MacAddr, ParseError};
use shinjuku_dataplane::xdp::{CopyMode, Program, SocketConfig, XdpDevice, XdpError};
use shinjuku_dataplane::{
    Buffer, Client, Dataplane, DataplaneConfig, DataplaneCounters, Device, DropReason,
    InterfaceConfig, Outbound, Received,
};
use shinjuku_net::{Arrival, Replier, Transport};
use shinjuku_tests_support::namespace::{Namespace, run};
use shinjuku_tests_support::{PATIENCE, assert_says, need, test_name, wait_for};

const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x77, 1]);
const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 9000);
const THEIRS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 7000);
const FRAMES: u32 = 256;

/// A veth pair: one end here, the other the kernel's, in a namespace of its own.
struct Veth {
    /// The end that is here, by the namespace's name.
    name: String,
    namespace: Namespace,
}

impl Veth {
    /// `None`, having said so, if this machine cannot.
    fn new(test: &str) -> Option<Self> {
        Self::with_queues(test, 1)
    }

    /// With so many queues at either end.
    fn with_queues(test: &str, queues: u32) -> Option<Self> {
        let made = Namespace::new("x").and_then(|namespace| {
            let name = namespace.to_string();
            let veth = Self { name, namespace };
            veth.make(queues).map(|()| veth)
        });
        match made {
            Ok(veth) => Some(veth),
            Err(reason) => {
                println!("SKIPPED {test}: {reason}");
                None
            }
        }
    }

    /// The two interfaces.
    fn make(&self, queues: u32) -> Result<(), String> {
        let (name, there) = (&self.name, &self.namespace);
        run(&format!(
            "ip link add {name} address {OUR_MAC} numtxqueues {queues} numrxqueues {queues} type veth \
             peer name veth0 numtxqueues {queues} numrxqueues {queues} netns {there}"
        ))?;
        there.ip(&format!("addr add {}/24 dev veth0", THEIRS.ip()))?;
        // Checksums complete, which no device would do for a veth.
        there.run("ethtool -K veth0 tx off")?;
        there.ip("link set veth0 up")?;
        run(&format!("ip link set {name} up"))
    }

    fn device(&self) -> XdpDevice {
        self.devices(1).remove(0)
    }

    /// A device for each queue.
    fn devices(&self, queues: u32) -> Vec<XdpDevice> {
        let program = Arc::new(Program::attach(&self.name, queues).unwrap());
        let config = SocketConfig {
            frames: FRAMES,
            ring: 64,
            ..SocketConfig::default()
        };
        let open = |queue| XdpDevice::open(&program, queue, config).unwrap();
        (0..queues).map(open).collect()
    }

    /// A device at the other end, in the kernel's place.
    fn device_there(&self) -> XdpDevice {
        self.namespace.within(|| {
            let program = Arc::new(Program::attach("veth0", 1).unwrap());
            XdpDevice::open(&program, 0, SocketConfig::default()).unwrap()
        })
    }

    /// A socket of the kernel's, at the other end.
    fn socket(&self, at: SocketAddrV4) -> UdpSocket {
        let socket = self.namespace.within(|| UdpSocket::bind(at).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// What a program says that is run at the other end; fails with what it says.
    fn run(&self, command: &str) -> Result<(), String> {
        self.namespace.run(command)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = run(&format!("ip link del {}", self.name));
    }
}

fn interface(at: SocketAddrV4) -> InterfaceConfig {
    InterfaceConfig::new(OUR_MAC, *at.ip(), &[at.port()])
}

/// Sends everything back until it is dropped, on a thread of its own.
struct EchoServer {
    counters: DataplaneCounters,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Dataplane<XdpDevice>>>,
}

impl EchoServer {
    fn start(device: XdpDevice) -> Self {
        let config = DataplaneConfig::new(interface(OURS)).buffers(64);
        let mut dataplane = Dataplane::new(device, config).unwrap();
        let mut replier = dataplane.replier().unwrap();
        let counters = dataplane.counters();
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut arrivals = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                dataplane.poll(0, 64, |arrival| arrivals.push(arrival));
                if arrivals.is_empty() {
                    dataplane.wait(Duration::from_millis(1));
                }
                for Arrival { request, route, .. } in arrivals.drain(..) {
                    let reply = Ok(Some(request.echo()));
                    replier.send(Dataplane::<XdpDevice>::conclude(route, reply));
                }
            }
            dataplane
        });
        Self {
            counters,
            stop,
            thread: Some(thread),
        }
    }

    /// Ends it; every frame is back.
    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut dataplane = self.thread.take().unwrap().join().unwrap();
        dataplane.close();
        let start = Instant::now();
        while dataplane.device().frames() != FRAMES as usize {
            assert!(start.elapsed() < PATIENCE, "{:?}", dataplane.device());
            dataplane.poll(0, 1, |_| unreachable!("it is closed"));
        }
        assert_eq!(dataplane.device().queues().unwrap().invalid, 0);
    }
}

#[test]
fn the_kernels_clients_are_answered() {
    let veth = need!(Veth::new(test_name!()));
    let device = veth.device();
    let said = device.to_string();
    assert_says(&said, ["copy mode, program run by the driver"]);
    let server = EchoServer::start(device);
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    let mut reply = [0; 2000];
    let mut exchanged = 0;
    for length in [0, 1, 17, 18, 19, 64, 512, 1471, 1472] {
        for number in 0..50_u8 {
            let request = vec![number; length];
            client.send(&request).unwrap();
            // The kernel checks the checksums.
            let received = client.recv(&mut reply).expect("a reply in time");
            assert_eq!(reply[..received], request);
            exchanged += 1;
        }
    }
    let counts = server.counters.read();
    assert_eq!(
        (counts.interface.delivered, counts.replies),
        (exchanged, exchanged)
    );
    assert!(counts.interface.arp_answered > 0, "the client had to ask");
    server.end();
}

#[test]
fn a_burst_longer_than_the_rings_is_answered_or_lost_but_no_frame_is() {
    let veth = need!(Veth::new(test_name!()));
    let server = EchoServer::start(veth.device());
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    for number in 0..2000_u32 {
        client.send(&number.to_le_bytes()).unwrap();
    }
    let start = Instant::now();
    let mut replies = 0;
    let mut reply = [0; 100];
    client
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    while client.recv(&mut reply).is_ok() {
        replies += 1;
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(replies > 0);
    server.end();
}

/// All frames are with requests, but those kept for sending; the kernel drops what comes then.
#[test]
fn used_up_frames_stop_what_comes_until_some_are_back() {
    let veth = need!(Veth::new(test_name!()));
    let config = DataplaneConfig::new(interface(OURS)).buffers(FRAMES as usize);
    let mut dataplane = Dataplane::new(veth.device(), config).unwrap();
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    let mut held = Vec::new();
    // A quarter is for sending.
    wait_for("three quarters of the frames", || {
        let _ = client.send(b"held");
        dataplane.poll(0, 64, |arrival| held.push(arrival));
        held.len() == FRAMES as usize * 3 / 4
    });
    wait_for("a drop", || {
        client.send(b"too many").unwrap();
        dataplane.poll(0, 64, |_| unreachable!("there are no frames"));
        dataplane.device().queues().unwrap().receive_dropped > 0
    });
    held.clear();
    let mut again = 0;
    wait_for("requests again", || {
        let _ = client.send(b"again");
        dataplane.poll(0, 64, |_| again += 1);
        again > 0
    });
    dataplane.close();
    wait_for("every frame", || {
        dataplane.poll(0, 64, |_| unreachable!("it is closed"));
        dataplane.device().frames() == FRAMES as usize
    });
}

/// Asks again until there is an answer, as clients of UDP do.
fn ask(client: &UdpSocket, request: &[u8]) {
    client
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let start = Instant::now();
    let mut reply = [0; 100];
    loop {
        // The interface may be down: then the kernel says so.
        let _ = client.send(request);
        if let Ok(length) = client.recv(&mut reply)
            && reply[..length] == *request
        {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no reply");
    }
}

#[test]
fn after_the_link_was_down_it_goes_on() {
    let veth = need!(Veth::new(test_name!()));
    let device = veth.device();
    let counters = device.counters();
    let server = EchoServer::start(device);
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    ask(&client, b"before");
    wait_for("the link", || counters.link_up());
    let before = counters.read().link_changes;
    run(&format!("ip link set {} down", veth.name)).unwrap();
    let _ = client.send(b"into the void");
    wait_for("the link's end", || !counters.link_up());
    run(&format!("ip link set {} up", veth.name)).unwrap();
    ask(&client, b"after");
    wait_for("the link's return", || counters.link_up());
    assert_eq!(counters.read().link_changes, before + 2);
    server.end();
}

/// With a request in the handler's hands meanwhile, and another that it answers while there is no
/// interface.
#[test]
fn after_the_interface_was_removed_it_goes_on_at_the_next_of_its_name() {
    let veth = need!(Veth::new(test_name!()));
    let device = veth.device();
    let device_counters = device.counters();
    let config = DataplaneConfig::new(interface(OURS)).buffers(64);
    let mut dataplane = Dataplane::new(device, config).unwrap();
    let mut replier = dataplane.replier().unwrap();
    let received = |dataplane: &mut Dataplane<XdpDevice>| {
        let mut arrivals = Vec::new();
        dataplane.poll(0, 64, |arrival| arrivals.push(arrival));
        dataplane.wait(Duration::from_millis(1));
        arrivals
    };
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    let mut held = Vec::new();
    wait_for("two requests", || {
        let _ = client.send(b"held");
        held.extend(received(&mut dataplane));
        held.len() >= 2
    });
    let mut held = held.into_iter();
    let (early, late) = (held.next().unwrap(), held.next().unwrap());
    drop(held);

    run(&format!("ip link del {}", veth.name)).unwrap();
    wait_for("the loss, and a try in vain", || {
        assert!(received(&mut dataplane).is_empty());
        let counts = device_counters.read();
        counts.losses == 1 && counts.failed_returns > 0
    });
    assert_eq!(
        dataplane.device().to_string(),
        "AF_XDP, without an interface"
    );
    let reply = Ok(Some(early.request.echo()));
    replier.send(Dataplane::<XdpDevice>::conclude(early.route, reply));
    wait_for("the reply's end", || {
        received(&mut dataplane);
        device_counters.read().unsent == 1
    });

    drop(client);
    veth.make(1).unwrap();
    wait_for("the return", || {
        received(&mut dataplane);
        device_counters.read().returns == 1
    });
    // What was held since before goes out, though that station has gone; a station that asks is
    // answered.
    let reply = Ok(Some(late.request.echo()));
    replier.send(Dataplane::<XdpDevice>::conclude(late.route, reply));
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    client.set_nonblocking(true).unwrap();
    wait_for("an answer", || {
        let _ = client.send(b"after");
        for Arrival { request, route, .. } in received(&mut dataplane) {
            let reply = Ok(Some(request.echo()));
            replier.send(Dataplane::<XdpDevice>::conclude(route, reply));
        }
        let mut bytes = [0; 100];
        client
            .recv(&mut bytes)
            .is_ok_and(|length| bytes[..length] == *b"after")
    });
    assert_eq!(device_counters.read().unsent, 1);
    dataplane.close();
    wait_for("every frame", || {
        received(&mut dataplane);
        dataplane.device().frames() == FRAMES as usize
    });
}

/// The link is down, so that nothing is sent.
#[test]
fn a_full_send_queue_and_used_up_frames_are_counted_until_the_link_is_back() {
    let veth = need!(Veth::new(test_name!()));
    let mut device = veth.device();
    let counters = device.counters();
    run(&format!("ip link set {} down", veth.name)).unwrap();
    let mut frames = Vec::with_capacity(FRAMES as usize);
    let checksums = Default::default();
    while let Some(mut buffer) = device.allocate() {
        buffer.set_length(60);
        frames.push(Outbound { buffer, checksums });
    }
    assert_eq!(counters.read().no_buffer, 1);
    // What the kernel has to fill, and what is sent: a ring's length each.
    let all = frames.len();
    assert_eq!(all, FRAMES as usize - 64);
    device.transmit(&mut frames);
    assert_eq!(
        (frames.len(), counters.read().send_queue_full),
        (all - 64, 1)
    );
    run(&format!("ip link set {} up", veth.name)).unwrap();
    wait_for("all to be sent", || {
        device.transmit(&mut frames);
        device.receive(0, &mut Vec::new());
        frames.is_empty() && device.frames() == FRAMES as usize
    });
}

#[test]
fn every_queue_goes_on_at_the_next_interface() {
    let veth = need!(Veth::with_queues(test_name!(), 2));
    let devices = veth.devices(2);
    let counters = [0, 1].map(|queue| devices[queue].counters());
    let servers: Vec<_> = devices.into_iter().map(EchoServer::start).collect();
    run(&format!("ip link del {}", veth.name)).unwrap();
    wait_for("both losses", || {
        counters.iter().all(|queue| queue.read().losses == 1)
    });
    veth.make(2).unwrap();
    wait_for("both returns", || {
        counters.iter().all(|queue| queue.read().returns == 1)
    });
    let client = veth.socket(THEIRS);
    client.connect(OURS).unwrap();
    ask(&client, b"after");
    servers.into_iter().for_each(EchoServer::end);
}

#[test]
fn every_queue_has_a_dataplane_of_its_own() {
    let veth = need!(Veth::with_queues(test_name!(), 2));
    let servers: Vec<_> = veth.devices(2).into_iter().map(EchoServer::start).collect();
    // Clients' sockets are spread over the queues, by hash or by core.
    for client in 0..16_u16 {
        let at = SocketAddrV4::new(*THEIRS.ip(), THEIRS.port() + client);
        let client = veth.socket(at);
        client.connect(OURS).unwrap();
        ask(&client, &at.port().to_le_bytes());
    }
    let delivered = |server: &EchoServer| server.counters.read().interface.delivered;
    let all: u64 = servers.iter().map(delivered).sum();
    assert!(all >= 16, "{all}");
    servers.into_iter().for_each(EchoServer::end);
}

#[test]
fn ping_and_arping_are_answered() {
    let veth = need!(Veth::new(test_name!()));
    let server = EchoServer::start(veth.device());
    for command in [
        format!("ping -c 3 -i 0.05 -W 5 {}", OURS.ip()),
        format!("ping -c 2 -i 0.05 -W 5 -s 1472 -M do {}", OURS.ip()),
        format!("arping -c 1 -w 5 -I veth0 {}", OURS.ip()),
    ] {
        match veth.run(&command) {
            Err(reason) if reason.contains("No such file") => {
                println!("SKIPPED ping_and_arping_are_answered: {reason}");
                return;
            }
            answered => answered.unwrap(),
        }
    }
    let counts = server.counters.read().interface;
    assert_eq!(counts.echo_answered, 5);
    assert!(counts.arp_answered >= 2, "{counts:?}");
    server.end();
}

#[test]
fn a_client_reaches_a_server_of_the_kernels() {
    let veth = need!(Veth::new(test_name!()));
    let server = veth.socket(THEIRS);
    let echo = thread::spawn(move || {
        let mut bytes = [0; 2000];
        for _ in 0..20 {
            let (length, peer) = server.recv_from(&mut bytes).expect("a request in time");
            server.send_to(&bytes[..length], peer).unwrap();
        }
    });
    let mut client = Client::new(veth.device(), interface(OURS)).unwrap();
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    for number in 0..20_u8 {
        let request = vec![number; 70 * usize::from(number)];
        client.send(OURS.port(), THEIRS, &request, now()).unwrap();
        let mut replies = 0;
        while replies == 0 {
            assert!(start.elapsed() < PATIENCE, "no reply to {number}");
            client.receive(now(), |reply, peer, _| {
                assert_eq!((reply, peer.address), (&*request, THEIRS));
                replies += 1;
            });
            client.wait(Duration::from_millis(1));
        }
    }
    echo.join().unwrap();
    assert_eq!(client.counters().read().arp_learnt, 1);
}

#[test]
fn a_device_whose_driver_knows_no_xdp_is_served_generically() {
    let made = Namespace::new("xd").and_then(|namespace| {
        namespace.ip("link add dummy type dummy")?;
        Ok(namespace)
    });
    let namespace = match made {
        Ok(namespace) => namespace,
        Err(reason) => {
            println!("SKIPPED a_device_whose_driver_knows_no_xdp_is_served_generically: {reason}");
            return;
        }
    };
    let said = namespace.within(|| {
        let program = Arc::new(Program::attach("dummy", 1).unwrap());
        let device = XdpDevice::open(&program, 0, SocketConfig::default()).unwrap();
        device.to_string()
    });
    assert_says(&said, ["copy mode", "generic"]);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let refused = Program::attach("shinjuku-none", 1).unwrap_err();
    assert!(refused.to_string().contains("shinjuku-none"), "{refused}");
    let veth = need!(Veth::new(test_name!()));
    let program = Arc::new(Program::attach(&veth.name, 1).unwrap());
    let taken = Program::attach(&veth.name, 1).unwrap_err();
    assert!(matches!(taken, XdpError::Busy { .. }), "{taken}");
    let open = |queue, config| {
        XdpDevice::open(&program, queue, config)
            .unwrap_err()
            .to_string()
    };
    let fine = SocketConfig::default();
    for (queue, config, says) in [
        (1, fine, "the queue is 1"),
        (0, SocketConfig { ring: 3, ..fine }, "ring is 3"),
        (
            0,
            SocketConfig {
                chunk: 1000,
                ..fine
            },
            "chunk is 1000",
        ),
        (0, SocketConfig { frames: 1, ..fine }, "frames is 1"),
        (
            0,
            SocketConfig {
                copy: CopyMode::ZeroCopy,
                ..fine
            },
            "cannot do without copying",
        ),
    ] {
        let error = open(queue, config);
        assert!(error.contains(says), "{error}");
    }
    // Having refused, it can still be had; and once that has gone, so has the program.
    drop(XdpDevice::open(&program, 0, fine).unwrap());
    drop(program);
    Program::attach(&veth.name, 1).unwrap();
}

/// The device at the other end.
const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 2];

/// Frames of all kinds.
struct Frames {
    answered: [Vec<u8>; 7],
    fragment: Vec<u8>,
    /// Its checksum is another's.
    broken: Vec<u8>,
}

fn frames_of_all_kinds() -> Frames {
    let ip = THEIRS.ip().octets();
    let ethernet = || PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC.0);
    let vlan = |id: u16| VlanId::try_new(id).unwrap();
    let written = |builder: PacketBuilderStep<etherparse::IpHeaders>, payload: &[u8]| {
        let mut frame = Vec::new();
        let builder = builder.udp(THEIRS.port(), OURS.port());
        builder.write(&mut frame, payload).unwrap();
        frame.resize(frame.len().max(60), 0);
        frame
    };
    let header = |options: &[u8], length: usize| {
        let length = u16::try_from(length + 8).unwrap();
        let protocol = etherparse::IpNumber::UDP;
        let mut header =
            etherparse::Ipv4Header::new(length, 64, protocol, ip, OURS.ip().octets()).unwrap();
        header.options = options.try_into().unwrap();
        etherparse::IpHeaders::Ipv4(header, Default::default())
    };
    let plain = |payload: &[u8]| written(ethernet().ip(header(&[], payload.len())), payload);
    let tagged = |payload: &[u8]| {
        let builder = ethernet().single_vlan(vlan(5));
        written(builder.ip(header(&[], payload.len())), payload)
    };
    let twice_tagged = {
        let builder = ethernet().double_vlan(vlan(5), vlan(6));
        written(builder.ip(header(&[], 300)), &[3; 300])
    };
    let with_options = written(ethernet().ip(header(&[1; 40], 1432)), &[4; 1432]);
    let mut fragment = plain(b"a part");
    fragment[20] |= 0x20;
    fragment[24..26].fill(0);
    let sum = shinjuku_dataplane::packet::checksum::Sum::new().bytes(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&sum.checksum().to_be_bytes());
    let mut broken = plain(b"broken on the way");
    broken[45] ^= 4;
    let answered = [
        plain(b""),
        plain(&[1; 18]),
        plain(&[2; 1472]),
        tagged(b""),
        tagged(&[5; 1472]),
        twice_tagged,
        with_options,
    ];
    Frames {
        answered,
        fragment,
        broken,
    }
}

/// A reply echoes its request, with its tags, and has the checksums that another library computes.
fn assert_echoes(reply: &[u8], request: &[u8]) {
    assert_eq!(reply.len(), request.len());
    let [sent, back] = [request, reply].map(|frame| SlicedPacket::from_ethernet(frame).unwrap());
    assert_eq!(back.vlan_ids(), sent.vlan_ids());
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (back.net, back.transport)
    else {
        panic!("no datagram: {reply:02x?}");
    };
    let ip = ip.header().to_header();
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    let checksum = udp.to_header().calc_checksum_ipv4(&ip, udp.payload());
    assert_eq!(udp.checksum(), checksum.unwrap());
    let Some(TransportSlice::Udp(asked)) = sent.transport else {
        unreachable!("it was written as one");
    };
    assert_eq!(udp.payload(), asked.payload());
}

/// Frames that this machine's kernel cannot be had to send, by another device at the other end:
/// tagged ones, of the shortest and the longest length, with options, in fragments, and such as got
/// broken, lost or doubled on their way.
#[test]
fn frames_of_all_kinds_are_answered_or_counted() {
    let veth = need!(Veth::new(test_name!()));
    let server = EchoServer::start(veth.device());
    let mut there = veth.device_there();
    let Frames {
        answered,
        fragment,
        broken,
    } = frames_of_all_kinds();
    let mut expected = Vec::new();
    let mut send = |frame: &[u8]| {
        let mut buffer = there.allocate().unwrap();
        buffer.set_length(frame.len());
        buffer.frame_mut().copy_from_slice(frame);
        let checksums = Default::default();
        there.transmit(&mut vec![Outbound { buffer, checksums }]);
    };
    for (number, frame) in answered.iter().enumerate() {
        // This one is lost, and this one doubled, and others come between.
        for _ in 0..[1, 2, 1, 0, 1, 1, 1][number] {
            send(frame);
            expected.push(frame.clone());
        }
        send(&fragment);
        send(&broken);
    }
    let mut replies = Vec::new();
    let mut frames = Vec::with_capacity(64);
    wait_for("every reply", || {
        there.receive(64, &mut frames);
        for Received { buffer, .. } in frames.drain(..) {
            // The kernel at the other end may have something of its own to say.
            if buffer.frame()[..6] == THEIR_MAC {
                replies.push(buffer.frame().to_vec());
            }
            there.free(buffer);
        }
        replies.len() == expected.len()
    });
    for (reply, request) in replies.iter().zip(&expected) {
        assert_echoes(reply, request);
    }
    let all = answered.len() as u64;
    wait_for("the last malformed frame", || {
        let counts = server.counters.read().interface;
        counts.dropped_for(DropReason::Fragment) == all
            && counts.dropped_for(DropReason::Malformed(ParseError::UdpChecksum)) == all
    });
    let delivered = server.counters.read().interface.delivered;
    assert_eq!(delivered as usize, expected.len());
    server.end();
}
