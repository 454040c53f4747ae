/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A known rate that is held: its window, its probes, and what each round shows of it. */
#ifndef KUMI_TCP_HOLD_H
#define KUMI_TCP_HOLD_H

#include "modes.h"

static __always_inline __u32 held_window(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
					 __u32 pps)
{
	__u32 full = packets_of(pps, rtt_min_us(tp));

	return full + (memory->is_own ? full : full / 4) + pps / CLUMPS_PS + CWND_MIN;
}

/* Returns whether something has shown that the rate is the path's limit, and not what was sent. */
static __always_inline bool is_limited(struct kumi_tcp_memory *memory)
{
	__u32 pps = rate_of(path_of(memory));

	return memory->limit_pps >= pps - pps / 8 && memory->limit_pps <= pps + pps / 8;
}

/* Holds the rate of the phase. `is_own`: this connection has had it; otherwise it only saw it. */
static __always_inline void hold(struct kumi_tcp_memory *memory, struct sock *sk, bool is_own)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 pps = rate_of(path_of(memory));

	if (is_own && !is_limited(memory))
		memory->step = STEP_LAST;
	memory->mode = HOLD;
	memory->is_own = is_own;
	memory->is_lowered = 0;
	memory->is_probing = is_own && memory->step <= STEP_LAST && memory->skipped >= memory->skip;
	memory->probed_pps = 0;
	memory->held_rounds = 0;
	memory->base_us = 0;
	memory->queue_rounds = 0;
	memory->drain_us = 0;
	memory->lost_pps = 0;
	tp->snd_ssthresh = TCP_INFINITE_SSTHRESH;
	if (memory->is_probing)
		pps += pps / memory->step;
	set_window(tp, held_window(memory, tp, pps));
	set_pace(sk, least_pace(memory, tp, pps));
}

/* Takes a rate at which packets arrived slower than they had left for the path's limit. */
static __always_inline void note_limit(struct kumi_tcp_memory *memory, __u32 pps)
{
	if (pps > memory->limit_pps)
		memory->limit_pps = pps;
}

/* Takes the rate that is held for the path's limit: the next probe is a small one. */
static __always_inline void show_limit(struct kumi_tcp_memory *memory)
{
	memory->step = STEP;
	memory->limit_pps = rate_of(path_of(memory));
}

/* Leaves out the next probes, twice as many as the last time. */
static __always_inline void fail_probe(struct kumi_tcp_memory *memory)
{
	__u32 skip = memory->skip ? 2 * memory->skip : 1;

	show_limit(memory);
	memory->skip = skip < SKIPPED_MAX ? skip : SKIPPED_MAX;
	memory->skipped = 0;
}

/*
 * Returns whether the host stood still in the round: for longer than two clumps, and than a
 * train. With losses, a longer time than a quarter of a round trip may be that of a repair.
 */
static __always_inline bool has_paused(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
				       __u32 pps)
{
	return (!memory->round_lost || memory->gap_us < rtt_min_us(tp) / 4) &&
	       memory->gap_us > 2 * SECOND_US / CLUMPS_PS && packets_of(pps, memory->gap_us) > TRAIN;
}

/*
 * Judges the probe whose packets have arrived in this round. It succeeds if they arrived 1/64
 * faster than the rate. A longer step follows if they arrived at the probe's pace. Otherwise the
 * path has shown its limit, unless the host stood still.
 */
static __always_inline void judge_probe(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 train_pps = memory->train_pps, probed_pps = memory->probed_pps, pps = rate_of(path);
	bool is_clear = !has_paused(memory, tp, pps);

	memory->is_probing = 0;
	if (train_pps < pps + pps / TOLERATED) {
		if (is_clear)
			fail_probe(memory);
		return;
	}
	note_rate(path, train_pps < probed_pps ? train_pps : probed_pps, ack_ns(tp));
	if (train_pps >= probed_pps - probed_pps / TOLERATED) {
		if (memory->step > STEP_LAST)
			memory->step /= 2;
		memory->skip = 0;
	} else if (is_clear) {
		show_limit(memory);
	}
}

/*
 * Returns whether packets leave at the probe's rate: in its round, at a restart until the first
 * acknowledgement. If rounds last several round trips, most packets arrive in the round in which
 * they left, and the probe lasts for that round too.
 */
static __always_inline bool has_probe_pace(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
					   __u32 pps)
{
	if (memory->probed_pps)
		return packets_of(pps, rtt_min_us(tp)) < TRAIN;
	return memory->is_probing;
}

/*
 * Returns whether less than 15/16 of `pps` arrived in the round, not counting its longest time
 * between two acknowledgements, which shows the host and not the path.
 */
static __always_inline bool has_less(const struct kumi_tcp_memory *memory, __u32 pps)
{
	__u32 train_us = memory->train_us, gap_us = memory->gap_us;
	__u64 steady_us = train_us > gap_us ? train_us - gap_us : 0;

	return (__u64)memory->train_pps * train_us < steady_us * (pps - pps / 16);
}

