/* The switch of a rack: chooses a server for each request, and leads packets there and back.
 *
 *    client --request--> address of the rack : port of a type --+
 *      ^                                                        | chosen, or as the table says
 *      |                                                        v
 *      +--reply, from the rack's address <--reply, with its load-- server
 *
 * A request gets its server's address, and a reply the rack's, with checksums adjusted. Both leave
 * by the interface of the station that they go to, and no packet of the rack's enters the kernel's
 * stack. All other packets are the kernel's, untouched. Every packet is counted (enum cause).
 *
 * Several processors run this at once. The request table is lock-free: an entry is one word,
 * written by compare-and-swap. Loads that replies carry are plain stores, of which the last one
 * stays.
 *
 * Source of the scheduling: Zhu et al., RackSched, OSDI 2020. */
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include "tables.h"

#define INLINE static __always_inline
#define NONE SERVERS
/* RackSched's header; crates/net/src/wire/racksched.rs has all of it. */
#define KIND 0
#define SEQUENCE 1
#define QUEUE_LENGTH 3
#define CLIENT 15
#define REQUEST_NUMBER 17
#define RACKSCHED_LENGTH 41
#define SHINJUKU_LENGTH 16
enum kind { IS_REPLY, IS_REQUEST, IS_FOLLOWING };

#define FIELD(type, bytes, at) (*(type *)((bytes) + (at)))

/* A UDP packet whose lengths are right. */
struct packet {
	struct ethhdr *ethernet;
	struct iphdr *ip;
	struct udphdr *udp;
	__u8 *payload;
	__u32 length;	/* of the payload, in bytes */
};

/* A length of the packet's. The verifier of Linux 6.1 knows no range of what swapped its bytes: the
 * range is told to it once more, where the compiler does not see that nothing changes. */
INLINE __u32 length_in(__be16 field)
{
	__u64 length = bpf_ntohs(field);

	asm volatile("%0 &= 0xffff" : "+r"(length));
	return length;
}

INLINE void count(__u32 cause)
{
	__u64 *counter = bpf_map_lookup_elem(&causes, &cause);

	if (counter)
		*counter += 1;
}

INLINE int to_kernel(__u32 cause)
{
	count(cause);
	return XDP_PASS;
}

INLINE struct injection *injected(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&injection, &only);
}

INLINE __u64 now(void)
{
	if (settings.injected) {
		struct injection *given = injected();

		return given ? given->now : 0;
	}
	return bpf_ktime_get_coarse_ns();
}

INLINE __u32 random(void)
{
	if (settings.injected) {
		struct injection *given = injected();

		/* No constant where there is none: what the verifier foresees it follows in every
		 * combination, of which `shortest` has too many for Linux 6.1. */
		if (given)
			return given->draw[given->drawn++ & (DRAWS - 1)];
	}
	return bpf_get_prandom_u32();
}

/* ---- The choice ----------------------------------------------------------------------------- */

/* Evenly onto 0..n: Fibonacci hashing, as the simulator spreads flows. */
INLINE __u32 spread(__u64 number, __u32 n)
{
	__u64 mixed = (number ^ number >> 32) * 0x9E3779B97F4A7C15;

	return ((mixed >> 32) * n + ((mixed & 0xffffffff) * n >> 32)) >> 32;
}

/* Evenly from 0..n. */
INLINE __u32 drawn(__u32 n)
{
	return (__u64)random() * n >> 32;
}

INLINE __u32 in_slot(const struct members *members, __u32 slot)
{
	return members->slot[slot & (SLOTS - 1)] & (SERVERS - 1);
}

/* INT2 knows one server only: that has 0, the others more. */
INLINE __u64 load_of(const struct loads *loads, __u32 server, __u8 load_info)
{
	__s32 load;

	if (load_info == INT2)
		return loads->least && loads->least >> 32 != server + 1;
	load = loads->load[server & (SERVERS - 1)];
	/* Below zero for the moment that one_less takes. */
	return load_info == COUNTERS && load < 0 ? 0 : (__u32)load;
}

