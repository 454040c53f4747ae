/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Detects and corrects windows and thresholds that no program has set.
 *
 * A kernel may skip a program. The trampoline then returns an undefined word of its stack as the
 * program's result (docs/kernel-report.md). As the result of `ssthresh` or `undo_cwnd`, that word
 * becomes a window of up to 2^31 packets. Every callback therefore compares both values with those
 * that the previous callback left in the socket's storage.
 *
 * Between two callbacks the kernel lowers the window, sets it to the threshold, or restores the
 * values from before the last cut. None of these exceeds `ceiling`, the largest value since the cut
 * before.
 */
#ifndef KUMI_TCP_SANE_H
#define KUMI_TCP_SANE_H

#include "path.h"

/*
 * Packets by which the kernel may exceed the window: a tail loss probe, a retransmission, a clump.
 */
#define SLACK 16
/* Lowest threshold of the kernel's algorithms. */
#define SSTHRESH_MIN 2
/* CUBIC's window after a loss, relative to the one before: 717/1024 (tcp_cubic.c, `beta`). */
#define BETA 717
#define BETA_SCALE 1024

static __always_inline bool is_sane_cwnd(const struct kumi_tcp_memory *memory, __u32 cwnd)
{
	return cwnd && cwnd <= memory->ceiling + SLACK;
}

static __always_inline bool is_sane_ssthresh(const struct kumi_tcp_memory *memory, __u32 ssthresh)
{
	return ssthresh == memory->ssthresh || ssthresh == TCP_INFINITE_SSTHRESH ||
	       (ssthresh >= SSTHRESH_MIN && ssthresh <= memory->ceiling + SLACK);
}

/* Returns the threshold that CUBIC sets after a loss at `cwnd` packets. */
static __always_inline __u32 cubic_ssthresh(__u32 cwnd)
{
	__u32 ssthresh = (__u64)cwnd * BETA / BETA_SCALE;

	return ssthresh > SSTHRESH_MIN ? ssthresh : SSTHRESH_MIN;
}

/* Replaces a window or a threshold that no program has set. Every callback starts with this. */
static __always_inline void mend(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	/*
	 * Read once. For a choice between two pointers clang emits one load, which the verifier
	 * refuses.
	 */
	__u32 ceiling = *(const volatile __u32 *)&memory->ceiling;
	__u32 before = tp->prior_cwnd;
	bool is_cut = ca_state(tp) >= TCP_CA_CWR;
	bool has_cwnd = is_sane_cwnd(memory, tp->snd_cwnd);
	bool has_ssthresh = is_sane_ssthresh(memory, tp->snd_ssthresh);
	__u32 flying = in_flight(tp);

	if (!ceiling || (has_cwnd && has_ssthresh))
		return;
	COUNT(mended);
	if (!is_sane_cwnd(memory, before))
		before = ceiling;
	/* A window equal to the threshold shows that a cut is complete. */
	if (!has_ssthresh)
		tp->snd_ssthresh = is_cut || !has_cwnd ? cubic_ssthresh(before) : memory->ssthresh;
	if (has_cwnd)
		return;
	if (is_cut) /* the kernel sets it anew with every acknowledgement until the repair is complete */
		set_window(tp, flying > SSTHRESH_MIN && flying < before ? flying : SSTHRESH_MIN);
	else
		set_window(tp, has_ssthresh ? before : tp->snd_ssthresh);
}

/*
 * Records window and threshold at the end of a callback. Every callback that sets one ends with
 * this.
 */
static __always_inline void approve(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 ssthresh = tp->snd_ssthresh;

	if (tp->snd_cwnd > memory->ceiling)
		memory->ceiling = tp->snd_cwnd;
	if (ssthresh != TCP_INFINITE_SSTHRESH && ssthresh > memory->ceiling)
		memory->ceiling = ssthresh;
	memory->ssthresh = ssthresh;
}

/*
 * The same when the kernel sets `ssthresh` now, after a loss with the window `cwnd`: the values
 * before this cut may be restored later.
 */
static __always_inline void approve_cut(struct kumi_tcp_memory *memory, const struct tcp_sock *tp, __u32 cwnd,
					__u32 ssthresh)
{
	__u32 before = tp->snd_ssthresh;

	memory->ceiling = cwnd;
	if (before != TCP_INFINITE_SSTHRESH && before > memory->ceiling)
		memory->ceiling = before;
	memory->ssthresh = ssthresh;
}

#endif
