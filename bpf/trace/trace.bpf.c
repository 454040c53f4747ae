// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Traces the connections of observed processes, event by event, from the kernel's own tracepoints:
 * the time series that Web100 gave in the send-stall paper (Takano et al., section 3.2). Nothing is
 * changed.
 *
 * A socket is observed if an observed process or a child of one created it or had it before, if an
 * observed listener accepted it, or if it is in the observed cgroup.
 */
#include "../tcp/kernel.h"
#include "../tcp/pages.h"
#include "intf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Written before the programs are loaded. It is the only constant, so its place is the start of the
 * read-only data.
 */
const volatile struct kumi_trace_settings settings = {};

/* Size of the ring, in bytes: a tenth of a second of a busy host's acknowledgements. */
#define RING_BYTES (16 << 20)
#define PROCESSES_MAX 1024
#define SOCKETS_MAX 65536
#define GENERATIONS_MAX 16
/*
 * Longest TCP options, in bytes; and the kinds that end them, fill them up, and acknowledge
 * selectively.
 */
#define OPTIONS_MAX 40
/* Buffer for them, a power of two. */
#define OPTIONS_ROOM 64
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
/* First word of options that have a timestamp only (RFC 7323, appendix A). */
#define OPTION_LONE_TIMESTAMP 0x0101080a
/* Acknowledgements that follow data by less than this were not delayed. */
#define HELD_MIN_NS 1000000

struct sk_buff {
	struct sock *sk;
	unsigned int len;
	unsigned char *data;
} KERNEL;

struct kernfs_node {
	__u64 id;
} KERNEL;

struct cgroup {
	struct kernfs_node *kn;
} KERNEL;

struct sock_cgroup_data {
	struct cgroup *cgroup;
} KERNEL;

struct sock___traced {
	struct sock_cgroup_data sk_cgrp_data;
} KERNEL;

struct inet_connection_sock___traced {
	__u8 icsk_pending;
	__u8 icsk_ca_state : 5;
	__u8 icsk_retransmits;
} KERNEL;

struct tcp_sock___traced {
	__u32 snd_una, snd_nxt, write_seq, snd_wnd, rcv_wnd;
	__u64 bytes_sent, bytes_retrans, bytes_acked;
	__u32 dsack_dups;
	__u32 chrono_start;   /* ticks */
	__u32 chrono_stat[3]; /* ticks: network, far window, send buffer */
	__u8 chrono_type : 2; /* which of them runs, from 1; 0: none */
} KERNEL;

/* enum skb_drop_reason, found by name. */
enum skb_drop_reason { SKB_DROP_REASON_QDISC_DROP = 1 };

enum { ICSK_TIME_LOSS_PROBE = 5 };

struct watched {
	__u64 cookie;
	__u64 data_at_ns; /* data came and is not acknowledged yet; 0: none */
	__u32 rank;       /* owner of its phase page; 0: none */
	__u32 dupacks;
	__u32 sacks;
	__u32 reserved;
};

/* Mark of a socket that an observed process created. Sockets that it accepts inherit the mark. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} marks SEC(".maps");

/*
 * Observed sockets by address. A packet's socket can be compared and read, but not passed to
 * helpers.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SOCKETS_MAX);
	__type(key, __u64);
	__type(value, struct watched);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} events SEC(".maps");

__u32 events_lost = 0;

SEC("cgroup/sock_create")
int watch_socket(struct bpf_sock *sk)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u32 tgid;

	if (sk->type != SOCK_STREAM || (sk->family != AF_INET && sk->family != AF_INET6))
		return 1;
	for (int generation = 0; generation < GENERATIONS_MAX && task; generation++) {
		tgid = BPF_CORE_READ(task, tgid);
		if (bpf_map_lookup_elem(&processes, &tgid)) {
			bpf_sk_storage_get(&marks, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
			return 1;
		}
		task = BPF_CORE_READ(task, real_parent);
	}
	return 1;
}

static __always_inline struct watched *at(const struct sock *sk)
{
	__u64 address = (__u64)sk;

	return bpf_map_lookup_elem(&sockets, &address);
}

/* Returns the socket's record; NULL if it is not observed. */
static __always_inline struct watched *find(struct sock *sk)
{
	struct sock___traced *traced = (void *)sk;
	struct watched *record = at(sk);
	__u64 address = (__u64)sk;
	struct kumi_tcp_owner *owner;
	struct watched fresh = {};

	if (record)
		return record;
	fresh.cookie = bpf_get_socket_cookie(sk);
	if (!bpf_sk_storage_get(&marks, sk, 0, 0) &&
	    (!settings.cgroup || BPF_CORE_READ(traced, sk_cgrp_data.cgroup, kn, id) != settings.cgroup))
		return NULL;
	owner = bpf_sk_storage_get(&owners, sk, 0, 0);
	fresh.rank = owner ? owner->rank : 0;
	bpf_map_update_elem(&sockets, &address, &fresh, BPF_ANY);
	return at(sk);
}