/*
 * Takes the arrival rate for the path's rate, because a full path delivers its rate. Upper
 * bound: the pace at which the lost packets had left. Lower bound: 15/16 of the rate before, or
 * all of it if the host stood still.
 */
static __always_inline void take_arrival_rate(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 pps = rate_of(path), share = memory->train_pps, lost_pps = memory->lost_pps;
	__u32 least = has_paused(memory, tp, pps) ? pps : pps - pps / 16, most = pps;

	/* A longer step needs less precision. */
	if (lost_pps > pps && memory->train_us >= rtt_min_us(tp) / (lost_pps > pps + pps / 8 ? 8 : 2))
		most = lost_pps;
	path->best_pps = share < least ? least : share > most ? most : share;
	path->last_pps = 0;
	show_limit(memory);
}

/* Returns the part of the rate that the pace leaves out at a queue, to drain it in a round trip. */
static __always_inline __u32 drained_pps(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
					 __u32 pps)
{
	__u32 share = (__u64)pps * memory->drain_us / rtt_min_us(tp);

	return share > pps / STEP ? share : pps / STEP;
}

/*
 * Lowers the rate after a round in which fewer packets arrived: other flows share the path, the
 * rate was a guess, or the host stood still. The first time, the arrival rate is held as a rate
 * that was only seen. Losses of the next round do not count, because these packets had left
 * before.
 */
static __always_inline void lower(struct kumi_tcp_memory *memory, struct sock *sk, __u32 flying)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 pps = rate_of(path), train_pps = memory->train_pps;
	__u32 share = packets_of(train_pps, rtt_min_us(tcp_sk(sk)));

	path->best_pps = train_pps > pps ? pps : train_pps > pps / 2 ? train_pps : pps / 2;
	path->last_pps = 0;
	if (!memory->is_own) {
		cut(memory, sk, share > flying ? flying : share < flying / 2 ? flying / 2 : share);
		return;
	}
	memory->is_own = 0;
	memory->is_lowered = 1;
	memory->skip = 0;
	show_limit(memory);
}

static __always_inline void end_held_round(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct kumi_tcp_path *path = path_of(memory);
	const struct tcp_sock *tp = tcp_sk(sk);
	__u32 train_pps = memory->train_pps, pps = rate_of(path);
	__u32 share, least_us, queue_us, flying = most_flying(memory);
	bool has_lost = memory->lost_pps, has_queue, is_shown;

	/* A round that the program hardly uses shows nothing. */
	if (!has_lost && memory->round_flying < TRAIN &&
	    memory->round_flying < packets_of(pps, rtt_min_us(tp)) / 2)
		return;
	if (!memory->base_us)
		memory->base_us = memory->round_rtt_us;
	memory->held_rounds++;
	least_us = memory->base_us + rtt_min_us(tp) / TOLERATED + SECOND_US / CLUMPS_PS / 8;
	has_queue = has_train(memory) && memory->round_rtt_us > least_us;
	memory->queue_rounds = has_queue ? memory->queue_rounds + 1 : 0;
	/* What the pace has taken away shows in the next round. */
	queue_us = has_queue ? memory->round_rtt_us - least_us : 0;
	queue_us = queue_us > memory->drain_us ? queue_us - memory->drain_us : 0;
	memory->drain_us = queue_us < rtt_min_us(tp) / STEP_LAST ? queue_us : rtt_min_us(tp) / STEP_LAST;
	/* A longer step needs less precision. */
	is_shown = memory->train_us >= rtt_min_us(tp) / (memory->step <= STEP_LAST ? 8 : 2);
	if (memory->probed_pps && is_shown)
		judge_probe(memory, tp);
	else if ((has_queue && memory->train_us >= rtt_min_us(tp) / 2) ||
		 (has_lost && memory->train_us >= rtt_min_us(tp) / 8))
		take_arrival_rate(memory, tp);
	memory->lost_pps = 0;
	/* A restart's probe that showed nothing is over, too. */
	memory->probed_pps = memory->is_probing && !memory->probed_pps ? pace_of(sk) : 0;
	memory->is_probing =
		!memory->is_probing && !has_queue && !has_lost && memory->skipped >= memory->skip;
	if (has_lost && !train_pps) {
		cut(memory, sk, flying);
	} else if (memory->is_lowered) {
		memory->is_lowered = 0;
	} else if (has_lost && (!memory->is_own || has_less(memory, pps))) {
		lower(memory, sk, flying);
	} else if (memory->held_rounds > HELD_ROUNDS || memory->queue_rounds >= STEADY_ROUNDS) {
		share = packets_of(memory->round_pps, rtt_min_us(tp));
		share += share / 8;
		compete(memory, sk, flying < share ? flying : share);
	}
}

#endif
