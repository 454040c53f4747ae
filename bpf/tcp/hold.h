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
	memory->is_probing = is_own && memory->step <= STEP_LAST && memory->skipped >= memory->skip;
	memory->probed_pps = 0;
	memory->held_rounds = 0;
	memory->base_us = 0;
	memory->queue_rounds = 0;
	memory->has_lost = 0;
	tp->snd_ssthresh = TCP_INFINITE_SSTHRESH;
	if (memory->is_probing)
		pps += pps / memory->step;
	set_window(tp, held_window(memory, tp, pps));
	set_pace(sk, pps);
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
 * Judges the probe whose packets have arrived in this round: it succeeds if at least half of what
 * it added did. A longer step follows if all of it did; otherwise the path has shown its limit.
 */
static __always_inline void judge_probe(struct kumi_tcp_memory *memory, struct kumi_tcp_path *path,
					__u64 now_ns)
{
	__u32 train_pps = memory->train_pps, probed_pps = memory->probed_pps;

	memory->is_probing = 0;
	if (!memory->has_lost && train_pps >= rate_of(path) / 2 + probed_pps / 2) {
		note_rate(path, train_pps < probed_pps ? train_pps : probed_pps, now_ns);
		if (train_pps < probed_pps - probed_pps / TOLERATED)
			show_limit(memory);
		else if (memory->step > STEP_LAST)
			memory->step /= 2;
		memory->skip = 0;
	} else {
		fail_probe(memory);
	}
}

/*
 * Returns whether packets leave at the probe's rate: in its round, and also in the one that judges
 * it if rounds last several round trips, because most packets then arrive in the round in which
 * they left.
 */
static __always_inline bool has_probe_pace(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
					   __u32 pps)
{
	return memory->is_probing || (memory->probed_pps && packets_of(pps, rtt_min_us(tp)) < TRAIN);
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

static __always_inline void end_held_round(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct kumi_tcp_path *path = path_of(memory);
	const struct tcp_sock *tp = tcp_sk(sk);
	__u32 train_pps = memory->train_pps, pps = rate_of(path);
	__u32 has_lost = memory->has_lost;
	__u32 share, flying;
	bool has_queue, is_shown;

	/* A round that the program hardly uses shows nothing. */
	if (!has_lost && memory->round_flying < TRAIN &&
	    memory->round_flying < packets_of(pps, rtt_min_us(tp)) / 2)
		return;
	if (!memory->base_us)
		memory->base_us = memory->round_rtt_us;
	memory->held_rounds++;
	has_queue = has_train(memory) && memory->round_rtt_us > memory->base_us + rtt_min_us(tp) / TOLERATED +
									SECOND_US / CLUMPS_PS / 8;
	memory->queue_rounds = has_queue ? memory->queue_rounds + 1 : 0;
	/* A longer step needs less precision. */
	is_shown = memory->train_us >= rtt_min_us(tp) / (memory->step <= STEP_LAST ? 8 : 2);
	if (memory->probed_pps && (has_lost || is_shown)) {
		judge_probe(memory, path, ack_ns(tp));
	} else if ((has_queue && memory->train_us >= rtt_min_us(tp) / 2) ||
		   (has_lost && memory->train_us >= rtt_min_us(tp) / 8)) {
		/* A full path delivers its rate. */
		show_limit(memory);
		share = train_pps < pps ? train_pps : pps;
		path->best_pps = share > pps - pps / 16 ? share : pps - pps / 16;
		path->last_pps = 0;
	}
	memory->has_lost = 0;
	memory->probed_pps = memory->is_probing ? pace_of(sk) : 0;
	memory->is_probing =
		!memory->is_probing && !has_queue && !has_lost && memory->skipped >= memory->skip;
	flying = most_flying(memory);
	if (has_lost && !train_pps) {
		cut(memory, sk, flying);
	} else if (has_lost && (!memory->is_own || has_less(memory, pps))) {
		/* Less arrives than was remembered: others are there. */
		path->best_pps = train_pps > pps ? pps : train_pps > pps / 2 ? train_pps : pps / 2;
		path->last_pps = 0;
		share = packets_of(train_pps, rtt_min_us(tp));
		cut(memory, sk, share > flying ? flying : share < flying / 2 ? flying / 2 : share);
	} else if (memory->held_rounds > HELD_ROUNDS || memory->queue_rounds >= STEADY_ROUNDS) {
		share = packets_of(memory->round_pps, rtt_min_us(tp));
		share += share / 8;
		compete(memory, sk, flying < share ? flying : share);
	}
}

#endif
