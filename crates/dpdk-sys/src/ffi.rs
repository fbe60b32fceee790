//! The declarations of `shim.h`, by hand, and the structure of an mbuf as far as this crate reads
//! it. `tests/dpdk/layout.rs` compares every size, offset and flag here with the C compiler's, from
//! DPDK's own headers.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A pool of mbufs; only ever behind a pointer.
#[repr(C)]
#[derive(Debug)]
pub struct rte_mempool {
    _opaque: [u8; 0],
}

/// A packet buffer's header. The fields that this crate does not read keep the others in their
/// places.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct rte_mbuf {
    /// Start of the buffer, headroom included.
    pub buf_addr: *mut u8,
    _buf_iova: u64,
    /// Where the packet starts in the buffer.
    pub data_off: u16,
    /// How many owners it has.
    pub refcnt: u16,
    /// Buffers in the chain.
    pub nb_segs: u16,
    /// The port that received it.
    pub port: u16,
    /// Flags, `FLAG_...`.
    pub ol_flags: u64,
    /// The packet's type, as the device tells.
    pub packet_type: u32,
    /// Bytes in the chain.
    pub pkt_len: u32,
    /// Bytes in this buffer.
    pub data_len: u16,
    /// VLAN tag that was stripped.
    pub vlan_tci: u16,
    /// The hash by which RSS chose the queue.
    pub rss: u32,
    _hash_high: u32,
    _vlan_tci_outer: u16,
    /// Length of the buffer, headroom included.
    pub buf_len: u16,
    /// The pool that it is freed to.
    pub pool: *mut rte_mempool,
    _next: *mut rte_mbuf,
    /// Lengths of the headers whose checksums the device shall fill in.
    pub tx_offload: u64,
    _second_line: [u8; 48],
}

/// Bytes before a packet that its buffer has room for.
pub const HEADROOM: u16 = 128;
/// The private area's size must be a multiple of this.
pub const PRIVATE_ALIGN: usize = 8;
/// `rss` is valid.
pub const FLAG_RSS_HASH: u64 = 1 << 1;
/// The device's verdict on the IP header's checksum.
pub const FLAG_IP_MASK: u64 = FLAG_IP_BAD | FLAG_IP_GOOD;
/// It is wrong.
pub const FLAG_IP_BAD: u64 = 1 << 4;
/// It is right.
pub const FLAG_IP_GOOD: u64 = 1 << 7;
/// The device's verdict on UDP's checksum.
pub const FLAG_L4_MASK: u64 = FLAG_L4_BAD | FLAG_L4_GOOD;
/// It is wrong.
pub const FLAG_L4_BAD: u64 = 1 << 3;
/// It is right.
pub const FLAG_L4_GOOD: u64 = 1 << 8;
/// To be sent: an IPv4 packet.
pub const FLAG_TX_IPV4: u64 = 1 << 55;
/// To be sent: the device fills in the IP header's checksum.
pub const FLAG_TX_IP: u64 = 1 << 54;
/// To be sent: the device fills in UDP's checksum.
pub const FLAG_TX_UDP: u64 = 3 << 52;
/// The buffer is not the mbuf's own.
pub const FLAG_NOT_OWN: u64 = 1 << 61 | 1 << 62;
/// Bits of `tx_offload` that hold the link header's length; the IP header's stands above.
pub const TX_LINK_LENGTH_BITS: u32 = 7;
/// Receive offload: IP checksum.
pub const RX_OFFLOAD_IP: u64 = 1 << 1;
/// Receive offload: UDP checksum.
pub const RX_OFFLOAD_UDP: u64 = 1 << 2;
/// Receive offload: the hash in the mbuf.
pub const RX_OFFLOAD_RSS_HASH: u64 = 1 << 19;
/// Send offload: IP checksum.
pub const TX_OFFLOAD_IP: u64 = 1 << 1;
/// Send offload: UDP checksum.
pub const TX_OFFLOAD_UDP: u64 = 1 << 2;
/// Hashing by addresses, and by UDP's ports.
pub const RSS_IP_UDP: u64 =
    1 << 2 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 13 | 1 << 15 | 1 << 17;