/* How the load of `a` compares with that of `b`, each by its server's weight: below, at or above
 * zero. */
INLINE __s64 compared(const struct members *members, const struct loads *loads, __u32 a, __u32 b,
		      __u8 load_info)
{
	__u64 of_a = load_of(loads, a, load_info) * members->weight[b & (SERVERS - 1)];
	__u64 of_b = load_of(loads, b, load_info) * members->weight[a & (SERVERS - 1)];

	return of_a - of_b;
}

/* The first of the drawn with the least load. */
INLINE __u32 least_drawn(const struct members *members, const struct loads *loads, __u8 draws,
			 __u8 load_info)
{
	__u32 best = in_slot(members, drawn(members->slots));

	for (int i = 1; i < 4; i++) {
		__u32 other;

		if (i >= draws)
			break;
		other = in_slot(members, drawn(members->slots));
		if (compared(members, loads, other, best, load_info) < 0)
			best = other;
	}
	return best;
}

/* Of several with the least load, each is equally likely: the n-th replaces its predecessor with
 * probability 1/n. */
INLINE __u32 shortest(const struct members *members, const struct loads *loads, __u8 load_info)
{
	__u32 best = members->server[0] & (SERVERS - 1), equals = 1;

	for (int i = 1; i < SERVERS; i++) {
		__u32 other;
		__s64 difference;

		if (i >= members->servers)
			break;
		other = members->server[i] & (SERVERS - 1);
		difference = compared(members, loads, other, best, load_info);
		if (difference < 0) {
			best = other;
			equals = 1;
		} else if (difference == 0 && drawn(++equals) == 0) {
			best = other;
		}
	}
	return best;
}

/* The one server that INT2 knows. Every fourth request goes to any, as in RackSched's published
 * switch: who gets none has no reply to become known by. */
INLINE __u32 least_known(const struct members *members, const struct loads *loads)
{
	__u64 least = loads->least;
	__u32 known = ((least >> 32) - 1) & (SERVERS - 1);

	if (!least || !members->weight[known] || drawn(4) == 0)
		return in_slot(members, drawn(members->slots));
	return known;
}

/* The server for a request: the simulator's balancers, by the same names. There are members. */
INLINE __u32 choose(const volatile struct request_type *type, const struct members *members,
		    struct loads *loads, __u64 flow)
{
	__u64 turn;

	switch (type->balancer) {
	case RANDOM:
		return least_drawn(members, loads, 1, INT1);
	case ROUND_ROBIN:
		turn = __sync_fetch_and_add(&loads->turn, 1) + 1;
		return in_slot(members, turn % members->slots);
	case SHORTEST:
		if (type->load_info == INT2)
			return least_known(members, loads);
		return shortest(members, loads, type->load_info);
	case POWER_OF:
		return least_drawn(members, loads, type->draws, type->load_info);
	default:
		return in_slot(members, spread(flow, members->slots));
	}
}

/* The servers that are open for a type; 0: there are none. */
INLINE struct members *members_of(__u32 type)
{
	__u32 only = 0, at, *active = bpf_map_lookup_elem(&half, &only);
	struct members *found;

	if (!active)
		return 0;
	at = (*active & 1) * TYPES + type;
	found = bpf_map_lookup_elem(&members, &at);
	return found && found->slots && found->servers ? found : 0;
}

/* ---- The servers' load ---------------------------------------------------------------------- */

INLINE struct loads *loads_of(__u32 type, __u8 load_info)
{
	__u32 at = load_info == COUNTERS ? TYPES : type;

	return bpf_map_lookup_elem(&loads, &at);
}

INLINE __u32 *outstanding(__u32 server)
{
	struct loads *counters = loads_of(0, COUNTERS);

	return counters ? &counters->load[server & (SERVERS - 1)] : 0;
}

