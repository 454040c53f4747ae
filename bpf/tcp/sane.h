/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Windows and thresholds that no program has set.
 *
 * A kernel may leave a program out: the trampoline then takes an undefined word of its stack for the
 * program's result (docs/kernel-report.md). As `ssthresh` or `undo_cwnd` that word becomes a window of up
 * to 2^31 packets. So every callback compares both values with the ones that the last callback left,
 * which stand in the socket's storage.
 *
 * Between two callbacks the kernel lowers the window, sets it to the threshold, or restores the ones from
 * before the last cut. None of that exceeds `ceiling`, the largest value since the cut before.
 */
#ifndef KUMI_TCP_SANE_H
#define KUMI_TCP_SANE_H

#include "path.h"

/* Packets by which the kernel may exceed the window: a tail loss probe, a retransmission, a clump. */
#define SLACK 16
/* The kernel's algorithms return no threshold below this. */
#define SSTHRESH_MIN 2
/* CUBIC's window after a loss, as a part of the one before: 717/1024 (tcp_cubic.c, `beta`). */
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

/* The threshold that CUBIC sets after a loss at `cwnd` packets. */
static __always_inline __u32 cubic_ssthresh(__u32 cwnd)
{
	__u32 ssthresh = (__u64)cwnd * BETA / BETA_SCALE;

	return ssthresh > SSTHRESH_MIN ? ssthresh : SSTHRESH_MIN;
}

/* Replaces a window or a threshold that no program has set. Every callback begins with this. */
static __always_inline void mend(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	/* Read at once: the verifier refuses one load for either of two pointers, which clang makes of a choice. */
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
	/* A window that became the threshold tells of a cut that is complete. */
	if (!has_ssthresh)
		tp->snd_ssthresh = is_cut || !has_cwnd ? cubic_ssthresh(before) : memory->ssthresh;
	if (has_cwnd)
		return;
	if (is_cut) /* the kernel sets it anew with every acknowledgement until the repair is complete */
		set_window(tp, flying > SSTHRESH_MIN && flying < before ? flying : SSTHRESH_MIN);
	else
		set_window(tp, has_ssthresh ? before : tp->snd_ssthresh);
}

/* Records window and threshold as this callback leaves them. Every callback that sets one ends with this. */
static __always_inline void approve(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 ssthresh = tp->snd_ssthresh;

	if (tp->snd_cwnd > memory->ceiling)
		memory->ceiling = tp->snd_cwnd;
	if (ssthresh != TCP_INFINITE_SSTHRESH && ssthresh > memory->ceiling)
		memory->ceiling = ssthresh;
	memory->ssthresh = ssthresh;
}

/* The same where a loss has the kernel set `ssthresh` now: what was before this cut may be restored. */
static __always_inline void approve_cut(struct kumi_tcp_memory *memory, const struct tcp_sock *tp, __u32 ssthresh)
{
	__u32 before = tp->snd_ssthresh;

	memory->ceiling = tp->snd_cwnd;
	if (before != TCP_INFINITE_SSTHRESH && before > memory->ceiling)
		memory->ceiling = before;
	memory->ssthresh = ssthresh;
}

#endif