/// See `shim.h`.
#[repr(C)]
#[derive(Debug)]
pub struct dpdk_port_info {
    /// Name of the driver, with a zero at its end.
    pub driver: [u8; 64],
    /// Hardware address.
    pub mac: [u8; 6],
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Most send queues.
    pub max_tx_queues: u16,
    /// Least MTU.
    pub min_mtu: u16,
    /// Largest MTU.
    pub max_mtu: u16,
    /// Entries of the table from hash to queue; 0: none.
    pub reta_size: u16,
    /// `RX_OFFLOAD_...`.
    pub rx_offloads: u64,
    /// `TX_OFFLOAD_...`.
    pub tx_offloads: u64,
    /// The fields that it can hash by.
    pub rss_types: u64,
}

/// See `shim.h`.
#[repr(C)]
#[derive(Debug)]
pub struct dpdk_port_settings {
    /// The number of receive queues, and of send queues.
    pub queues: u16,
    /// Length of a receive queue.
    pub rx_descriptors: u16,
    /// Length of a send queue.
    pub tx_descriptors: u16,
    /// Longest IP packet.
    pub mtu: u16,
    /// `RX_OFFLOAD_...`.
    pub rx_offloads: u64,
    /// `TX_OFFLOAD_...`.
    pub tx_offloads: u64,
    /// The fields to hash by; 0: no hashing.
    pub rss_types: u64,
    /// One a queue.
    pub pools: *const *mut rte_mempool,
}

/// See `shim.h`.
#[repr(C)]
#[derive(Default, Debug)]
pub struct dpdk_port_statistics {
    /// Packets.
    pub received: u64,
    /// Packets.
    pub sent: u64,
    /// Lost: the receive queue was full.
    pub missed: u64,
    /// Broken on arrival.
    pub receive_errors: u64,
    /// Not sent.
    pub send_errors: u64,
    /// Lost: the pool was empty.
    pub no_mbuf: u64,
}

/// See `shim.h`.
#[repr(C)]
#[derive(Default, Debug)]
pub struct dpdk_link {
    /// Speed.
    pub megabits: u32,
    /// There is a link.
    pub up: bool,
    /// Both ways at once.
    pub full_duplex: bool,
}

macro_rules! shim {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $(
                $(#[$doc])*
                #[doc = concat!("`", stringify!($name), "` of `shim.h`.")]
                pub fn $name($($argument: $kind),*) $(-> $result)?;
            )*
        }
    };
}

shim! {
    fn dpdk_version() -> *const c_char;
    fn dpdk_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn dpdk_strerror(errnum: c_int) -> *const c_char;
    fn dpdk_probe(devargs: *const c_char) -> c_int;
    fn dpdk_pool_create(
        name: *const c_char, mbufs: c_uint, private_size: u16, data_room: u16, pool: *mut *mut rte_mempool,
    ) -> c_int;
    fn dpdk_pool_each(
        pool: *mut rte_mempool, visit: unsafe extern "C" fn(*mut c_void, *mut rte_mbuf), argument: *mut c_void,
    );
    fn dpdk_pool_available(pool: *const rte_mempool) -> c_uint;
    fn dpdk_mbuf_alloc(pool: *mut rte_mempool) -> *mut rte_mbuf;
    fn dpdk_mbuf_free_bulk(mbufs: *mut *mut rte_mbuf, count: c_uint);
    fn dpdk_port_by_name(name: *const c_char, port: *mut u16) -> c_int;
    fn dpdk_port_next(from: u16) -> u16;
    fn dpdk_port_info(port: u16, info: *mut dpdk_port_info) -> c_int;
    fn dpdk_port_start(port: u16, settings: *const dpdk_port_settings, step: *mut c_uint) -> c_int;
    fn dpdk_port_stop(port: u16) -> c_int;
    fn dpdk_port_reset(port: u16) -> c_int;
    fn dpdk_port_close(port: u16) -> c_int;
    fn dpdk_port_link(port: u16, link: *mut dpdk_link) -> c_int;
    fn dpdk_port_devargs(port: u16, devargs: *mut c_char, size: usize) -> c_int;
    fn dpdk_port_keep_mac(port: u16, mac: *const u8) -> c_int;
    fn dpdk_port_set_link(port: u16, up: bool) -> c_int;
    fn dpdk_port_statistics(port: u16, statistics: *mut dpdk_port_statistics) -> c_int;
    fn dpdk_port_watch(port: u16, on_reset: extern "C" fn(u16)) -> c_int;
    fn dpdk_receive(port: u16, queue: u16, mbufs: *mut *mut rte_mbuf, room: u16) -> u16;
    fn dpdk_send(port: u16, queue: u16, mbufs: *mut *mut rte_mbuf, count: u16) -> u16;
    fn dpdk_ring_pair(names: *const *const c_char, queues: u16, slots: c_uint, ports: *mut u16) -> c_int;
    fn dpdk_layout(values: *mut *const u64) -> usize;
}

