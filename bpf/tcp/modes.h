/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The modes of the control, its constants, and the way into CUBIC's mode. */
#ifndef KUMI_TCP_MODES_H
#define KUMI_TCP_MODES_H

#include "sane.h"

enum { SEARCH, HOLD, COMPETE };

/* Fewest packets that show a rate, and the most that leave at once on an unknown path. */
#define TRAIN 16
/* Reciprocals of a probe's first step and of its last one. */
#define STEP 32
#define STEP_LAST 4
/* Rounds with a queue after which others cause it. */
#define STEADY_ROUNDS 4
/* Rounds for which a known rate is held, and a full window is paced beside others. */
#define HELD_ROUNDS 32
/* Reciprocal of the part of a window whose loss is no congestion. */
#define TOLERATED 64
/* Most restarts in a row without a probe. */
#define SKIPPED_MAX 64

/* A longer round trip than this beyond the shortest is a queue, and not a clump. */
static __always_inline __u32 noise_us(const struct tcp_sock *tp)
{
	return rtt_min_us(tp) / TOLERATED + SECOND_US / CLUMPS_PS;
}

static __always_inline __u32 queue_us(const struct tcp_sock *tp, __u32 rtt_us)
{
	__u32 shortest_us = rtt_min_us(tp);

	return rtt_us > shortest_us ? rtt_us - shortest_us : 0;
}

/* Returns the most packets in flight in this round and the one before. */
static __always_inline __u32 most_flying(const struct kumi_tcp_memory *memory)
{
	return memory->round_flying > memory->before_flying ? memory->round_flying : memory->before_flying;
}

/* Few packets show no queue: each may wait for a second one before its acknowledgement. */
static __always_inline bool has_train(const struct kumi_tcp_memory *memory)
{
	return memory->round_rtt_us && memory->round_flying >= TRAIN;
}

/*
 * Returns the pace for a rate. In an all-to-all, a rate is that of the connection beside the
 * others: if a host is late, fewer are active, and it is too low. There the pace is at least the
 * first window of a new connection (RFC 6928) per shortest round trip.
 */
static __always_inline __u32 least_pace(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
					__u32 pps)
{
	__u32 least = memory->is_crowded ? pps_of(CWND_INITIAL, rtt_min_us(tp)) : 0;

	return pps > least ? pps : least;
}

/*
 * Continues as CUBIC from the window `cwnd`, which has its clock begin anew. The path has shown its
 * limit, so the next probe is a small one.
 */
static __always_inline void compete(struct kumi_tcp_memory *memory, struct sock *sk, __u32 cwnd)
{
	struct tcp_sock *tp = tcp_sk(sk);

	memory->mode = COMPETE;
	memory->held_rounds = 0;
	memory->step = STEP;
	set_window(tp, cwnd);
	tp->snd_ssthresh = tp->snd_cwnd;
	cubictcp_init(sk);
}

/* Cuts the window as CUBIC does after a loss with `flying` packets. */
static __always_inline void cut(struct kumi_tcp_memory *memory, struct sock *sk, __u32 flying)
{
	struct tcp_sock *tp = tcp_sk(sk);

	compete(memory, sk, flying);
	set_window(tp, cubictcp_recalc_ssthresh(sk));
	tp->snd_ssthresh = tp->snd_cwnd;
}

#endif
