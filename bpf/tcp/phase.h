/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Parameters that are saved and restored per phase (GridMPI, Matsuda et al., section 3.1):
 * threshold, window, delivery rate and round trip, for each phase of the program.
 *
 * The program names its phase with one store to a page that it shares with the kernel. It makes no
 * call. A connection notices the change at its next acknowledgement or its next first packet.
 */
#ifndef KUMI_TCP_PHASE_H
#define KUMI_TCP_PHASE_H

#include "fill.h"
#include "sane.h"

static __always_inline __u32 phase_now(const struct kumi_tcp_memory *memory)
{
	const struct kumi_phase_page *page = page_of(memory->rank);
	__u32 phase;

	if (!page)
		return memory->phase;
	phase = *(const volatile __u32 *)&page->phase;
	return phase < KUMI_PHASES_MAX ? phase : KUMI_PHASES_MAX - 1;
}

/* Saves the parameters of the phase that ends. */
static __always_inline void leave(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);

	path->ssthresh = tp->snd_ssthresh;
	/* Not the window that remained after the silence in which the program computed. */
	path->cwnd = memory->cwnd_before > tp->snd_cwnd ? memory->cwnd_before : tp->snd_cwnd;
	path->rtt_us = tp->rtt_min.s[0].v;
}

/*
 * Enters a phase without saved parameters as a new connection: the loss of another phase is no
 * threshold for it. Slow start ends at half of `pps`, the other phase's rate, if that is high.
 */
static __always_inline void enter_first(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 pps)
{
	__u32 half = packets_of(pps, tp->rtt_min.s[0].v) / 2;

	if (is_local(tp) || !has(KUMI_TCP_PACED_RESTART))
		return;
	tp->snd_ssthresh = TCP_INFINITE_SSTHRESH;
	memory->restarted_at_ns = bpf_ktime_get_ns(); /* `fill` recovers losses of the other phase */
	if (tp->snd_cwnd > FIRST_TRAIN_MAX)
		set_window(tp, FIRST_TRAIN_MAX);
	if (half >= GUESS_MIN)
		guess(memory, tp, half);
}

/*
 * Restores the parameters of the phase that begins. If they are old, or the path has changed, the
 * connection continues unchanged.
 */
static __always_inline void enter(struct kumi_tcp_memory *memory, struct sock *sk, __u32 other_pps)
{
	struct tcp_sock *tp = tcp_sk(sk);
	const struct kumi_tcp_path *path = path_of(memory);
	__u64 rtt_us = tp->rtt_min.s[0].v;
	__u32 steady, cwnd;
	__u64 pps;

	memory->is_idle = 0;
	if (!path->acked_at_ns) {
		enter_first(memory, tp, other_pps);
		return;
	}
	if (!is_fresh(path->acked_at_ns) || !is_same_path(path->rtt_us, fresh_rtt_us(tp)))
		return;
	if (is_local(tp)) { /* windows are small, and many share the port: as it was left */
		tp->snd_ssthresh = path->ssthresh;
		set_window(tp, path->cwnd);
		COUNT(switches);
		return;
	}
	pps = best_pps(path);
	cwnd = packets_of(pps, rtt_us);
	/*
	 * CUBIC's value, if it is higher: it includes packets that stood in queues, and a part of
	 * these counts.
	 */
	steady = path->ssthresh < path->cwnd ? path->ssthresh : path->cwnd;
	if (cwnd < steady)
		cwnd = pps && steady > cwnd + cwnd / PROBE_PART ? cwnd + cwnd / PROBE_PART : steady;
	/* The last window, if it is a little less: the highest rate of all was momentary. */
	if (path->cwnd < cwnd && path->cwnd > cwnd / 3 * 2)
		cwnd = path->cwnd;
	tp->snd_ssthresh = path->ssthresh;
	COUNT(switches);
	if (!pps || cwnd < 2) /* it sent too little to show a rate: the window is as good as any */
		return;
	/*
	 * The last packets of another phase, of this rank or others, may still be in flight. `fill`
	 * continues.
	 */
	cwnd -= cwnd / PROBE_PART;
	/*
	 * A window below the rate's is also sent more slowly. Otherwise the buffer would overflow
	 * within it.
	 */
	if (pps > cwnd * 1000000ULL / rtt_us)
		pps = cwnd * 1000000ULL / rtt_us;
	if (cwnd > tp->snd_cwnd || !in_flight(tp)) {
		pace(memory, sk, pps, cwnd, false);
		memory->confirm_rtt_us = path->rtt_us;
	} else
		set_window(tp, cwnd);
	if (in_flight(tp))
		memory->paced_pps = 0; /* the next acknowledgement has the kernel set the rate */
}

/* Forgets the last phase's start and trains, which do not apply to the next one. */
static __always_inline void forget_start(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	new_sample_pps(memory, tp);
	memory->restarted_at_ns = 0;
	memory->is_guess = 0;
	memory->paced_pps = 0;
	memory->burst_before_pps = 0;
	memory->train_pps = 0;
	/* Packets in flight are no train. The next train starts when the path is empty again. */
	memory->train_at_ns = in_flight(tp) ? 1 : 0;
}

/*
 * Attributes a loss right after the start of a phase to the phase before, which sent these packets.
 * Its saved window was too large.
 */
static __always_inline void blame_phase_before(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *before = &memory->phases[memory->phase_before % KUMI_PHASES_MAX];

	if (!is_recent(memory->entered_at_ns, tp, 1) || memory->phase_before == memory->phase)
		return;
	before->ssthresh = cubic_ssthresh(before->cwnd);
	before->cwnd = before->ssthresh;
	before->best_pps = best_pps(before) * 7ULL / 8;
	before->last_pps = 0;
	before->is_bounded = 1;
	memory->entered_at_ns = 0; /* one cut a change */
}

/*
 * Notices a change of phase and switches the parameters. Not during a repair: the kernel then
 * computes its sending from the threshold.
 */
static __always_inline void follow_phase(struct kumi_tcp_memory *memory, struct sock *sk)
{
	__u32 phase = phase_now(memory);
	__u32 pps;

	if (phase == memory->phase || ca_state(tcp_sk(sk)) >= TCP_CA_CWR)
		return;
	leave(memory, tcp_sk(sk));
	pps = best_pps(path_of(memory));
	memory->phase_before = memory->phase;
	memory->entered_at_ns = bpf_ktime_get_ns();
	memory->phase = phase;
	forget_start(memory, tcp_sk(sk));
	enter(memory, sk, pps);
}

#endif
