/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * After a paced start, until CUBIC decides again: the window follows the queue before the bottleneck, and a loss
 * keeps what the start has shown the path to carry.
 */
#ifndef KUMI_TCP_FILL_H
#define KUMI_TCP_FILL_H

#include "restart.h"

/*
 * The window's growth while a paced start is being filled, as a part of it a round trip: of a rate that was
 * guessed an eighth; of one that was measured little at first, as a step must fit a shallow buffer, and
 * twice that each time so many round trips have passed without a queue: the measurement is wrong then. Less
 * where the path is half full, little where it is full or has lost something.
 */
#define GROWTH_PART_MIN 8
#define GROWTH_PART_MAX 32
#define GROWTH_DOUBLES_EVERY 4
/* A queue stands where the round trip is longer by this part, and a clump, than the shortest. */
#define FULL_PART 64
/* A queue that has stood for less than this and overflows is a moment's. */
#define HICCUP_ROUND_TRIPS 2

/*
 * For a while after a paced start at the limit the window follows the queue, not CUBIC: where none stands
 * before the bottleneck a part more each round trip, where one does no more. CUBIC would go on to a loss.
 * False when that while is over.
 */
static __always_inline bool fill(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 acked)
{
	__u32 rtt_us = tp->rtt_min.s[0].v;
	__u32 longer_us = (tp->srtt_us >> 3) - rtt_us;
	bool is_measured = path_of(memory)->is_bounded && !memory->is_guess;
	bool has_lost = is_recent(memory->lost_at_ns, tp, REPAIR_ROUND_TRIPS);
	__u32 part = GROWTH_PART_MIN;

	/* Slow start goes to what was guessed, or to a loss; and after a timeout to the threshold. */
	if (!is_soon_after_start(memory, tp, FILL_ROUND_TRIPS) || ca_state(tp) == TCP_CA_Loss ||
	    (!is_measured && tp->snd_cwnd < tp->snd_ssthresh))
		return false;
	memory->has_filled = 1;
	if (in_flight(tp) < tp->snd_cwnd / 4 * 3)
		return true;
	if ((__s32)longer_us > (__s32)(CLUMP_US + rtt_us / FULL_PART)) {
		path_of(memory)->is_bounded = 1; /* a queue stands: that is all it carries */
		memory->is_guess = 0;
	}
	if ((__s32)longer_us > CLUMP_US / 5 * 6) { /* the kernel paces a fifth faster than the window */
		if (!memory->queued_at_ns)
			memory->queued_at_ns = ack_ns(tp);
		return true;
	}
	memory->queued_at_ns = 0;
	if (has_lost || (__s32)longer_us > CLUMP_US ||
	    (is_measured && is_soon_after_start(memory, tp, GROWTH_DOUBLES_EVERY)))
		part = GROWTH_PART_MAX;
	else if ((__s32)longer_us > CLUMP_US / 2 ||
		 (is_measured && is_soon_after_start(memory, tp, 2 * GROWTH_DOUBLES_EVERY)))
		part = GROWTH_PART_MAX / 2;
	memory->credit += acked;
	if (tp->snd_cwnd < CWND_MAX)
		tp->snd_cwnd += memory->credit / part;
	memory->credit %= part;
	return true;
}

/*
 * The network lost something: the path's limit has been seen. Soon after a paced start, the rate believed
 * is too much (RFC 9959): an eighth less, or what is delivered while the loss is repaired, if that is more:
 * the queue is full then, and the rate the bottleneck's own. What began with a guess goes on as CUBIC does:
 * it may share the path with others, and has no claim to all that a train showed.
 */
static __always_inline void retreat(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);

	if (path->is_bounded && is_soon_after_start(memory, tp, SAFE_ROUND_TRIPS)) {
		/* How fast the start's own packets arrive is the path's rate now, be it half of what it was. */
		path->best_pps = best_pps(path) * 7ULL / 8;
		if (memory->train_pps && memory->train_pps < path->best_pps)
			path->best_pps = memory->train_pps;
		path->last_pps = 0;
		path->proven = 0;
		memory->has_retreated = 1;
	}
	path->is_bounded = 1;
	if (memory->is_guess)
		memory->restarted_at_ns = 0;
	memory->is_guess = 0;
	memory->queued_at_ns = bpf_ktime_get_ns();
}

/*
 * Whether a loss that has just come tells of a moment, not of the path: no queue stood two round trips ago,
 * and a queue that a window or a rate too large makes grows more slowly. A sender that was held up for some
 * milliseconds sends at twice its pace until it has made that good.
 */
static __always_inline bool is_hiccup(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	return !is_soon_after_start(memory, tp, SAFE_ROUND_TRIPS) &&
	       !is_recent(memory->lost_at_ns, tp, REPAIR_ROUND_TRIPS) &&
	       (!memory->queued_at_ns || is_recent(memory->queued_at_ns, tp, HICCUP_ROUND_TRIPS));
}

/*
 * The window after a loss, `cubic` by CUBIC's reckoning. While a paced start is being filled, how fast its
 * first packets came is known, and with them what the path carries now, be it shared or not: no less is
 * kept (as TCP Westwood does, here from a fresh measurement only), but for an eighth of what was too much.
 */
static __always_inline __u32 kept(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
				  __u32 cubic)
{
	__u64 carried = filling(tp, memory->train_pps);

	if (!memory->train_pps || memory->is_guess || !is_soon_after_start(memory, tp, FILL_ROUND_TRIPS))
		return cubic;
	if (!in_flight(tp)) /* a timeout */
		return cubic;
	if (is_hiccup(memory, tp))
		return tp->snd_cwnd - tp->snd_cwnd / GROWTH_PART_MAX;
	if (carried > tp->snd_cwnd / 8 * 7)
		carried = tp->snd_cwnd / 8 * 7;
	return carried > cubic ? carried : cubic;
}

/*
 * The same where slow start has lost: it may have doubled what fills the path. No more is kept than was
 * delivered, or the next loss follows at once.
 */
static __always_inline __u32 kept_of_slow_start(struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
						__u32 cubic)
{
	__u64 carried = filling(tp, best_pps(path_of(memory)));

	return !is_local(tp) && carried > cubic / 2 && carried < cubic ? carried : cubic;
}

#endif
