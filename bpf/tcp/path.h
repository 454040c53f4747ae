/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A path in one phase: its rate, with its age, and the units that the other files use. */
#ifndef KUMI_TCP_PATH_H
#define KUMI_TCP_PATH_H

#include "memory.h"

#define SECOND_US 1000000ULL
#define SECOND_NS 1000000000ULL
/*
 * The kernel passes on this part of a second of the pacing rate at once (sk_pacing_shift). It times
 * such a clump as one packet, so a round trip can be longer by it without a queue.
 */
#define CLUMPS_PS 1024
/* Largest window: 2^20 packets of 1448 bytes exceed TCP's largest window, 1 GiB (RFC 7323). */
#define CWND_MAX (1U << 20)
/* The kernel's first window (RFC 6928). */
#define CWND_INITIAL 10
/* Fewest packets of a window, as in the kernel, and of a clump (tcp_min_tso_segs). */
#define CWND_MIN 2
/* Highest rate, in packets per second: 64-byte packets at 137 Gb/s. */
#define PPS_MAX (1ULL << 28)
/* Longest round trip: one minute. The kernel's value for "not measured yet" is 2^32 - 1. */
#define RTT_MAX_US 60000000
/*
 * Span of the highest rate. A rate counts for the running span and the one before, so for 10 to
 * 20 s of traffic: the kernel's BBR takes the shortest round trip of 10 s.
 */
#define SPAN_NS 10000000000ULL

static __always_inline __u32 rate_of(const struct kumi_tcp_path *path)
{
	return path->best_pps > path->last_pps ? path->best_pps : path->last_pps;
}

/* Returns the arrival time of the current acknowledgement, which the kernel has read already. */
static __always_inline __u64 ack_ns(const struct tcp_sock *tp)
{
	return tp->tcp_mstamp * 1000;
}

/* Returns the rate of `packets` in `us`, in packets per second. */
static __always_inline __u32 pps_of(__u64 packets, __u64 us)
{
	__u64 pps = us ? packets * SECOND_US / us : PPS_MAX;

	return pps < PPS_MAX ? pps : PPS_MAX;
}

/* Returns the packets that `pps` carries in `us`. */
static __always_inline __u32 packets_of(__u64 pps, __u64 us)
{
	__u64 packets = pps * us / SECOND_US;

	return packets < CWND_MAX ? packets : CWND_MAX;
}

/* Returns the shortest round trip in microseconds; 0 if none was measured. */
static __always_inline __u32 rtt_min_us(const struct tcp_sock *tp)
{
	__u32 rtt_us = tp->rtt_min.s[0].v;

	return rtt_us <= RTT_MAX_US ? rtt_us : 0;
}

static __always_inline __u32 srtt_us(const struct tcp_sock *tp)
{
	__u32 rtt_us = tp->srtt_us >> 3;

	return rtt_us ? rtt_us : 1;
}

/*
 * Returns whether a window lasts longer than a clump. Otherwise the kernel sends all of it at once,
 * whatever the pace, and a timer would only cost.
 */
static __always_inline bool is_spaced(const struct tcp_sock *tp)
{
	return 2ULL * rtt_min_us(tp) * CLUMPS_PS > SECOND_US;
}

static __always_inline bool is_fresh(__u64 at_ns)
{
	return at_ns && bpf_ktime_get_ns() - at_ns < settings.memory_max_ns;
}

/*
 * Returns whether the path still is the measured one: its round trip is neither half as long nor
 * ten times as long (RFC 9959).
 */
static __always_inline bool is_same_path(__u32 then_us, __u32 now_us)
{
	return now_us > then_us / 2 && now_us / 10 < then_us;
}

/* Returns the round trip of the latest delivered packet. The shortest may be five minutes old. */
static __always_inline __u32 fresh_rtt_us(const struct tcp_sock *tp)
{
	__u32 rtt_us = tp->rack.rtt_us;

	return rtt_us ? rtt_us : rtt_min_us(tp);
}