/// Rust's values of the numbers in `dpdk_layout`, with names.
#[rustfmt::skip]
pub const LAYOUT: &[(&str, u64)] = {
    use std::mem::{align_of, offset_of, size_of};
    &[
        ("size of rte_mbuf", size_of::<rte_mbuf>() as u64),
        ("alignment of rte_mbuf", align_of::<rte_mbuf>() as u64),
        ("buf_addr", offset_of!(rte_mbuf, buf_addr) as u64),
        ("data_off", offset_of!(rte_mbuf, data_off) as u64),
        ("refcnt", offset_of!(rte_mbuf, refcnt) as u64),
        ("nb_segs", offset_of!(rte_mbuf, nb_segs) as u64),
        ("port", offset_of!(rte_mbuf, port) as u64),
        ("ol_flags", offset_of!(rte_mbuf, ol_flags) as u64),
        ("packet_type", offset_of!(rte_mbuf, packet_type) as u64),
        ("pkt_len", offset_of!(rte_mbuf, pkt_len) as u64),
        ("data_len", offset_of!(rte_mbuf, data_len) as u64),
        ("vlan_tci", offset_of!(rte_mbuf, vlan_tci) as u64),
        ("hash.rss", offset_of!(rte_mbuf, rss) as u64),
        ("buf_len", offset_of!(rte_mbuf, buf_len) as u64),
        ("pool", offset_of!(rte_mbuf, pool) as u64),
        ("tx_offload", offset_of!(rte_mbuf, tx_offload) as u64),
        ("bits of l2_len", TX_LINK_LENGTH_BITS as u64),
        ("RTE_PKTMBUF_HEADROOM", HEADROOM as u64),
        ("RTE_MBUF_PRIV_ALIGN", PRIVATE_ALIGN as u64),
        ("RX_RSS_HASH", FLAG_RSS_HASH),
        ("RX_IP_CKSUM_MASK", FLAG_IP_MASK),
        ("RX_IP_CKSUM_BAD", FLAG_IP_BAD),
        ("RX_IP_CKSUM_GOOD", FLAG_IP_GOOD),
        ("RX_L4_CKSUM_MASK", FLAG_L4_MASK),
        ("RX_L4_CKSUM_BAD", FLAG_L4_BAD),
        ("RX_L4_CKSUM_GOOD", FLAG_L4_GOOD),
        ("TX_IPV4", FLAG_TX_IPV4),
        ("TX_IP_CKSUM", FLAG_TX_IP),
        ("TX_UDP_CKSUM", FLAG_TX_UDP),
        ("INDIRECT | EXTERNAL", FLAG_NOT_OWN),
        ("RX_OFFLOAD_IPV4_CKSUM", RX_OFFLOAD_IP),
        ("RX_OFFLOAD_UDP_CKSUM", RX_OFFLOAD_UDP),
        ("RX_OFFLOAD_RSS_HASH", RX_OFFLOAD_RSS_HASH),
        ("TX_OFFLOAD_IPV4_CKSUM", TX_OFFLOAD_IP),
        ("TX_OFFLOAD_UDP_CKSUM", TX_OFFLOAD_UDP),
        ("RSS_IP | RSS_UDP", RSS_IP_UDP),
        ("size of dpdk_port_info", size_of::<dpdk_port_info>() as u64),
        ("size of dpdk_port_settings", size_of::<dpdk_port_settings>() as u64),
        ("size of dpdk_port_statistics", size_of::<dpdk_port_statistics>() as u64),
        ("size of dpdk_link", size_of::<dpdk_link>() as u64),
    ]
};
