/* The functions that Rust calls: DPDK's static inlines, and functions with large structures as
 * arguments, which change from release to release; a compiler that has DPDK's headers fills them
 * here. ffi.rs declares the same, and tests/dpdk/layout.rs compares the two. Functions return 0 or a
 * negative errno unless they say otherwise. */
#ifndef SHINJUKU_DPDK_SHIM_H
#define SHINJUKU_DPDK_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

struct dpdk_port_info {
	char driver[64];
	uint8_t mac[6];
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t reta_size;
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t rss_types;
};

struct dpdk_port_settings {
	uint16_t queues;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint16_t mtu;
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t rss_types;
	/* One a queue. */
	struct rte_mempool *const *pools;
};

struct dpdk_port_statistics {
	uint64_t received;
	uint64_t sent;
	uint64_t missed;
	uint64_t receive_errors;
	uint64_t send_errors;
	uint64_t no_mbuf;
};

struct dpdk_link {
	uint32_t megabits;
	bool up;
	bool full_duplex;
};

/* Where dpdk_port_start failed. */
enum dpdk_step {
	DPDK_STEP_INFO = 1,
	DPDK_STEP_CONFIGURE = 2,
	DPDK_STEP_RX_QUEUE = 3,
	DPDK_STEP_TX_QUEUE = 4,
	DPDK_STEP_START = 5,
};

const char *dpdk_version(void);
int dpdk_eal_init(int argc, char **argv);
const char *dpdk_strerror(int errnum);
int dpdk_probe(const char *devargs);

int dpdk_pool_create(const char *name, unsigned int mbufs, uint16_t private_size, uint16_t data_room,
		     struct rte_mempool **pool);
/* Calls `visit` once for each mbuf of a pool that is full. */
void dpdk_pool_each(struct rte_mempool *pool, void (*visit)(void *argument, struct rte_mbuf *mbuf), void *argument);
unsigned int dpdk_pool_available(const struct rte_mempool *pool);
struct rte_mbuf *dpdk_mbuf_alloc(struct rte_mempool *pool);
void dpdk_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count);

int dpdk_port_by_name(const char *name, uint16_t *port);
uint16_t dpdk_port_next(uint16_t from);
int dpdk_port_info(uint16_t port, struct dpdk_port_info *info);
int dpdk_port_start(uint16_t port, const struct dpdk_port_settings *settings, enum dpdk_step *step);
int dpdk_port_stop(uint16_t port);
int dpdk_port_reset(uint16_t port);
int dpdk_port_close(uint16_t port);
/* -ENODEV: there is no such port any more, or the kernel has removed its interface. */
int dpdk_port_link(uint16_t port, struct dpdk_link *link);
/* The arguments of a virtual device on an interface of the kernel's; -ENOTSUP for all others. */
int dpdk_port_devargs(uint16_t port, char *devargs, size_t size);
/* Gives the device this hardware address, unless it has it. */
int dpdk_port_keep_mac(uint16_t port, const uint8_t mac[6]);
int dpdk_port_set_link(uint16_t port, bool up);
int dpdk_port_statistics(uint16_t port, struct dpdk_port_statistics *statistics);
/* `on_reset(port)` is called on one of DPDK's threads when the device must be reset. */
int dpdk_port_watch(uint16_t port, void (*on_reset)(uint16_t port));

/* Number of packets taken out of the queue, at most `room`. */
uint16_t dpdk_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t room);
/* Number of packets that the queue took over, from the first. */
uint16_t dpdk_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* Two ports that are each other's peer, with `queues` queues of `slots` packets each way. */
int dpdk_ring_pair(const char *const names[2], uint16_t queues, unsigned int slots, uint16_t ports[2]);

/* Sizes, offsets and flags as C has them, in the order of tests/dpdk/layout.rs. Returns how many there are. */
size_t dpdk_layout(const uint64_t **values);

#endif