/* Returns whether the event happened, at most a round trip ago. */
static __always_inline bool is_recent(__u64 at_ns, const struct tcp_sock *tp)
{
	return at_ns && bpf_ktime_get_ns() - at_ns <= srtt_us(tp) * 1000ULL;
}

/* Counts a rate that the path has shown. */
static __always_inline void note_rate(struct kumi_tcp_path *path, __u32 pps, __u64 now_ns)
{
	if (now_ns > path->span_began_ns + SPAN_NS) {
		path->last_pps = path->best_pps;
		path->best_pps = 0;
		path->span_began_ns = now_ns;
	}
	if (pps > path->best_pps)
		path->best_pps = pps;
}

static __always_inline void set_window(struct tcp_sock *tp, __u32 cwnd)
{
	if (cwnd < CWND_MIN)
		cwnd = CWND_MIN;
	tp->snd_cwnd = cwnd < CWND_MAX ? cwnd : CWND_MAX;
}

/* Returns a rate in packets per second as bytes per second. */
static __always_inline __u64 bytes_ps_of(const struct sock *sk, __u64 pps)
{
	return (pps < PPS_MAX ? pps : PPS_MAX) * tcp_sk(sk)->mss_cache;
}

/*
 * Sets the pace in bytes per second. Kernels before 6.0 do not allow writing the rate. There, its
 * upper limit is written instead. A program that has set its own limit keeps it.
 */
static __always_inline void write_pace(struct sock *sk, __u64 bytes_ps, bool is_needed)
{
	int ceiling;

	if (!has(KUMI_TCP_WRITES_PACING)) {
		ceiling = is_needed && bytes_ps < 0x7fffffff ? bytes_ps : -1;
		bpf_setsockopt(sk, SOL_SOCKET, SO_MAX_PACING_RATE, &ceiling, sizeof(ceiling));
		return;
	}
	sk->sk_pacing_rate = bytes_ps < sk->sk_max_pacing_rate ? bytes_ps : sk->sk_max_pacing_rate;
	if (is_needed && sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
}

/* Sets the pace, in packets per second, where a window lasts longer than a clump. */
static __always_inline void set_pace(struct sock *sk, __u64 pps)
{
	write_pace(sk, bytes_ps_of(sk, pps), has(KUMI_TCP_PACED_RESTART) && is_spaced(tcp_sk(sk)));
}

/*
 * Sets the pace, in bytes per second, even if a window lasts for less than a clump. A share may be
 * a few packets per second, so whole packets are too coarse for it.
 */
static __always_inline void force_pace(struct sock *sk, __u64 bytes_ps)
{
	write_pace(sk, bytes_ps, true);
}

/*
 * Leaves the packets unpaced, unless the program has set a limit of its own. The rate is then only
 * the length of a burst: what would leave at this rate in 1/CLUMPS_PS of a second, as in the
 * kernel's CUBIC.
 */
static __always_inline void set_burst(struct sock *sk, __u64 pps)
{
	__u64 bytes_ps = bytes_ps_of(sk, pps);

	if (!has(KUMI_TCP_WRITES_PACING)) {
		set_pace(sk, PPS_MAX);
		return;
	}
	sk->sk_pacing_rate = bytes_ps < sk->sk_max_pacing_rate ? bytes_ps : sk->sk_max_pacing_rate;
	if (sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL)
		sk->sk_pacing_status = SK_PACING_NONE;
}

/* Returns the pace in packets per second, at least one. */
static __always_inline __u64 pace_of(const struct sock *sk)
{
	__u32 mss = tcp_sk(sk)->mss_cache;
	__u64 pps = mss ? sk->sk_pacing_rate / mss : 0;

	return pps < 1 ? 1 : pps < PPS_MAX ? pps : PPS_MAX;
}

#endif