/*
 * Reads a field of a socket. A program reads a socket that a tracepoint passes to it directly. For
 * one that it found through a packet, it needs a helper.
 */
#define GIVEN(object, field) ((object)->field)
#define GIVEN_BITS(object, field) BPF_CORE_READ_BITFIELD(object, field)
#define FOUND(object, field) BPF_CORE_READ(object, field)
#define FOUND_BITS(object, field) BPF_CORE_READ_BITFIELD_PROBED(object, field)

/* Copies the state of the connection `tp`, whose socket is `sk`, and the start of its span. */
#define FILL(event, span_start, sk, tp, READ, READ_BITS)                                                 \
	do {                                                                                             \
		const struct inet_connection_sock___traced *icsk = (const void *)(tp);                   \
		const struct tcp_sock___traced *traced = (const void *)(tp);                             \
                                                                                                         \
		(event)->pacing_bytes_ps = READ(sk, sk_pacing_rate);                                     \
		(event)->snd_una = READ(traced, snd_una);                                                \
		(event)->snd_nxt = READ(traced, snd_nxt);                                                \
		(event)->write_seq = READ(traced, write_seq);                                            \
		(event)->snd_wnd = READ(traced, snd_wnd);                                                \
		(event)->rcv_wnd = READ(traced, rcv_wnd);                                                \
		(event)->cwnd = READ(tp, snd_cwnd);                                                      \
		(event)->ssthresh = READ(tp, snd_ssthresh);                                              \
		(event)->in_flight = READ(tp, packets_out) - READ(tp, sacked_out) - READ(tp, lost_out) + \
				     READ(tp, retrans_out);                                              \
		(event)->srtt_us = READ(tp, srtt_us) >> 3;                                               \
		(event)->rtt_min_us = READ(tp, rtt_min.s[0].v);                                          \
		(event)->rto_ticks = READ(tp, inet_conn.icsk_rto);                                       \
		(event)->mss_bytes = READ(tp, mss_cache);                                                \
		(event)->ca_state = READ_BITS(icsk, icsk_ca_state);                                      \
		(event)->limit = READ_BITS(traced, chrono_type);                                         \
		(event)->is_ipv6 = READ(sk, __sk_common.skc_family) == AF_INET6;                         \
		(event)->local_port = READ(sk, __sk_common.skc_num);                                     \
		(event)->remote_port = bpf_ntohs(READ(sk, __sk_common.skc_dport));                       \
		*(__u32 *)(event)->local = READ(sk, __sk_common.skc_rcv_saddr);                          \
		*(__u32 *)(event)->remote = READ(sk, __sk_common.skc_daddr);                             \
		(event)->bytes_sent = READ(traced, bytes_sent);                                          \
		(event)->bytes_resent = READ(traced, bytes_retrans);                                     \
		(event)->bytes_acked = READ(traced, bytes_acked);                                        \
		(event)->network_ticks = READ(traced, chrono_stat[0]);                                   \
		(event)->far_ticks = READ(traced, chrono_stat[1]);                                       \
		(event)->buffer_ticks = READ(traced, chrono_stat[2]);                                    \
		(event)->dsacks = READ(traced, dsack_dups);                                              \
		(span_start) = READ(traced, chrono_start);                                               \
	} while (0)

