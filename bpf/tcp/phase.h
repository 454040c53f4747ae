/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Parameters saved and restored per phase (Matsuda et al., section 3.1): threshold, window, delivery
 * rate and round trip together, for as many phases as the program has.
 *
 * The program says its phase with one store to a page it shares with the kernel; nothing is called.
 * A connection notices at its next acknowledgement or at its next first packet.
 */
#ifndef KUMI_TCP_PHASE_H
#define KUMI_TCP_PHASE_H

#include "restart.h"

static __always_inline __u32 phase_now(const struct kumi_tcp_memory *memory)
{
	const struct kumi_phase_page *page = page_of(memory->rank);
	__u32 phase;

	if (!page)
		return memory->phase;
	phase = *(const volatile __u32 *)&page->phase;
	return phase < KUMI_PHASES_MAX ? phase : KUMI_PHASES_MAX - 1;
}

/* Puts down what the phase being left knows. */
static __always_inline void leave(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);

	path->ssthresh = tp->snd_ssthresh;
	path->cwnd = tp->snd_cwnd;
	path->rtt_us = tp->rtt_min.s[0].v;
}

/*
 * Takes up what the phase being entered knew. Where it knew nothing, or the path is another by now, the
 * connection goes on as it was.
 */
static __always_inline void enter(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	const struct kumi_tcp_path *path = path_of(memory);
	__u64 rtt_us = tp->rtt_min.s[0].v;
	__u32 steady, cwnd;
	__u64 pps;

	memory->is_idle = 0;
	if (!path->rtt_us || !is_fresh(path->acked_at_ns) ||
	    !is_same_path(path->rtt_us, rtt_us))
		return;
	if (is_local(tp)) { /* windows are small, and many share the port: as it was left */
		tp->snd_ssthresh = path->ssthresh;
		tp->snd_cwnd = path->cwnd;
		COUNT(switches);
		return;
	}
	pps = best_pps(path);
	cwnd = pps * rtt_us / 1000000;
	/* What CUBIC held, where that is more: it includes what stood in queues to keep the link busy. */
	steady = path->ssthresh < path->cwnd ? path->ssthresh : path->cwnd;
	if (cwnd < steady)
		cwnd = steady;
	if (!pps || cwnd < 2)
		return;
	tp->snd_ssthresh = path->ssthresh;
	COUNT(switches);
	if (cwnd > tp->snd_cwnd)
		pace(memory, sk, pps, cwnd, false);
	else
		tp->snd_cwnd = cwnd;
}

/* Whether the phase has changed; if so, the parameters have too. */
static __always_inline void follow_phase(struct kumi_tcp_memory *memory, struct sock *sk)
{
	__u32 phase = phase_now(memory);

	if (phase == memory->phase)
		return;
	leave(memory, tcp_sk(sk));
	memory->phase = phase;
	enter(memory, sk);
}

#endif