INLINE void one_more(__u32 server)
{
	__u32 *counter = outstanding(server);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* Stays at zero: the control corrects the counter, and requests that it holds for lost may end
 * later. */
INLINE void one_less(__u32 server)
{
	__u32 *counter = outstanding(server);

	if (counter && (__s32)__sync_fetch_and_add(counter, -1) <= 0)
		__sync_fetch_and_add(counter, 1);
}

/* By a key in memory, not by an index: the verifier follows the values of an index, and would take
 * all that comes before once more for each type. */
INLINE struct activity *activity_of(__u32 server, __u32 type)
{
	__u32 at = server * TYPES + type;

	return bpf_map_lookup_elem(&activities, &at);
}

/* The time first: the control must not see a request unanswered with the time of an older one. */
INLINE void sent_to(__u32 server, __u32 type)
{
	struct activity *activity = activity_of(server, type);

	if (!activity)
		return;
	if (activity->sent == activity->answered)
		activity->waiting_since = now();
	__sync_fetch_and_add(&activity->sent, 1);
}

/* All that has been sent so far counts as answered. The time first, as another processor may send a
 * request just now, which finds an older one unanswered. A processor that has seen fewer sent takes
 * nothing back of what others have noted meanwhile. */
INLINE void all_answered(struct activity *activity)
{
	__u64 answered = activity->answered, sent = activity->sent;

	activity->waiting_since = now();
	if (sent > answered)
		__sync_val_compare_and_swap(&activity->answered, answered, sent);
}

INLINE void replied(__u32 server, __u32 type)
{
	struct activity *activity = activity_of(server, type);

	if (!activity)
		return;
	__sync_fetch_and_add(&activity->replies, 1);
	all_answered(activity);
}

/* INT2. Of equal loads the last counts. Only a server that is open is known: one that drains still
 * replies, but gets no request, and its load would keep the others' from being known. */
INLINE void least_reported(const struct members *members, __u64 *least, __u32 server, __u32 load)
{
	__u64 known = *least, of_this, of_known;
	__u32 known_server = (known >> 32) - 1;

	if (!members || !members->weight[server & (SERVERS - 1)])
		return;
	of_this = (__u64)load * members->weight[known_server & (SERVERS - 1)];
	of_known = (__u64)(__u32)known * members->weight[server & (SERVERS - 1)];
	if (!known || known_server == server || of_this <= of_known)
		*least = (__u64)(server + 1) << 32 | load;
}

/* A reply told its server's load. */
INLINE void reported(__u32 type, __u8 load_info, __u32 server, __u32 load)
{
	struct loads *known = loads_of(type, load_info);

	if (!known || load_info == COUNTERS)
		return;
	if (load_info == INT2) {
		least_reported(members_of(type), &known->least, server, load);
		return;
	}
	known->load[server & (SERVERS - 1)] = load;
}

/* ---- The request table ---------------------------------------------------------------------- */

INLINE __u32 server_of(__u64 entry)
{
	return entry & (SERVERS - 1);
}

INLINE __u32 tag_of(__u64 entry)
{
	return entry >> 32;
}

INLINE __u32 tick(void)
{
	return now() >> 20 & 0xffffff;
}

/* By how much an entry's tick may be later than the one that it is compared with, in ticks: 4.3 s.
 * A processor asks for the tick before it reads the entries, and another may note one meanwhile. */
#define AHEAD 4096

/* The clock wraps after five hours; so the difference is taken modulo its length. */
INLINE int is_old(__u64 entry, __u32 tick)
{
	return ((tick - (entry >> 8) + AHEAD) & 0xffffff) >= settings.age + AHEAD;
}

/* What identifies a request: its client's address and port, its numbers and its type. */
INLINE __u64 request_hash(__be32 address, __be16 port, const __u8 *header, __u32 type)
{
	__u64 client = (__u64)address << 32 | (__u32)port << 16 | FIELD(__u16, header, CLIENT);
	__u64 number = (__u64)type << 32 | FIELD(__u32, header, REQUEST_NUMBER);
	__u64 hash = client ^ number * 0xD6E8FEB86659FD93;

	hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93;
	hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93;
	return hash ^ hash >> 32;
}

INLINE struct bucket *bucket_of(__u64 hash)
{
	__u32 at = hash & settings.bucket_mask;

	return bpf_map_lookup_elem(&requests, &at);
}

/* The server of a request, or NONE. Frees the old entries of the bucket. */
INLINE __u32 noted(struct bucket *bucket, __u32 tag, __u32 tick)
{
	__u32 server = NONE;

	for (int i = 0; i < WAYS; i++) {
		__u64 entry = bucket->entry[i];

		if (!entry)
			continue;
		if (is_old(entry, tick)) {
			if (__sync_val_compare_and_swap(&bucket->entry[i], entry, 0) == entry) {
				one_less(server_of(entry));
				count(AGED);
			}
		} else if (tag_of(entry) == tag) {
			server = server_of(entry);
		}
	}
	return server;
}

/* Notes the server of a request. Returns whichever server is noted then, as another processor may
 * have been first; NONE: no entry of the bucket is free.
 *
 * The other one may have gone by an entry that became free since and is taken here. So this one
 * looks at those behind once more: the last one stays. */
INLINE __u32 note(struct bucket *bucket, __u32 tag, __u32 tick, __u32 server)
{
	__u64 mine = (__u64)tag << 32 | tick << 8 | server, *taken = 0;

	for (int i = 0; i < WAYS; i++) {
		__u64 entry = bucket->entry[i];

		if (!entry && !taken)
			entry = __sync_val_compare_and_swap(&bucket->entry[i], 0, mine);
		else if (!entry)
			continue;
		if (!entry) {
			one_more(server);
			taken = &bucket->entry[i];
		} else if (tag_of(entry) == tag) {
			if (taken && __sync_val_compare_and_swap(taken, mine, 0) == mine)
				one_less(server);
			return server_of(entry);
		}
	}
	return taken ? server : NONE;
}

INLINE void forget(struct bucket *bucket, __u32 tag)
{
	for (int i = 0; i < WAYS; i++) {
		__u64 entry = bucket->entry[i];

		if (entry && tag_of(entry) == tag &&
		    __sync_val_compare_and_swap(&bucket->entry[i], entry, 0) == entry)
			one_less(server_of(entry));
	}
}

/* ---- Packets -------------------------------------------------------------------------------- */

/* RFC 1624, equation 3, for a change of 32 bits. */
INLINE __u16 adjusted(__u16 checksum, __u32 before, __u32 after)
{
	__u64 sum = (__u16)~checksum + (__u64)(__u32)~before + after;

	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return ~sum;
}

/* Both checksums cover the address. A UDP checksum of zero says that there is none. */
INLINE void rewrite(struct packet *packet, __be32 *address, __be32 after)
{
	__be32 before = *address;

	*address = after;
	packet->ip->check = adjusted(packet->ip->check, before, after);
	if (packet->udp->check) {
		__u16 checksum = adjusted(packet->udp->check, before, after);

		packet->udp->check = checksum ? checksum : 0xffff;
	}
}

INLINE int redirect(struct packet *packet, const struct station *station, __u32 cause)
{
	__builtin_memcpy(packet->ethernet, station, 2 * ETH_ALEN);
	if (bpf_redirect_map(&interfaces, station->interface, 0) != XDP_REDIRECT) {
		count(NO_PORT);
		return XDP_DROP;
	}
	count(cause);
	return XDP_REDIRECT;
}

INLINE int is_same(const struct station *one, const struct station *other)
{
	return FIELD(__u64, (void *)one, 0) == FIELD(__u64, (void *)other, 0) &&
	       FIELD(__u64, (void *)one, 8) == FIELD(__u64, (void *)other, 8);
}

/* Replies to this client go where its requests come from. */
INLINE void learn(const struct packet *packet, __u32 interface)
{
	struct station station = { .interface = interface };
	const struct station *known = bpf_map_lookup_elem(&clients, &packet->ip->saddr);
	__be32 address = packet->ip->saddr;

	__builtin_memcpy(station.to, packet->ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(station.from, packet->ethernet->h_dest, ETH_ALEN);
	if (!known || !is_same(known, &station))
		bpf_map_update_elem(&clients, &address, &station, BPF_ANY);
}

/* The server that the table has for a request, or NONE. */
INLINE __u32 found(struct bucket *bucket, __u32 tag, __u32 at)
{
	__u32 server = noted(bucket, tag, at);
	struct server *known;

	if (server == NONE)
		return NONE;
	known = bpf_map_lookup_elem(&servers, &server);
	if (known && known->address) {
		count(AFFINE);
		return server;
	}
	/* The server has been removed since. */
	forget(bucket, tag);
	return NONE;
}

/* The server for a packet of RackSched's format, or NONE.
 *
 * The table first: a server that is closed keeps its requests, though no other is open. A request's
 * first packet chooses and is noted. A later one that comes before it does not know the load that
 * the choice would see; so a hash chooses, which is noted for the first one, and which is the same
 * where the table was full. */
INLINE __u32 affine(const volatile struct request_type *type, __u32 number, __u64 hash, __u64 flow,
		    int follows)
{
	__u32 tag = hash >> 32, at = tick(), server = NONE, by_hash, noted_now;
	struct bucket *bucket = bucket_of(hash);
	struct members *members;
	struct loads *loads;

	if (bucket)
		server = found(bucket, tag, at);
	if (server != NONE)
		return server;
	members = members_of(number);
	loads = loads_of(number, type->load_info);
	if (!members || !loads)
		return NONE;
	by_hash = in_slot(members, spread(hash, members->slots));
	if (!bucket)
		return by_hash;
	server = follows ? by_hash : choose(type, members, loads, flow);
	noted_now = note(bucket, tag, at, server);
	if (noted_now != NONE)
		return noted_now;
	count(TABLE_FULL);
	return by_hash;
}

/* The server for a packet of Shinjuku's format, or NONE: each is a request of its own. */
INLINE __u32 counted(const volatile struct request_type *type, __u32 number, __u64 flow)
{
	struct members *members = members_of(number);
	struct loads *loads = loads_of(number, type->load_info);
	__u32 server;

	if (!members || !loads)
		return NONE;
	server = choose(type, members, loads, flow);
	one_more(server);
	return server;
}

INLINE int request(struct packet *packet, __u32 number, __u32 interface)
{
	const volatile struct request_type *type = &settings.types[number];
	__u64 flow = (__u64)packet->ip->saddr << 16 | packet->udp->source;
	const __u8 *header = packet->payload;
	__u32 server;
	struct server *chosen;
	__u8 kind = header[KIND];

	if (type->format == RACKSCHED) {
		__u64 hash = request_hash(packet->ip->saddr, packet->udp->source, header, number);

		if (kind != IS_REQUEST && kind != IS_FOLLOWING)
			return to_kernel(NOT_THE_FORMAT);
		server = affine(type, number, hash, flow, kind == IS_FOLLOWING);
	} else {
		kind = IS_REQUEST;
		server = counted(type, number, flow);
	}
	/* There is none with the number NONE. */
	chosen = bpf_map_lookup_elem(&servers, &server);
	if (!chosen || !chosen->address)
		return to_kernel(NO_SERVER);
	if (kind == IS_REQUEST)
		sent_to(server, number);
	learn(packet, interface);
	rewrite(packet, &packet->ip->daddr, chosen->address);
	return redirect(packet, &chosen->station, REQUEST);
}

INLINE int reply(struct packet *packet, __u32 number, __u32 server)
{
	const volatile struct request_type *type = &settings.types[number];
	const __u8 *header = packet->payload;
	struct station *client;

	if (type->format == RACKSCHED) {
		__u64 hash = request_hash(packet->ip->daddr, packet->udp->dest, header, number);
		__u32 load = bpf_ntohl(FIELD(__u32, header, QUEUE_LENGTH));
		struct bucket *bucket;

		if (header[KIND] != IS_REPLY)
			return to_kernel(NOT_THE_FORMAT);
		/* Further packets of the same reply tell nothing new. */
		if (FIELD(__u16, header, SEQUENCE) == 0) {
			reported(number, type->load_info, server, load);
			replied(server, number);
		}
		bucket = bucket_of(hash);
		if (bucket)
			forget(bucket, hash >> 32);
	} else {
		replied(server, number);
		one_less(server);
	}
	client = bpf_map_lookup_elem(&clients, &packet->ip->daddr);
	if (!client)
		return to_kernel(UNKNOWN_CLIENT);
	rewrite(packet, &packet->ip->saddr, settings.address);
	return redirect(packet, client, REPLY);
}

/* Whether a packet of that length can be one of the format. A handler may answer Shinjuku's
 * requests with whatever it likes. */
INLINE int has_format(const struct packet *packet, __u8 format, int is_reply)
{
	if (format == RACKSCHED)
		return packet->length >= RACKSCHED_LENGTH;
	return is_reply || packet->length == SHINJUKU_LENGTH;
}

/* Behind the IPv4 header: a request, a reply, or something else. */
INLINE int datagram(struct packet *packet, void *end, __u32 ip_length, __u32 interface)
{
	__u32 header = packet->ip->ihl * 4;
	__u32 address = packet->ip->saddr;
	int to_rack = packet->ip->daddr == settings.address;
	__u32 server = NONE;

	if (!to_rack) {
		const __u32 *found = bpf_map_lookup_elem(&server_at, &address);

		if (!found)
			return to_kernel(NOT_OURS);
		server = *found;
	}
	if (packet->ip->frag_off & bpf_htons(0x3fff))
		return to_kernel(FRAGMENT);
	packet->udp = (void *)packet->ip + header;
	packet->payload = (void *)(packet->udp + 1);
	if (header < sizeof(struct iphdr) || ip_length < header + sizeof(struct udphdr) ||
	    (void *)packet->payload > end)
		return to_kernel(BAD_LENGTH);
	packet->length = length_in(packet->udp->len) - sizeof(struct udphdr);
	for (__u32 number = 0; number < TYPES; number++) {
		const volatile struct request_type *type = &settings.types[number];
		int is_request, is_reply;

		if (!type->request_port)
			continue;
		is_request = to_rack && packet->udp->dest == type->request_port;
		is_reply = !to_rack && packet->udp->source == type->reply_port;
		if (!is_request && !is_reply)
			continue;
		if (length_in(packet->udp->len) < sizeof(struct udphdr) ||
		    packet->length > ip_length - header - sizeof(struct udphdr))
			return to_kernel(BAD_LENGTH);
		if (!has_format(packet, type->format, is_reply))
			return to_kernel(NOT_THE_FORMAT);
		if (type->format == RACKSCHED || is_request) {
			__u32 needed = SHINJUKU_LENGTH;

			if (type->format == RACKSCHED)
				needed = RACKSCHED_LENGTH;
			if ((void *)packet->payload + needed > end)
				return to_kernel(BAD_LENGTH);
		}
		return is_request ? request(packet, number, interface)
				  : reply(packet, number, server);
	}
	return to_kernel(NOT_OURS);
}

INLINE int is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Tags stay as they are: client and server are in the same VLAN. */
SEC("xdp")
int rack(struct xdp_md *context)
{
	void *start = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	struct packet packet = { .ethernet = start };
	__u32 at = sizeof(struct ethhdr), ip_length;
	__be16 protocol;

	if (start + sizeof(struct ethhdr) > end)
		return to_kernel(NOT_OURS);
	protocol = packet.ethernet->h_proto;
	for (int tags = 0; tags < 2 && is_tag(protocol); tags++) {
		if (start + at + 4 > end)
			return to_kernel(NOT_OURS);
		protocol = FIELD(__be16, start + at, 2);
		at += 4;
	}
	packet.ip = start + at;
	if (protocol != bpf_htons(ETH_P_IP) || (void *)(packet.ip + 1) > end ||
	    packet.ip->version != 4 || packet.ip->protocol != IPPROTO_UDP)
		return to_kernel(NOT_OURS);
	ip_length = length_in(packet.ip->tot_len);
	if ((void *)packet.ip + ip_length > end)
		ip_length = 0; /* Cut off: no length is right then. */
	return datagram(&packet, end, ip_length, context->ingress_ifindex);
}

/* Nothing is known of a server's load for a type. Each word is written by itself, so that what the
 * switch learns of other servers meanwhile stays. */
INLINE void forget_load(__u32 type, __u32 server)
{
	struct loads *known = bpf_map_lookup_elem(&loads, &type);
	__u64 least;

	if (!known)
		return;
	known->load[server & (SERVERS - 1)] = 0;
	least = known->least;
	if (least >> 32 == server + 1)
		__sync_val_compare_and_swap(&known->least, least, 0);
}

/* So many of a server's requests are outstanding no longer. */
INLINE void write_off(__u32 server, __u32 lost)
{
	__u32 *counter = outstanding(server);
	__s32 before;

	if (!counter)
		return;
	before = __sync_fetch_and_add(counter, -lost);
	if (before < (__s32)lost)
		__sync_fetch_and_add(counter, lost - (before > 0 ? before : 0));
}

/* The control has this run when it adds a server, opens it or tries it again, and when requests must
 * have been lost. The frame is a correction. */
SEC("xdp")
int correct(struct xdp_md *context)
{
	struct correction *told = (void *)(long)context->data;
	__u32 server;

	if ((void *)(told + 1) > (void *)(long)context->data_end)
		return XDP_ABORTED;
	server = told->server & (SERVERS - 1);
	for (__u32 type = 0; type <= TYPES; type++) {
		/* A copy, or the counter is kept in memory, where Linux 6.1 forgets its range. */
		__u32 key = type;
		struct activity *activity;

		if (type < told->first || type > told->last)
			continue;
		if (told->loads)
			forget_load(key, server);
		activity = type < TYPES ? activity_of(server, type) : 0;
		if (activity)
			all_answered(activity);
	}
	if (told->lost)
		write_off(server, told->lost);
	return XDP_PASS;
}

static long sweep_bucket(__u32 number, void *first)
{
	struct bucket *bucket = bucket_of(*(__u32 *)first + number);

	if (bucket)
		noted(bucket, 0, tick());
	return 0;
}

/* The control has this run again and again, for entries age in buckets that no packet visits, too.
 * The frame has the first bucket's number, and how many there are. */
SEC("xdp")
int sweep(struct xdp_md *context)
{
	__u32 *told = (void *)(long)context->data;
	__u32 first;

	if ((void *)(told + 2) > (void *)(long)context->data_end)
		return XDP_ABORTED;
	first = told[0];
	bpf_loop(told[1], sweep_bucket, &first, 0);
	return XDP_PASS;
}

/* What the bench compares with: the shortest program that leads a packet anywhere. */
SEC("xdp")
int bare_redirect(struct xdp_md *context)
{
	return bpf_redirect_map(&interfaces, context->ingress_ifindex, 0);
}

/* No function that it calls asks for the GPL. */
const char licence[] SEC("license") = "MIT";
