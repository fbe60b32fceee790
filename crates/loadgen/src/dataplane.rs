//! Datagrams without the kernel: over DPDK's devices or AF_XDP, with an IP stack of our own.
//!
//! The device is opened for the first load and stays open for the others. DPDK starts once in a
//! process, and the other end of a memif would take a reopened device for another client. So flows
//! keep their ports, and their stamps go on counting.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shinjuku_dataplane::{
    Client, Device, HostAddress, InterfaceConfig, MOST_PORTS, MacAddr, Resolution,
};

use crate::datagrams::{Came, Carrier};
use crate::error::LoadError;

pub(crate) const MOST_FLOWS: usize = MOST_PORTS;
/// The first flow's port; the others' follow. IANA leaves the ports from here on to clients.
const FIRST_PORT: u16 = 49_152;
/// How long to wait for the link to come up, and then for the server to answer ARP.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to sleep between polls while waiting.
const LOOK: Duration = Duration::from_millis(1);

/// The client's place in the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: HostAddress,
    /// `None`: the device's.
    pub(crate) mac: Option<MacAddr>,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) server: SocketAddrV4,
}

/// A way to the server, opened when it is needed. Clones share it.
#[derive(Clone)]
pub(crate) struct Line(Arc<Mutex<State>>);

enum State {
    /// Not yet open; the opener opens it.
    #[cfg(any(feature = "dpdk", feature = "xdp"))]
    Closed(Opener),
    Open(Open),
}

type Open = Box<dyn Carrier + Send>;
#[cfg(any(feature = "dpdk", feature = "xdp"))]
type Opener = Box<dyn Fn(&AtomicBool) -> Result<Open, LoadError> + Send>;

impl Line {
    #[cfg(any(feature = "dpdk", feature = "xdp"))]
    fn closed(opener: impl Fn(&AtomicBool) -> Result<Open, LoadError> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(State::Closed(Box::new(opener)))))
    }

    /// Takes the line for one load; no other load uses it meanwhile.
    pub(crate) fn take(&self) -> Taken<'_> {
        Taken(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The description of the line, once it is open.
    pub(crate) fn describe(&self) -> Option<String> {
        match &*self.take().0 {
            State::Open(open) => Some(open.describe()),
            #[cfg(any(feature = "dpdk", feature = "xdp"))]
            State::Closed(_) => None,
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Line")
    }
}

/// A line in use.
pub(crate) struct Taken<'a>(MutexGuard<'a, State>);

impl Taken<'_> {
    /// The line, which is opened first if it is closed, unless `stop` becomes true meanwhile.
    ///
    /// # Errors
    /// The device cannot be had, its link does not come up, or the server does not answer; or
    /// `stop` was set.
    #[cfg_attr(
        not(any(feature = "dpdk", feature = "xdp")),
        allow(unused_variables, reason = "then all are open")
    )]
    pub(crate) fn open(
        &mut self,
        stop: &AtomicBool,
    ) -> Result<&mut (dyn Carrier + Send), LoadError> {
        #[cfg(any(feature = "dpdk", feature = "xdp"))]
        if let State::Closed(opener) = &*self.0 {
            *self.0 = State::Open(opener(stop)?);
        }
        match &mut *self.0 {
            State::Open(open) => Ok(&mut **open),
            #[cfg(any(feature = "dpdk", feature = "xdp"))]
            State::Closed(_) => unreachable!("it has just been opened"),
        }
    }
}

/// A host on a device, from which the server can be reached.
pub(crate) struct Station<D: Device> {
    /// The station's name in reports and errors.
    name: String,
    client: Client<D>,
    server: SocketAddrV4,
    start: Instant,
    /// Datagrams that were dropped for want of an ARP answer, and have been reported.
    unreachable: u64,
    /// Kept alive for as long as the device is in use.
    _guard: Box<dyn Send>,
}

