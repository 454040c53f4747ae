/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The fair share of a connection in an all-to-all whose network is known.
 *
 *   S  rate at which blocks of one length all end together: that of the busiest link, divided by
 *      the connections that cross it. The process writes it to its phase page.
 *   T  shortest round trip
 *
 *   P = S      W = S RTT + 2
 *
 * It is in force where S T is less than the smallest window, and not even a packet of each
 * connection fits a shallow port. There, no window can express the share, but a pace can (Kumar et
 * al., "Swift", SIGCOMM 2020, section 3.3). A process that sends to less than half of the others at
 * a time is left alone. A connection that loses a quarter of a call's packets has no share until
 * the next call: then the share is wrong, or others use the links.
 */
#ifndef KUMI_TCP_FAIR_SHARE_H
#define KUMI_TCP_FAIR_SHARE_H

#include "modes.h"

/* Connections of a process. */
struct kumi_tcp_crowd {
	__u64 began_ns;    /* start of the latest call of an all-to-all */
	__u32 rank;        /* the process */
	__u32 active;      /* connections with data to deliver, in any phase */
	__u32 most;        /* most of them in the latest call */
	__u32 most_before; /* most of them in the call before; 0: there was none */
	__u32 switches;    /* of the page, at the latest call */
};

/* Reciprocal of the part of a call's packets whose loss shows that the share is wrong. */
#define SHARE_WRONG 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RANKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_tcp_crowd);
} crowds SEC(".maps");

/* Returns the connections of `rank`, as a process; NULL if it has left its place. */
static __always_inline struct kumi_tcp_crowd *crowd_of(__u32 rank)
{
	__u32 place = place_of(rank);
	struct kumi_tcp_crowd *crowd = place ? bpf_map_lookup_elem(&crowds, &place) : NULL;
	__u32 before;

	if (!crowd)
		return NULL;
	before = crowd->rank;
	if (before != rank && __sync_val_compare_and_swap(&crowd->rank, before, rank) == before) {
		crowd->active = 0; /* of the process that had the place before */
		crowd->most = 0;
		crowd->most_before = 0;
	}
	return crowd;
}

/* Connections within a host use no link. */
static __always_inline bool is_within_host(const struct sock *sk)
{
	__u64 local[2], remote[2];

	if (BPF_CORE_READ(sk, __sk_common.skc_family) != AF_INET6)
		return BPF_CORE_READ(sk, __sk_common.skc_daddr) ==
		       BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
	BPF_CORE_READ_INTO(local, sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr8);
	BPF_CORE_READ_INTO(remote, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr8);
	return local[0] == remote[0] && local[1] == remote[1];
}

/* The connection has data to deliver from now on. */
static __always_inline void join_crowd(struct kumi_tcp_memory *memory, const struct sock *sk)
{
	struct kumi_tcp_crowd *crowd;

	if (memory->is_active || !has(KUMI_TCP_FAIR_SHARE) || is_within_host(sk))
		return;
	crowd = crowd_of(memory->rank);
	if (!crowd)
		return;
	memory->is_active = 1;
	__sync_fetch_and_add(&crowd->active, 1);
}

/* It has delivered everything. */
static __always_inline void leave_crowd(struct kumi_tcp_memory *memory)
{
	struct kumi_tcp_crowd *crowd;
	__u32 active;

	if (!memory->is_active)
		return;
	memory->is_active = 0;
	crowd = crowd_of(memory->rank);
	if (!crowd)
		return;
	/* A process that took the place of another one has begun at zero. */
	active = crowd->active;
	if (active && __sync_val_compare_and_swap(&crowd->active, active, active - 1) != active)
		__sync_fetch_and_add(&crowd->active, -1);
}

static __always_inline bool is_delivered(const struct tcp_sock *tp)
{
	return !tp->packets_out && tp->write_seq == tp->snd_nxt;
}

