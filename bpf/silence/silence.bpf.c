// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Measures silence: the longest time in which a connection with data to deliver delivers nothing.
 * Both ends of the connection are on this machine. The sender's end shows when data waits, and the
 * receiver's end when it arrives.
 *
 *   sender:    a write, everything before it is delivered ──► the silence begins
 *   receiver:  a segment that rcv_nxt waits for           ──► the silence ends, the next one begins
 *
 * Only the observed network namespaces count, and IPv4. A receiver that does not read closes its
 * window, which is silence too. The tracepoint of a write exists since Linux 6.16.
 */
#include "../tcp/kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Sixteen hosts with 64 connections in each direction are 2 048. The least recently used is
 * forgotten.
 */
#define CONNECTIONS_MAX 16384
#define NAMESPACES_MAX 1024
/* A slot is a hundredth of a second: `SLOT_NS` and `SLOTS` of crates/tcp/src/silence.rs. */
#define SLOT_NS 10000000ULL
#define SLOTS 65536
#define AF_INET 2
/* Attempts to raise a slot that another processor changes at the same time. */
#define RAISES_MAX 8

struct ns_common___silence {
	unsigned int inum;
} KERNEL;

struct net___silence {
	struct ns_common___silence ns;
} KERNEL;

struct sk_buff {
	unsigned int len;
	unsigned char *data;
} KERNEL;

struct tcp_sock___silence {
	__u32 rcv_nxt, write_seq;
} KERNEL;

/* One direction of a connection, from its sender's point of view. */
struct way {
	__be32 from, to;
	__u16 from_port, to_port; /* host byte order */
};

struct delivery {
	__u64 silent_since_ns;
	__u32 delivered; /* sequence number behind the last byte that is delivered in order */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NAMESPACES_MAX);
	__type(key, __u32); /* inode of the namespace */
	__type(value, __u32);
} namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS_MAX);
	__type(key, struct way);
	__type(value, struct delivery);
} deliveries SEC(".maps");

/* For each slot of the ring, the longest silence that ended in it, in nanoseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} longest SEC(".maps");

static bool is_watched(struct sock *sk)
{
	struct net___silence *net = (void *)BPF_CORE_READ(sk, __sk_common.skc_net.net);
	__u32 inode = BPF_CORE_READ(net, ns.inum);

	return BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET &&
	       bpf_map_lookup_elem(&namespaces, &inode);
}

static void raise(__u64 now_ns, __u64 silence_ns)
{
	__u32 slot = now_ns / SLOT_NS % SLOTS;
	__u64 *most = bpf_map_lookup_elem(&longest, &slot);
	__u64 seen;

	if (!most)
		return;
	seen = *most;
	for (int attempt = 0; attempt < RAISES_MAX && seen < silence_ns; attempt++) {
		__u64 there = __sync_val_compare_and_swap(most, seen, silence_ns);

		if (there == seen)
			return;
		seen = there;
	}
}

/* Returns the direction in which `sk` sends, or the one in which it receives. */
static struct way way_of(struct sock *sk, bool is_receiver)
{
	__be32 here = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
	__be32 there = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	__u16 port_here = BPF_CORE_READ(sk, __sk_common.skc_num);
	__u16 port_there = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));

	if (is_receiver)
		return (struct way){ there, here, port_there, port_here };
	return (struct way){ here, there, port_here, port_there };
}

/* Called before the bytes of the write count in write_seq. */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(on_write, struct sock *sk)
{
	struct tcp_sock___silence *tp = (void *)sk;
	struct delivery new = {}, *delivery;
	struct way way;

	if (!is_watched(sk))
		return 0;
	way = way_of(sk, false);
	delivery = bpf_map_lookup_elem(&deliveries, &way);
	if (!delivery) {
		new.silent_since_ns = bpf_ktime_get_ns();
		new.delivered = BPF_CORE_READ(tp, write_seq);
		bpf_map_update_elem(&deliveries, &way, &new, BPF_NOEXIST);
	} else if (delivery->delivered == BPF_CORE_READ(tp, write_seq)) {
		delivery->silent_since_ns = bpf_ktime_get_ns();
	}
	return 0;
}

/* A segment has arrived and is not processed yet. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(on_segment, struct sock *sk, struct sk_buff *skb)
{
	struct tcp_sock___silence *tp = (void *)sk;
	struct delivery *delivery;
	__u32 sequence = 0, end, rcv_nxt;
	unsigned char *header;
	struct way way;
	__u8 offset = 0;
	__u64 now_ns;

	if (!is_watched(sk))
		return 0;
	way = way_of(sk, true);
	delivery = bpf_map_lookup_elem(&deliveries, &way);
	if (!delivery)
		return 0;
	header = BPF_CORE_READ(skb, data);
	bpf_probe_read_kernel(&sequence, sizeof(sequence), header + 4);
	bpf_probe_read_kernel(&offset, sizeof(offset), header + 12);
	sequence = bpf_ntohl(sequence);
	end = sequence + BPF_CORE_READ(skb, len) - (offset >> 4) * 4;
	rcv_nxt = BPF_CORE_READ(tp, rcv_nxt);
	if ((__s32)(sequence - rcv_nxt) > 0 || (__s32)(end - rcv_nxt) <= 0)
		return 0; /* it leaves a hole, or it brings nothing new */
	now_ns = bpf_ktime_get_ns();
	if (now_ns > delivery->silent_since_ns)
		raise(now_ns, now_ns - delivery->silent_since_ns);
	delivery->silent_since_ns = now_ns;
	delivery->delivered = end;
	return 0;
}

/* The program reads. rcv_nxt now includes bytes behind a hole that a segment has filled. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(on_read, struct sock *sk)
{
	struct tcp_sock___silence *tp = (void *)sk;
	struct delivery *delivery;
	struct way way;

	if (!is_watched(sk))
		return 0;
	way = way_of(sk, true);
	delivery = bpf_map_lookup_elem(&deliveries, &way);
	if (delivery)
		delivery->delivered = BPF_CORE_READ(tp, rcv_nxt);
	return 0;
}
