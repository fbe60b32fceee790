//! DPDK's virtual devices: a file of its own, as it is compiled only with the feature `dpdk`.

use anyhow::Result;
use shinjuku_dataplane::MacAddr;
use shinjuku_dataplane::dpdk::{DpdkDevice, Eal, EalConfig, Nic, NicConfig, Spread};

/// Ordinary memory, in MiB.
const MEMORY: u32 = 512;
const MBUFS: u32 = 2047;
const SLOTS: u32 = 1024;

fn start() -> Result<Eal> {
    let config = EalConfig::without_hardware(MEMORY).argument("--log-level=error");
    Ok(Eal::init(&config)?)
}

/// For each dispatcher a ring, the server's end and the client's. In `software` flows are spread by
/// their hash; else they stay on the ring that the client puts them on. The ports live as long as
/// what comes with the rings.
pub fn rings(dispatchers: u16, software: bool) -> Result<(Vec<[DpdkDevice; 2]>, [Nic; 2])> {
    let [server, client] = start()?.ring_pair("bench", dispatchers, SLOTS)?;
    let config = NicConfig::new()
        .dispatchers(dispatchers.into())
        .mbufs(MBUFS);
    let spread = if software {
        Spread::Software
    } else {
        Spread::Device
    };
    let (server_nic, servers) = Nic::open(server, config.spread(spread))?;
    let (client_nic, clients) = Nic::open(client, config.spread(Spread::Device))?;
    let wires = servers.into_iter().zip(clients).map(<[_; 2]>::from);
    Ok((wires.collect(), [server_nic, client_nic]))
}

/// One end of a memif, in the role `server` or `client`.
pub fn memif(socket: &str, role: &str, mac: MacAddr) -> Result<(Nic, DpdkDevice)> {
    let device =
        format!("net_memif0,role={role},id=0,socket={socket},socket-abstract=no,mac={mac}");
    let port = start()?.attach(&device)?;
    let (nic, mut devices) = Nic::open(port, NicConfig::new())?;
    Ok((nic, devices.remove(0)))
}
