/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * In a collective within a cluster: a window that leaves room in a shallow switch for everybody else's.
 *
 * Where a round trip is short, a full queue wins nothing and costs all: in an all-to-all many flows meet
 * in one port, and what overflows it waits for a timeout of many round trips. As TCP Vegas does, each flow
 * keeps a few packets queued, known from how much longer than the shortest the round trip is.
 */
#ifndef KUMI_TCP_MODEST_H
#define KUMI_TCP_MODEST_H

#include "restart.h"

/* Packets of a flow that may stand in queues: below the first the window grows, above the second it shrinks. */
#define QUEUED_MIN 2
#define QUEUED_MAX 4
/* The kernel's fast recovery wants so many. */
#define CWND_MIN 2

/* So long a rank takes the ports of a phase for crowded after it has lost something there. */
#define CROWDED_NS 10000000000ULL

/* Where this connection's rank puts down what it loses; NULL: nobody tells its phases. */
static __always_inline __u64 *lost_at(const struct kumi_tcp_memory *memory)
{
	__u32 rank = memory->rank;
	struct crowd *crowd = rank ? bpf_map_lookup_elem(&crowds, &rank) : NULL;

	return crowd ? &crowd->lost_at_ns[memory->phase % KUMI_PHASES_MAX] : NULL;
}

/* What one connection of a rank loses, in a phase that the program has named, the others could have. */
static __always_inline void note_crowd(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u64 *at_ns = memory->phase && is_local(tp) ? lost_at(memory) : NULL;

	if (at_ns)
		*at_ns = bpf_ktime_get_ns();
}

/*
 * Whether to be modest: in a phase that the program has named, on a short path, when packets were lost
 * there. Where none is, round trips tell of busy processors as often as of queues.
 */
static __always_inline bool is_modest(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u64 *at_ns = memory->phase && is_local(tp) ? lost_at(memory) : NULL;

	return at_ns && *at_ns && ack_ns(tp) < *at_ns + CROWDED_NS;
}

/* The shortest round trip of a round: what delayed acknowledgements add is not the queue's. */
static __always_inline void note_rtt(struct kumi_tcp_memory *memory, const struct ack_sample *sample)
{
	__s32 rtt_us = sample->rtt_us;

	if (rtt_us > 0 && (!memory->round_rtt_us || rtt_us < memory->round_rtt_us))
		memory->round_rtt_us = rtt_us;
}

static __always_inline void modest(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 acked)
{
	__u32 shortest_us = tp->rtt_min.s[0].v;
	__u32 rtt_us = memory->round_rtt_us;
	bool is_used = in_flight(tp) + acked >= tp->snd_cwnd / 2;
	__u32 cwnd = tp->snd_cwnd;
	__u32 queued;

	if (rtt_us < shortest_us)
		return;
	queued = (__u64)cwnd * (rtt_us - shortest_us) / rtt_us;
	if (cwnd < tp->snd_ssthresh && queued < QUEUED_MAX) { /* slow start, until a queue shows */
		if (is_used)
			tp->snd_cwnd = cwnd + acked;
		return;
	}
	if (cwnd < tp->snd_ssthresh)
		tp->snd_ssthresh = cwnd;
	memory->credit += acked;
	if (memory->credit < cwnd)
		return;
	memory->credit = 0; /* a round trip has passed */
	memory->round_rtt_us = 0;
	if (queued < QUEUED_MIN && is_used)
		tp->snd_cwnd = cwnd + 1;
	else if (queued > QUEUED_MAX && cwnd > CWND_MIN)
		tp->snd_cwnd = cwnd - 1 - (cwnd - CWND_MIN) / 8;
}

#endif
