/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is known of a connection's path, and how old that is: clocks and lengths, in the words that the other files
 * use.
 */
#ifndef KUMI_TCP_PATH_H
#define KUMI_TCP_PATH_H

#include "memory.h"

/* Round trips shorter than this are a cluster's own: slow start costs nothing there, and a full port much. */
#define LOCAL_RTT_US 2000
/* The kernel's own floor under the retransmission timeout, in microseconds (TCP_RTO_MIN). */
#define RTO_MIN_KERNEL_US 200000
/*
 * The kernel puts a millisecond of the rate (sk_pacing_shift) into what it hands on and times as one packet:
 * the round trip of a full path is longer by that than the shortest, a small packet's, without any queue; of
 * one that is half full by half of that.
 */
#define CLUMP_US 977
/* No window exceeds this: 2^20 packets of 1448 bytes are more than TCP's largest window, 1 GiB (RFC 7323). */
#define CWND_MAX (1U << 20)
/* No rate exceeds this, in packets a second: 64-byte packets at 137 Gb/s. A product with a window's 20 bits fits. */
#define PPS_MAX (1ULL << 28)
/* No round trip takes a minute; the kernel's word for "not measured yet" is 2^32 - 1. */
#define SPAN_MAX_US 60000000
/* What a rate that was measured may be too high by: clumps and timers make that. */
#define EXCESS_PART 16

static __always_inline __u32 best_pps(const struct kumi_tcp_path *path)
{
	return path->best_pps > path->last_pps ? path->best_pps : path->last_pps;
}

/* When the acknowledgement in hand came: the kernel has asked the clock already. */
static __always_inline __u64 ack_ns(const struct tcp_sock *tp)
{
	return tp->tcp_mstamp * 1000;
}

/* The rate of `packets` in `span_ns`, packets a second. */
static __always_inline __u32 pps_of(__u32 packets, __u64 span_ns)
{
	__u64 pps = span_ns ? packets * 1000000000ULL / span_ns : PPS_MAX;

	return pps < PPS_MAX ? pps : PPS_MAX;
}

/* Packets that `pps` sends in `span_us`: a window; 0 without a round trip. */
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

/* Whether the path is so short that nothing about it need be remembered. */
static __always_inline bool is_local(const struct tcp_sock *tp)
{
	return tp->rtt_min.s[0].v < LOCAL_RTT_US;
}

static __always_inline bool is_fresh(__u64 at_ns)
{
	return at_ns && bpf_ktime_get_ns() - at_ns < settings.memory_max_ns;
}

/* Whether the path is still the one that was measured: neither half as long nor ten times (RFC 9959). */
static __always_inline bool is_same_path(__u32 then_us, __u32 now_us)
{
	return now_us > then_us / 2 && now_us / 10 < then_us;
}

/* The round trip of the packet that was delivered last: the shortest may be five minutes old. */
static __always_inline __u32 fresh_rtt_us(const struct tcp_sock *tp)
{
	__u32 rtt_us = tp->rack.rtt_us;

	return rtt_us ? rtt_us : tp->rtt_min.s[0].v;
}

/* Whether that was, and no more than so many round trips ago. */
static __always_inline bool is_recent(__u64 at_ns, const struct tcp_sock *tp, __u32 round_trips)
{
	return at_ns &&
	       bpf_ktime_get_ns() - at_ns <= round_trips * (__u64)(tp->srtt_us >> 3) * 1000;
}

/* Whether the last paced start is no more than so many round trips ago. */
static __always_inline bool is_soon_after_start(const struct kumi_tcp_memory *memory,
						const struct tcp_sock *tp, __u32 round_trips)
{
	return is_recent(memory->restarted_at_ns, tp, round_trips);
}

/* The packets under way that `pps` keeps the path full with, a little less than that. */
static __always_inline __u64 filling(const struct tcp_sock *tp, __u32 pps)
{
	__u32 packets = packets_of(pps, tp->rtt_min.s[0].v);

	return packets - packets / EXCESS_PART;
}

/* Sets the window, as from now: the kernel would halve one that it takes for unused. */
static __always_inline void set_window(struct tcp_sock *tp, __u32 cwnd)
{
	tp->snd_cwnd = cwnd < CWND_MAX ? cwnd : CWND_MAX;
	if (has(KUMI_TCP_WRITES_STAMP))
		tp->snd_cwnd_stamp = bpf_jiffies64();
}

#endif
