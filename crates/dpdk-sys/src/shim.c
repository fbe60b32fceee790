#include "shim.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_prefetch.h>
#include <rte_ring.h>
#include <rte_version.h>

static int failure(void)
{
	/* Some functions fail without saying why. */
	return rte_errno != 0 ? -rte_errno : -EIO;
}

const char *dpdk_version(void) { return rte_version(); }

int dpdk_eal_init(int argc, char **argv) { return rte_eal_init(argc, argv) < 0 ? failure() : 0; }

const char *dpdk_strerror(int errnum) { return rte_strerror(errnum); }

int dpdk_probe(const char *devargs) { return rte_dev_probe(devargs); }

int dpdk_pool_create(const char *name, unsigned int mbufs, uint16_t private_size, uint16_t data_room,
		     struct rte_mempool **pool)
{
	unsigned int cache = RTE_MIN(256u, mbufs / 8);

	*pool = rte_pktmbuf_pool_create(name, mbufs, cache, private_size, RTE_PKTMBUF_HEADROOM + data_room,
					SOCKET_ID_ANY);
	return *pool == NULL ? failure() : 0;
}

struct visitor {
	void (*visit)(void *argument, struct rte_mbuf *mbuf);
	void *argument;
};

static void visit_object(struct rte_mempool *pool, void *visitor, void *object, unsigned int index)
{
	const struct visitor *to = visitor;

	(void)pool;
	(void)index;
	to->visit(to->argument, object);
}

void dpdk_pool_each(struct rte_mempool *pool, void (*visit)(void *argument, struct rte_mbuf *mbuf), void *argument)
{
	struct visitor visitor = { visit, argument };

	rte_mempool_obj_iter(pool, visit_object, &visitor);
}

unsigned int dpdk_pool_available(const struct rte_mempool *pool) { return rte_mempool_avail_count(pool); }

struct rte_mbuf *dpdk_mbuf_alloc(struct rte_mempool *pool) { return rte_pktmbuf_alloc(pool); }

void dpdk_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count) { rte_pktmbuf_free_bulk(mbufs, count); }

int dpdk_port_by_name(const char *name, uint16_t *port) { return rte_eth_dev_get_port_by_name(name, port); }

uint16_t dpdk_port_next(uint16_t from)
{
	uint64_t next = rte_eth_find_next(from);

	return next < RTE_MAX_ETHPORTS ? (uint16_t)next : UINT16_MAX;
}

#define FRAMING (RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN)

int dpdk_port_info(uint16_t port, struct dpdk_port_info *info)
{
	struct rte_eth_dev_info device;
	struct rte_ether_addr mac;
	int status = rte_eth_dev_info_get(port, &device);

	if (status < 0)
		return status;
	status = rte_eth_macaddr_get(port, &mac);
	if (status < 0)
		return status;
	memset(info, 0, sizeof(*info));
	snprintf(info->driver, sizeof(info->driver), "%s", device.driver_name ? device.driver_name : "unknown");
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	info->max_rx_queues = device.max_rx_queues;
	info->max_tx_queues = device.max_tx_queues;
	info->min_mtu = device.min_mtu;
	info->max_mtu = device.max_mtu;
	/* If a driver names no MTU, its longest frame gives one, as in rte_eth_dev_configure. */
	if (device.max_mtu == UINT16_MAX && device.max_rx_pktlen >= RTE_ETHER_MIN_MTU + FRAMING &&
	    device.max_rx_pktlen - FRAMING < UINT16_MAX)
		info->max_mtu = (uint16_t)(device.max_rx_pktlen - FRAMING);
	info->reta_size = device.reta_size;
	info->rx_offloads = device.rx_offload_capa;
	info->tx_offloads = device.tx_offload_capa;
	info->rss_types = device.flow_type_rss_offloads;
	return 0;
}

int dpdk_port_start(uint16_t port, const struct dpdk_port_settings *settings, enum dpdk_step *step)
{
	struct rte_eth_dev_info device;
	struct rte_eth_conf conf;
	uint16_t rx = settings->rx_descriptors, tx = settings->tx_descriptors;
	int status;

	*step = DPDK_STEP_INFO;
	status = rte_eth_dev_info_get(port, &device);
	if (status < 0)
		return status;

	*step = DPDK_STEP_CONFIGURE;
	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = settings->mtu;
	conf.rxmode.offloads = settings->rx_offloads;
	conf.txmode.offloads = settings->tx_offloads;
	if (settings->rss_types != 0) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = settings->rss_types;
	}
	status = rte_eth_dev_configure(port, settings->queues, settings->queues, &conf);
	if (status < 0)
		return status;
	status = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
	if (status < 0)
		return status;

	for (uint16_t queue = 0; queue < settings->queues; queue++) {
		struct rte_eth_rxconf rxconf = device.default_rxconf;
		struct rte_eth_txconf txconf = device.default_txconf;
		unsigned int socket = SOCKET_ID_ANY;

		*step = DPDK_STEP_RX_QUEUE;
		rxconf.offloads = settings->rx_offloads;
		status = rte_eth_rx_queue_setup(port, queue, rx, socket, &rxconf, settings->pools[queue]);
		if (status < 0)
			return status;
		*step = DPDK_STEP_TX_QUEUE;
		txconf.offloads = settings->tx_offloads;
		status = rte_eth_tx_queue_setup(port, queue, tx, socket, &txconf);
		if (status < 0)
			return status;
	}

	*step = DPDK_STEP_START;
	return rte_eth_dev_start(port);
}