/* Reports an event of the connection `tp`, or of the socket `sk` of a packet if `tp` is NULL. */
static __always_inline void report(const struct watched *record, const struct sock *sk,
				   const struct tcp_sock *tp, __u32 kind, __u32 detail, __u32 ack)
{
	struct kumi_trace_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	const struct kumi_phase_page *page;
	__u32 span_start, span;

	if (!event) {
		__sync_fetch_and_add(&events_lost, 1);
		return;
	}
	event->at_ns = bpf_ktime_get_ns();
	event->cookie = record->cookie;
	event->kind = kind;
	event->detail = detail;
	event->ack = ack;
	event->reserved = 0;
	event->lost = events_lost;
	page = page_of(record->rank);
	event->rank = page ? record->rank % RANKS_MAX : 0;
	event->phase = page ? page->phase : 0;
	event->dupacks = record->dupacks;
	event->sacks = record->sacks;
	__builtin_memset(event->local, 0, sizeof(event->local) + sizeof(event->remote));
	if (tp)
		FILL(event, span_start, sk, tp, GIVEN, GIVEN_BITS);
	else
		FILL(event, span_start, sk, (const struct tcp_sock *)sk, FOUND, FOUND_BITS);
	if (event->is_ipv6) {
		BPF_CORE_READ_INTO(event->local, sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr8);
		BPF_CORE_READ_INTO(event->remote, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr8);
	}
	/* The span that has not ended yet. */
	span = (__u32)bpf_jiffies64() - span_start;
	event->network_ticks += event->limit == 1 ? span : 0;
	event->far_ticks += event->limit == 2 ? span : 0;
	event->buffer_ticks += event->limit == 3 ? span : 0;
	/*
	 * The reader polls. Waking it for each event would take the processor from the observed
	 * programs.
	 */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* First bytes of a TCP header. */
struct tcp_header {
	__be16 ports[2];
	__be32 sequence;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 rest[3];
	__be32 option;
};

/* Returns whether a header of `header` bytes has a selective acknowledgement. */
static __always_inline bool has_sack(const unsigned char *tcp, __u32 header, __be32 first)
{
	__u8 options[OPTIONS_ROOM] = {}, kind, size;
	__u32 length = header - 20, at = 0;

	/* Most have a timestamp only. */
	if (header <= 20 || (header == 32 && first == bpf_htonl(OPTION_LONE_TIMESTAMP)))
		return false;
	/*
	 * Bytes after shorter options are read without use, because the verifier requires a
	 * constant length.
	 */
	if (length > OPTIONS_MAX || bpf_probe_read_kernel(options, OPTIONS_MAX, tcp + 20))
		return false;
	for (int option = 0; option < OPTIONS_MAX && at + 1 < length; option++) {
		kind = options[at % OPTIONS_ROOM];
		size = options[(at + 1) % OPTIONS_ROOM];
		if (kind == OPTION_SACK)
			return true;
		if (kind == OPTION_END || (kind != OPTION_NOP && size < 2))
			return false;
		at += kind == OPTION_NOP ? 1 : size;
	}
	return false;
}

/* A segment has arrived for an established connection, and is not processed yet. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(on_segment, struct sock *sk, struct sk_buff *skb)
{
	const struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	const struct tcp_sock___traced *traced = (const void *)tp;
	struct watched *record = find(sk);
	struct tcp_header tcp;
	__u32 header, payload, ack;

	if (!record || !tp || bpf_probe_read_kernel(&tcp, sizeof(tcp), skb->data))
		return 0;
	header = (tcp.offset >> 4) * 4;
	payload = skb->len - header;
	ack = bpf_ntohl(tcp.ack);
	/* Signs of a loss or of re-ordering. */
	if (!payload && ack == traced->snd_una && tp->packets_out)
		record->dupacks++;
	if (has_sack(skb->data, header, tcp.option))
		record->sacks++;
	if (payload && !record->data_at_ns)
		record->data_at_ns = bpf_ktime_get_ns();
	/* An end that has nothing under way is a receiver. */
	if (settings.only_senders && traced->snd_una == traced->write_seq)
		return 0;
	report(record, sk, tp, KUMI_TRACE_ACK, payload, ack);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk)
{
	const struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	const struct inet_connection_sock___traced *icsk = (const void *)tp;
	struct watched *record = find(sk);
	__u32 why = KUMI_TRACE_FAST;

	if (!record || !tp)
		return 0;
	if (icsk->icsk_pending == ICSK_TIME_LOSS_PROBE)
		why = KUMI_TRACE_PROBE;
	else if (BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == TCP_CA_Loss || icsk->icsk_retransmits)
		why = KUMI_TRACE_TIMEOUT;
	report(record, sk, tp, KUMI_TRACE_RETRANSMIT, why, 0);
	return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(on_state, struct sock *sk, __u8 state)
{
	const struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct watched *record = find(sk);

	if (record && tp)
		report(record, sk, tp, KUMI_TRACE_STATE, state, 0);
	return 0;
}

/* Linux 6.16. On earlier kernels a transfer begins with its first acknowledgement. */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(on_write, struct sock *sk)
{
	const struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct watched *record;

	if (!tp || tp->packets_out)
		return 0;
	record = find(sk);
	if (record)
		report(record, sk, tp, KUMI_TRACE_WRITE, 0, 0);
	return 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(on_drop, struct sk_buff *skb, void *location, enum skb_drop_reason reason)
{
	struct watched *record;
	struct sock *sk;

	if (reason != bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_QDISC_DROP))
		return 0;
	sk = skb->sk;
	record = sk ? at(sk) : NULL;
	if (record)
		report(record, sk, NULL, KUMI_TRACE_LOCAL_DROP, 0, 0);
	return 0;
}

/*
 * A packet is passed to a device. If it acknowledges data that arrived some time ago, it was
 * delayed.
 */
SEC("tp_btf/net_dev_queue")
int BPF_PROG(on_send, struct sk_buff *skb)
{
	const struct sock *sk = skb->sk;
	struct watched *record = sk ? at(sk) : NULL;
	__u64 held_ns;

	if (!record || !record->data_at_ns)
		return 0;
	held_ns = bpf_ktime_get_ns() - record->data_at_ns;
	record->data_at_ns = 0;
	if (held_ns >= HELD_MIN_NS)
		report(record, sk, NULL, KUMI_TRACE_HELD_ACK, held_ns / 1000, 0);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_close, struct sock *sk)
{
	const struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	__u64 address = (__u64)sk;
	struct watched *record = at(sk);

	if (!record)
		return 0;
	report(record, sk, tp, KUMI_TRACE_CLOSE, 0, 0);
	bpf_map_delete_elem(&sockets, &address); /* the address will be another socket's */
	return 0;
}