impl<D: Device> Station<D> {
    /// Takes its place. Waits until `link_up` is true, and until the server answers, unless `stop`
    /// is set.
    ///
    /// # Errors
    /// The place cannot be had, the link does not come up, or the server does not answer; or `stop`
    /// was set.
    pub(crate) fn new<K: Send + 'static>(
        name: String,
        device: D,
        mac: MacAddr,
        place: Place,
        guard: K,
        link_up: impl Fn(&K) -> bool,
        stop: &AtomicBool,
    ) -> Result<Self, LoadError> {
        let ports: Vec<_> = (0..MOST_FLOWS as u16)
            .map(|flow| FIRST_PORT + flow)
            .collect();
        let config = InterfaceConfig::at(place.address, &ports).mac_or(place.mac.unwrap_or(mac));
        let config = match place.gateway {
            Some(gateway) => config.gateway(gateway),
            None => config,
        };
        let guard = Box::new(guard);
        let mut station = Self {
            name: name.clone(),
            client: Client::new(device, config)?,
            server: place.server,
            start: Instant::now(),
            unreachable: 0,
            _guard: Box::new(()),
        };
        if !station.until(stop, |_| link_up(&guard))? {
            return Err(LoadError::NoLink { device: name });
        }
        let server = *place.server.ip();
        if !station.until(stop, |station| station.knows(server))? {
            return Err(LoadError::Unreachable {
                server,
                device: name,
            });
        }
        Ok(Self {
            _guard: guard,
            ..station
        })
    }

    fn now_ns(&self) -> u64 {
        // The value fits for centuries.
        self.start.elapsed().as_nanos() as u64
    }

    fn knows(&mut self, server: Ipv4Addr) -> bool {
        let now_ns = self.now_ns();
        let resolution = self.client.resolve(server, now_ns);
        matches!(resolution, Resolution::Known(_) | Resolution::Renew(..))
    }

    /// Polls until `done`; false if `PATIENCE` ends first.
    ///
    /// # Errors
    /// `stop` was set.
    fn until(
        &mut self,
        stop: &AtomicBool,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, LoadError> {
        let start = Instant::now();
        while !done(self) {
            if stop.load(Relaxed) {
                return Err(LoadError::Interrupted);
            }
            if start.elapsed() > PATIENCE {
                return Ok(false);
            }
            let now_ns = self.now_ns();
            self.client.receive(now_ns, |_, _, _| {});
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }
}

impl<D: Device> Carrier for Station<D> {
    fn send(&mut self, flow: u32, datagram: &[u8]) -> Result<(), String> {
        let (port, now_ns) = (FIRST_PORT + flow as u16, self.now_ns());
        let sent = self.client.send(port, self.server, datagram, now_ns);
        sent.map_err(|error| error.to_string())
    }

    fn flush(&mut self) {
        self.client.flush();
    }

    fn receive(&mut self, deliver: &mut dyn FnMut(Came<'_>)) -> bool {
        let (mut came, now_ns, server) = (false, self.now_ns(), self.server);
        self.client.receive(now_ns, |datagram, peer, _| {
            // As a connected socket does, it drops datagrams from other senders.
            if peer.address == server {
                came = true;
                deliver(Ok(datagram));
            }
        });
        let unreachable = self.client.unreachable();
        if unreachable > self.unreachable {
            self.unreachable = unreachable;
            deliver(Err(format!("{} no longer answers ARP", server.ip())));
        }
        came
    }

    fn first_stamp(&self) -> u64 {
        self.now_ns()
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

impl<C: Carrier + ?Sized> Carrier for &mut C {
    fn send(&mut self, flow: u32, datagram: &[u8]) -> Result<(), String> {
        (**self).send(flow, datagram)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn receive(&mut self, deliver: &mut dyn FnMut(Came<'_>)) -> bool {
        (**self).receive(deliver)
    }

    fn first_stamp(&self) -> u64 {
        (**self).first_stamp()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

/// Over a device that is there already.
pub(crate) fn device<D: Device>(device: D, mac: MacAddr, place: Place) -> Result<Line, LoadError> {
    let (name, never) = ("the device".to_owned(), AtomicBool::new(false));
    let station = Station::new(name, device, mac, place, (), |()| true, &never)?;
    Ok(Line(Arc::new(Mutex::new(State::Open(Box::new(station))))))
}

/// Over a port of DPDK's.
#[cfg(feature = "dpdk")]
pub(crate) fn dpdk(config: shinjuku_dataplane::dpdk::DpdkConfig, place: Place) -> Line {
    /// Every device supports it; requests are short.
    const MTU: usize = 1500;
    Line::closed(move |stop| {
        let (nic, mut devices) = config.open(MTU).map_err(LoadError::device)?;
        let name = format!("{} (DPDK, {})", nic.name(), nic.driver());
        let (mac, device) = (nic.mac(), devices.remove(0));
        let link_up = |nic: &shinjuku_dataplane::dpdk::Nic| nic.link_up();
        let station = Station::new(name, device, mac, place, nic, link_up, stop)?;
        Ok(Box::new(station))
    })
}

/// Over an interface's first queue by AF_XDP.
#[cfg(feature = "xdp")]
pub(crate) fn xdp(config: shinjuku_dataplane::xdp::XdpConfig, place: Place) -> Line {
    Line::closed(move |stop| {
        let (mac, mut devices) = config.open().map_err(LoadError::device)?;
        let device = devices.remove(0);
        let name = format!("{} ({device})", config.interface);
        let station = Station::new(name, device, mac, place, (), |()| true, stop)?;
        Ok(Box::new(station))
    })
}