int dpdk_port_stop(uint16_t port) { return rte_eth_dev_stop(port); }

int dpdk_port_reset(uint16_t port) { return rte_eth_dev_reset(port); }

static bool is_virtual(const struct rte_eth_dev_info *device)
{
	return strcmp(rte_bus_name(rte_dev_bus(device->device)), "vdev") == 0;
}

int dpdk_port_close(uint16_t port)
{
	struct rte_eth_dev_info device;
	int known = rte_eth_dev_info_get(port, &device);
	int status = rte_eth_dev_close(port);

	/* A virtual device without its port would only block another of the same name. */
	if (status == 0 && known == 0 && is_virtual(&device))
		return rte_dev_remove(device.device);
	return status;
}

/* The kernel's interface of a virtual device; 0: none. Its driver need not notice a removal. */
static unsigned int interface_of(const struct rte_eth_dev_info *device)
{
	return is_virtual(device) ? device->if_index : 0;
}

static int interface_runs(unsigned int interface, bool *runs)
{
	struct ifreq request;
	int status = 0;
	int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (descriptor < 0)
		return -errno;
	memset(&request, 0, sizeof(request));
	request.ifr_ifindex = (int)interface;
	if (ioctl(descriptor, SIOCGIFNAME, &request) < 0 || ioctl(descriptor, SIOCGIFFLAGS, &request) < 0)
		status = -errno;
	else
		*runs = (request.ifr_flags & IFF_RUNNING) != 0;
	close(descriptor);
	return status;
}

int dpdk_port_link(uint16_t port, struct dpdk_link *link)
{
	struct rte_eth_dev_info device;
	struct rte_eth_link now;
	bool runs = true;
	int status = rte_eth_dev_info_get(port, &device);

	if (status == 0 && interface_of(&device) != 0)
		status = interface_runs(interface_of(&device), &runs);
	if (status == 0)
		status = rte_eth_link_get_nowait(port, &now);
	if (status < 0)
		return status;
	link->megabits = now.link_speed;
	link->up = now.link_status == RTE_ETH_LINK_UP && runs;
	link->full_duplex = now.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	return 0;
}

int dpdk_port_devargs(uint16_t port, char *text, size_t size)
{
	struct rte_eth_dev_info device;
	const struct rte_devargs *devargs;
	int length;
	int status = rte_eth_dev_info_get(port, &device);

	if (status < 0)
		return status;
	devargs = rte_dev_devargs(device.device);
	if (interface_of(&device) == 0 || devargs == NULL)
		return -ENOTSUP;
	length = snprintf(text, size, "%s,%s", devargs->name, devargs->args ? devargs->args : "");
	return length >= 0 && (size_t)length < size ? 0 : -ENAMETOOLONG;
}

int dpdk_port_keep_mac(uint16_t port, const uint8_t mac[6])
{
	struct rte_ether_addr now, kept;
	int status = rte_eth_macaddr_get(port, &now);

	if (status < 0)
		return status;
	memcpy(kept.addr_bytes, mac, sizeof(kept.addr_bytes));
	return rte_is_same_ether_addr(&now, &kept) ? 0 : rte_eth_dev_default_mac_addr_set(port, &kept);
}

int dpdk_port_set_link(uint16_t port, bool up)
{
	return up ? rte_eth_dev_set_link_up(port) : rte_eth_dev_set_link_down(port);
}

int dpdk_port_statistics(uint16_t port, struct dpdk_port_statistics *statistics)
{
	struct rte_eth_stats stats;
	int status = rte_eth_stats_get(port, &stats);

	if (status < 0)
		return status;
	statistics->received = stats.ipackets;
	statistics->sent = stats.opackets;
	statistics->missed = stats.imissed;
	statistics->receive_errors = stats.ierrors;
	statistics->send_errors = stats.oerrors;
	statistics->no_mbuf = stats.rx_nombuf;
	return 0;
}

static int on_event(uint16_t port, enum rte_eth_event_type event, void *on_reset, void *details)
{
	(void)event;
	(void)details;
	((void (*)(uint16_t))on_reset)(port);
	return 0;
}

int dpdk_port_watch(uint16_t port, void (*on_reset)(uint16_t port))
{
	return rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RESET, on_event, (void *)on_reset);
}

