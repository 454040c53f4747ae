/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* State of a connection's path, with its age: clocks and units that the other files use. */
#ifndef KUMI_TCP_PATH_H
#define KUMI_TCP_PATH_H

#include "memory.h"

/*
 * Round-trip time below which a path belongs to a cluster. Slow start costs nothing there, and a
 * full port costs much.
 */
#define LOCAL_RTT_US 2000
/* The kernel's floor of the retransmission timeout, in microseconds (TCP_RTO_MIN). */
#define RTO_MIN_KERNEL_US 200000
/*
 * Duration of a clump, in microseconds. The kernel passes on a millisecond of the rate
 * (sk_pacing_shift) and times it as one packet. The round trip of a full path therefore exceeds the
 * shortest, that of a small packet, by this, without any queue. On a half-full path it is half of
 * this.
 */
#define CLUMP_US 977
/* Largest window: 2^20 packets of 1448 bytes exceed TCP's largest window, 1 GiB (RFC 7323). */
#define CWND_MAX (1U << 20)
/*
 * Highest rate, in packets per second: 64-byte packets at 137 Gb/s. Its product with a window of 20
 * bits fits.
 */
#define PPS_MAX (1ULL << 28)
/* Longest round trip: one minute. The kernel's value for "not measured yet" is 2^32 - 1. */
#define SPAN_MAX_US 60000000
/* Reciprocal of the part by which a measured rate may be too high, because of clumps and timers. */
#define EXCESS_PART 16

static __always_inline __u32 best_pps(const struct kumi_tcp_path *path)
{
	return path->best_pps > path->last_pps ? path->best_pps : path->last_pps;
}

/*
 * Returns the arrival time of the current acknowledgement, which the kernel has read from the clock
 * already.
 */
static __always_inline __u64 ack_ns(const struct tcp_sock *tp)
{
	return tp->tcp_mstamp * 1000;
}

/* Returns the rate of `packets` in `span_ns`, in packets per second. */
static __always_inline __u32 pps_of(__u32 packets, __u64 span_ns)
{
	__u64 pps = span_ns ? packets * 1000000000ULL / span_ns : PPS_MAX;

	return pps < PPS_MAX ? pps : PPS_MAX;
}

/* Returns the window that `pps` fills in `span_us`, in packets; 0 without a round trip. */
static __always_inline __u32 packets_of(__u64 pps, __u64 span_us)
{
	__u64 packets;

	if (span_us > SPAN_MAX_US)
		return 0;
	if (pps > PPS_MAX)
		pps = PPS_MAX;
	packets = pps * span_us / 1000000;
	return packets < CWND_MAX ? packets : CWND_MAX;
}

/* Returns whether the path is local. Nothing about a local path is remembered. */
static __always_inline bool is_local(const struct tcp_sock *tp)
{
	return tp->rtt_min.s[0].v < LOCAL_RTT_US;
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

	return rtt_us ? rtt_us : tp->rtt_min.s[0].v;
}

/* Returns whether the event happened, at most `round_trips` ago. */
static __always_inline bool is_recent(__u64 at_ns, const struct tcp_sock *tp, __u32 round_trips)
{
	return at_ns && bpf_ktime_get_ns() - at_ns <= round_trips * (__u64)(tp->srtt_us >> 3) * 1000;
}

/* Returns whether the last paced start was at most `round_trips` ago. */
static __always_inline bool is_soon_after_start(const struct kumi_tcp_memory *memory,
						const struct tcp_sock *tp, __u32 round_trips)
{
	return is_recent(memory->restarted_at_ns, tp, round_trips);
}

/* Returns the packets in flight with which `pps` fills the path, a little less than that. */
static __always_inline __u64 filling(const struct tcp_sock *tp, __u32 pps)
{
	__u32 packets = packets_of(pps, tp->rtt_min.s[0].v);

	return packets - packets / EXCESS_PART;
}

/*
 * Sets the window, with the present time. The kernel would halve a window that it takes for unused.
 */
static __always_inline void set_window(struct tcp_sock *tp, __u32 cwnd)
{
	tp->snd_cwnd = cwnd < CWND_MAX ? cwnd : CWND_MAX;
	if (has(KUMI_TCP_WRITES_STAMP))
		tp->snd_cwnd_stamp = bpf_jiffies64();
}

#endif