/* Notices a new call. At its start, the crowd of the call before is the estimate. */
static __always_inline void follow_call(struct kumi_tcp_memory *memory, struct kumi_tcp_crowd *crowd,
					const struct tcp_sock *tp, __u32 switches)
{
	__u32 before = crowd->switches, active;

	if (before != switches && __sync_val_compare_and_swap(&crowd->switches, before, switches) == before) {
		crowd->most_before = crowd->most;
		crowd->most = 0;
		crowd->began_ns = bpf_ktime_get_ns();
	}
	active = crowd->active;
	if (active > crowd->most)
		crowd->most = active;
	if (memory->switches == switches)
		return;
	memory->switches = switches;
	memory->call_delivered = tp->delivered;
	memory->call_lost = tp->lost;
	memory->call_is_wrong = 0;
}

/* Returns whether the call has shown that the share is wrong. */
static __always_inline bool is_wrong(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	if ((tp->lost - memory->call_lost) * SHARE_WRONG > tp->delivered - memory->call_delivered + TRAIN)
		memory->call_is_wrong = 1;
	return memory->call_is_wrong;
}

/*
 * Returns the connections that share the links. Those of a call begin one after the other, so at
 * first it has as many as the call before, or all.
 */
static __always_inline __u32 crowd_size(const struct kumi_tcp_crowd *crowd, __u32 peers, __u64 start_ns)
{
	__u32 before = crowd->most_before ? crowd->most_before : peers, active = crowd->active;

	if (crowd->most >= before || before <= active || bpf_ktime_get_ns() - crowd->began_ns > start_ns)
		return active ? active : 1;
	return before;
}

/* Returns the fair share in bytes per second; 0 if it is not in force. */
static __always_inline __u64 fair_share_bytes_ps(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	const struct kumi_phase_page *page;
	struct kumi_tcp_crowd *crowd;
	__u32 peers;
	__u64 bytes_ps, pps;

	/* A connection within the host is never active. */
	if (!memory->is_crowded || !memory->is_active || !tp->mss_cache)
		return 0;
	page = page_of(memory->rank);
	crowd = crowd_of(memory->rank);
	if (!page || !crowd)
		return 0;
	bytes_ps = *(const volatile __u64 *)&page->fair_share_bytes_ps;
	pps = bytes_ps / tp->mss_cache;
	peers = *(const volatile __u32 *)&page->peers;
	if (!pps || !peers || *(const volatile __u32 *)&page->burst_bytes >= tp->mss_cache)
		return 0;
	if (pps > PPS_MAX || packets_of(pps, rtt_min_us(tp)) >= CWND_MIN)
		return 0;
	follow_call(memory, crowd, tp, *(const volatile __u32 *)&page->switches);
	if (2ULL * crowd_size(crowd, peers, TRAIN * SECOND_NS / pps) < peers || is_wrong(memory, tp))
		return 0;
	return bytes_ps;
}

/*
 * Sends at the share, whatever the window was. A timeout keeps the kernel's small window. When the
 * share ends, so does its pace.
 */
static __always_inline void take_share(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 bytes_ps = fair_share_bytes_ps(memory, tp);

	if (bytes_ps) {
		memory->is_shared = 1;
		if (ca_state(tp) != TCP_CA_Loss)
			set_window(tp, packets_of(bytes_ps / tp->mss_cache, srtt_us(tp)) + CWND_MIN);
		force_pace(sk, bytes_ps);
	} else if (memory->is_shared) {
		memory->is_shared = 0;
		set_burst(sk, 2 * pps_of(tp->snd_cwnd, srtt_us(tp)));
	}
}

/* Ends the share with its phase. The next phase begins with the window of a new connection. */
static __always_inline void end_share(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (!memory->is_shared)
		return;
	memory->is_shared = 0;
	if (tp->snd_cwnd < CWND_INITIAL)
		set_window(tp, CWND_INITIAL);
	set_burst(sk, 2 * pps_of(tp->snd_cwnd, srtt_us(tp)));
}

#endif
