/* What the program and its control share: constants, the settings and the tables.
 *
 * `src/tables.rs` has the same layouts. Numbers are the machine's own, addresses and ports (`__be`)
 * the network's. */
#ifndef RACK_TABLES_H
#define RACK_TABLES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* A mask makes the verifier sure of an index, so these are powers of two. */
#define SERVERS 64
#define TYPES 8
#define SLOTS 256
/* Entries of a bucket of the request table: a cache line. */
#define WAYS 8
/* Random numbers that a test can give at once. */
#define DRAWS 256

enum format { SHINJUKU = 1, RACKSCHED = 2 };
enum balancer { RANDOM, ROUND_ROBIN, BY_FLOW, SHORTEST, POWER_OF };
enum load_info { INT1, INT2, INT3, COUNTERS };

/* What became of a packet: each is counted under one cause, or under one and REQUEST or REPLY. */
enum cause {
	REQUEST,	/* sent to a server */
	REPLY,		/* sent to its client */
	NOT_OURS,	/* to or from others: the kernel's */
	FRAGMENT,	/* to the rack, in fragments: the kernel's */
	BAD_LENGTH,	/* its headers tell lengths that it does not have: the kernel's */
	NOT_THE_FORMAT,	/* no request, or no reply, in its port's format: the kernel's */
	NO_SERVER,	/* no server is open for its type, nor has any its request: the kernel's */
	UNKNOWN_CLIENT,	/* a reply to a client that sent nothing so far: the kernel's */
	NO_PORT,	/* its interface is not one of the rack's: dropped */
	AFFINE,		/* also a REQUEST: went where its request's first packet had gone */
	TABLE_FULL,	/* also a REQUEST: the request has no entry, a hash chose its server */
	AGED,		/* entries of the request table freed because of their age */
	CAUSES
};

struct request_type {
	__be16 request_port;	/* 0: there is no such type */
	__be16 reply_port;
	__u8 format;
	__u8 balancer;
	__u8 draws;		/* of POWER_OF, 1 to 4 */
	__u8 load_info;
};

/* Fixed when the program is loaded; the verifier removes the code that they make unreachable. */
struct settings {
	__be32 address;		/* the rack's */
	__u32 age;		/* entries of the request table live that long; ticks of 2^20 ns */
	__u32 bucket_mask;	/* buckets of the request table, less one */
	__u32 injected;		/* random numbers and time come from the table `injection` */
	struct request_type types[TYPES];
};

/* The way to a station: the addresses of the frame, and the interface. */
struct station {
	__u8 to[6];
	__u8 from[6];
	__u32 interface;
};

struct server {
	__be32 address;		/* 0: none has this number */
	struct station station;
};

/* The servers that are open for a type. Their slots are in proportion to their weights, by which
 * their loads are compared. */
struct members {
	__u32 servers;
	__u32 slots;
	__u8 server[SERVERS];
	__u8 slot[SLOTS];
	__u16 weight[SERVERS];	/* 0: it is not open */
};

/* What is known of the servers' load for requests of a type. */
struct loads {
	__u32 load[SERVERS];
	__u64 least;		/* INT2: a server's number plus one, and its load; 0: none */
	__u64 turn;		/* of ROUND_ROBIN */
};

/* What a server has done for a type, for the control to see where it is silent. */
struct activity {
	__u64 sent;
	__u64 replies;
	__u64 answered;		/* how many had been sent when the last reply came */
	__u64 waiting_since;	/* when that was, or the first one after it was sent, in ns */
};

/* What the control has the program `correct` do with what is known of a server. */
struct correction {
	__u8 server;
	__u8 first;		/* the types that nothing is out of: from this one */
	__u8 last;		/* to that one; TYPES: what COUNTERS count, too */
	__u8 loads;		/* 1: their loads are forgotten, too */
	__u32 lost;		/* requests that are no longer outstanding */
	__u32 padding[2];	/* a frame has at least 14 bytes */
};

/* Each entry is a request: its tag (32 bits), the tick of its first packet (24), its server (8).
 * 0 is a free entry. */
struct bucket {
	__u64 entry[WAYS];
};

/* A test's random numbers and time. */
struct injection {
	__u64 now;		/* in ns */
	__u32 drawn;		/* how many have been used */
	__u32 draw[DRAWS];
};

const volatile struct settings settings = {};

#define TABLE(name, kind, entries, key_type, value_type)	\
	struct {						\
		__uint(type, kind);				\
		__uint(max_entries, entries);			\
		__type(key, key_type);				\
		__type(value, value_type);			\
	} name SEC(".maps")

TABLE(servers, BPF_MAP_TYPE_ARRAY, SERVERS, __u32, struct server);
TABLE(server_at, BPF_MAP_TYPE_HASH, SERVERS, __be32, __u32);
/* Two halves of TYPES each: the program reads the half that `half` names, the control writes the
 * other one and then changes `half`. */
TABLE(members, BPF_MAP_TYPE_ARRAY, 2 * TYPES, __u32, struct members);
TABLE(half, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32);
/* The last one is COUNTERS' for all types: requests in the table, or sent and not answered. */
TABLE(loads, BPF_MAP_TYPE_ARRAY, TYPES + 1, __u32, struct loads);
/* A server's types lie side by side. */
TABLE(activities, BPF_MAP_TYPE_ARRAY, SERVERS * TYPES, __u32, struct activity);
/* The control sets the number of buckets, and the mask in the settings. */
TABLE(requests, BPF_MAP_TYPE_ARRAY, 1, __u32, struct bucket);
TABLE(clients, BPF_MAP_TYPE_LRU_HASH, 65536, __be32, struct station);
TABLE(causes, BPF_MAP_TYPE_PERCPU_ARRAY, CAUSES, __u32, __u64);
TABLE(injection, BPF_MAP_TYPE_ARRAY, 1, __u32, struct injection);

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
} interfaces SEC(".maps");

#endif