uint16_t dpdk_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t room)
{
	uint16_t count = rte_eth_rx_burst(port, queue, mbufs, room);

	for (uint16_t i = 0; i < count; i++)
		rte_prefetch0(rte_pktmbuf_mtod(mbufs[i], void *));
	return count;
}

uint16_t dpdk_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

static int make_rings(const char *name, uint16_t queues, unsigned int slots, struct rte_ring **rings)
{
	for (uint16_t queue = 0; queue < queues; queue++) {
		char numbered[RTE_RING_NAMESIZE];
		int length = snprintf(numbered, sizeof(numbered), "%s.%u", name, queue);

		if (length >= (int)sizeof(numbered))
			return -ENAMETOOLONG;
		/* A queue has one owner at either end. EXACT: `slots` packets, not one less. */
		rings[queue] = rte_ring_create(numbered, slots, SOCKET_ID_ANY,
					       RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
		if (rings[queue] == NULL)
			return failure();
	}
	return 0;
}

static int make_pair(const char *const names[2], uint16_t queues, unsigned int slots, uint16_t ports[2],
		     struct rte_ring **there, struct rte_ring **back)
{
	int made;
	int status = make_rings(names[0], queues, slots, there);

	if (status == 0)
		status = make_rings(names[1], queues, slots, back);
	if (status < 0)
		return status;
	made = rte_eth_from_rings(names[0], back, queues, there, queues, 0);
	if (made < 0)
		return failure();
	ports[0] = (uint16_t)made;
	made = rte_eth_from_rings(names[1], there, queues, back, queues, 0);
	if (made < 0) {
		status = failure();
		dpdk_port_close(ports[0]);
		return status;
	}
	ports[1] = (uint16_t)made;
	return 0;
}

int dpdk_ring_pair(const char *const names[2], uint16_t queues, unsigned int slots, uint16_t ports[2])
{
	struct rte_ring *there[RTE_MAX_QUEUES_PER_PORT] = { NULL }, *back[RTE_MAX_QUEUES_PER_PORT] = { NULL };
	int status;

	/* DPDK's own check of the size overflows. */
	if (queues > RTE_MAX_QUEUES_PER_PORT || slots > RTE_RING_SZ_MASK / 2)
		return -EINVAL;
	status = make_pair(names, queues, slots, ports, there, back);
	if (status < 0) {
		for (uint16_t queue = 0; queue < queues; queue++) {
			rte_ring_free(there[queue]);
			rte_ring_free(back[queue]);
		}
	}
	return status;
}

size_t dpdk_layout(const uint64_t **values)
{
	static const uint64_t layout[] = {
		sizeof(struct rte_mbuf),
		_Alignof(struct rte_mbuf),
		offsetof(struct rte_mbuf, buf_addr),
		offsetof(struct rte_mbuf, data_off),
		offsetof(struct rte_mbuf, refcnt),
		offsetof(struct rte_mbuf, nb_segs),
		offsetof(struct rte_mbuf, port),
		offsetof(struct rte_mbuf, ol_flags),
		offsetof(struct rte_mbuf, packet_type),
		offsetof(struct rte_mbuf, pkt_len),
		offsetof(struct rte_mbuf, data_len),
		offsetof(struct rte_mbuf, vlan_tci),
		offsetof(struct rte_mbuf, hash.rss),
		offsetof(struct rte_mbuf, buf_len),
		offsetof(struct rte_mbuf, pool),
		offsetof(struct rte_mbuf, tx_offload),
		RTE_MBUF_L2_LEN_BITS,
		RTE_PKTMBUF_HEADROOM,
		RTE_MBUF_PRIV_ALIGN,
		RTE_MBUF_F_RX_RSS_HASH,
		RTE_MBUF_F_RX_IP_CKSUM_MASK,
		RTE_MBUF_F_RX_IP_CKSUM_BAD,
		RTE_MBUF_F_RX_IP_CKSUM_GOOD,
		RTE_MBUF_F_RX_L4_CKSUM_MASK,
		RTE_MBUF_F_RX_L4_CKSUM_BAD,
		RTE_MBUF_F_RX_L4_CKSUM_GOOD,
		RTE_MBUF_F_TX_IPV4,
		RTE_MBUF_F_TX_IP_CKSUM,
		RTE_MBUF_F_TX_UDP_CKSUM,
		RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL,
		RTE_ETH_RX_OFFLOAD_IPV4_CKSUM,
		RTE_ETH_RX_OFFLOAD_UDP_CKSUM,
		RTE_ETH_RX_OFFLOAD_RSS_HASH,
		RTE_ETH_TX_OFFLOAD_IPV4_CKSUM,
		RTE_ETH_TX_OFFLOAD_UDP_CKSUM,
		RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP,
		sizeof(struct dpdk_port_info),
		sizeof(struct dpdk_port_settings),
		sizeof(struct dpdk_port_statistics),
		sizeof(struct dpdk_link),
	};

	*values = layout;
	return sizeof(layout) / sizeof(layout[0]);
}
