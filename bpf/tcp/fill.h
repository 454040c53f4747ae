/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * After a paced start, until CUBIC takes over: the window follows the queue at the bottleneck, and
 * a loss keeps the rate that the start has measured.
 *
 * in each round trip, while the start is filled:
 *   srtt > rtt_min * (1 + 1/FULL_PART) + one clump   a queue: hold cwnd
 *   otherwise                                        grow cwnd by cwnd / part
 */
#ifndef KUMI_TCP_FILL_H
#define KUMI_TCP_FILL_H

#include "restart.h"

/*
 * Reciprocal of the window's growth per round trip while a paced start is filled. For a guessed
 * rate it is 1/8. For a measured rate it is small at first, because a step must fit a shallow
 * buffer. It doubles each time this many round trips have passed without a queue, because the
 * measurement is then wrong. It is less while the path is half full, and small while the path is
 * full or has lost packets.
 */
#define GROWTH_PART_MIN 8
#define GROWTH_PART_MAX 32
#define GROWTH_DOUBLES_EVERY 4
/* A queue exists if the round trip exceeds the shortest by this part of it, plus one clump. */
#define FULL_PART 64
/* A queue younger than this that overflows does not show the path's rate. */
#define HICCUP_ROUND_TRIPS 2

/*
 * Sets the window after a paced start at the path's limit, instead of CUBIC. Without a queue at the
 * bottleneck, it grows cwnd by 1/part per round trip. With one, it holds cwnd, where CUBIC would
 * grow until a loss. Returns false when this period is over.
 */
static __always_inline bool fill(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 acked)
{
	__u32 rtt_us = tp->rtt_min.s[0].v;
	__u32 longer_us = (tp->srtt_us >> 3) - rtt_us;
	bool is_measured = path_of(memory)->is_bounded && !memory->is_guess;
	bool has_lost = is_recent(memory->lost_at_ns, tp, REPAIR_ROUND_TRIPS);
	__u32 part = GROWTH_PART_MIN;

	/* Slow start continues to the guess, or to a loss; after a timeout, to the threshold. */
	if (!is_soon_after_start(memory, tp, FILL_ROUND_TRIPS) || ca_state(tp) == TCP_CA_Loss ||
	    (!is_measured && tp->snd_cwnd < tp->snd_ssthresh))
		return false;
	memory->has_filled = 1;
	if (in_flight(tp) < tp->snd_cwnd / 4 * 3)
		return true;
	if ((__s32)longer_us > (__s32)(CLUMP_US + rtt_us / FULL_PART)) {
		path_of(memory)->is_bounded = 1; /* a queue: this is the path's rate */
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
 * Lowers the remembered rate after a loss, which shows the path's limit. Soon after a paced start,
 * the rate was too high (RFC 9959). It is reduced by an eighth, or to the rate delivered during the
 * repair, if that is higher: the queue is full then, and the rate is the bottleneck's. A connection
 * that began with a guess continues as CUBIC does. It may share the path, and has no claim to the
 * whole rate that a train showed.
 */
static __always_inline void retreat(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);

	if (path->is_bounded && is_soon_after_start(memory, tp, SAFE_ROUND_TRIPS)) {
		/*
		 * The arrival rate of the start's own packets is the path's present rate, even if
		 * it is half the former one.
		 */
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
 * Returns whether a loss came from a momentary burst. There was no queue two round trips ago, and
 * too large a window or rate builds a queue more slowly. A sender that was delayed for some
 * milliseconds sends at twice its pace to catch up.
 */
static __always_inline bool is_hiccup(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	return !is_soon_after_start(memory, tp, SAFE_ROUND_TRIPS) &&
	       !is_recent(memory->lost_at_ns, tp, REPAIR_ROUND_TRIPS) &&
	       (!memory->queued_at_ns || is_recent(memory->queued_at_ns, tp, HICCUP_ROUND_TRIPS));
}

/*
 * Returns the window after a loss; `cubic` is CUBIC's value. While a paced start is filled, the
 * arrival rate of its first packets is known, and with it the path's present rate, shared or not.
 * No less is kept (as TCP Westwood does, here only from a fresh measurement), except for an eighth
 * of the excess.
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
 * The same for a loss in slow start, which may have doubled a window that filled the path. The
 * window is at most the delivered amount; otherwise the next loss would follow at once.
 */
static __always_inline __u32 kept_of_slow_start(struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
						__u32 cubic)
{
	__u64 carried = filling(tp, best_pps(path_of(memory)));

	return !is_local(tp) && carried > cubic / 2 && carried < cubic ? carried : cubic;
}

#endif
