/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Parameters that are saved and restored per phase (GridMPI, Matsuda et al., section 3.1): rate,
 * window and threshold, for each phase of the program.
 *
 * The program names its phase with two stores to a page that it shares with the kernel. It makes no
 * call. A connection notices the change at its next acknowledgement or its next first packet.
 */
#ifndef KUMI_TCP_PHASE_H
#define KUMI_TCP_PHASE_H

#include "route.h"

static __always_inline __u32 phase_now(const struct kumi_tcp_memory *memory)
{
	const struct kumi_phase_page *page = page_of(memory->rank);
	__u32 phase;

	if (!page)
		return memory->phase;
	phase = *(const volatile __u32 *)&page->phase;
	return phase < KUMI_PHASES_MAX ? phase : KUMI_PHASES_MAX - 1;
}

/*
 * Returns whether all processes send to all in a phase: MPI_Alltoall, MPI_Ialltoall, and names that
 * begin like them.
 */
static __always_inline bool is_all_to_all(__u32 rank, __u32 phase)
{
	static const char starts[][12] = { "MPI_Alltoal", "MPI_Ialltoa" };
	const struct kumi_phase_page *page = page_of(rank);
	const volatile char *name;
	bool is_either = false;

	if (!page)
		return false;
	name = page->names[phase % KUMI_PHASES_MAX];
	for (int start = 0; start < 2; start++) {
		bool is_same = true;

		for (int at = 0; at < 11; at++)
			is_same &= name[at] == starts[start][at];
		is_either |= is_same;
	}
	return is_either;
}

/* Saves the parameters of the phase that ends. */
static __always_inline void leave(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);

	path->ssthresh = tp->snd_ssthresh;
	path->cwnd = tp->snd_cwnd;
	path->mode = memory->mode;
	path->rtt_us = rtt_min_us(tp);
}

/*
 * Restores the parameters of the phase that begins. A known rate is held. Without one, the window
 * and the threshold are those with which the phase ended, or those of a new connection. If they are
 * old, or the path has changed, the connection continues unchanged.
 */
static __always_inline void enter(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);

	if (!path->acked_at_ns) {
		memory->mode = SEARCH;
		tp->snd_ssthresh = TCP_INFINITE_SSTHRESH;
		if (tp->snd_cwnd > TRAIN)
			set_window(tp, TRAIN);
		return;
	}
	if (!is_fresh(path->acked_at_ns) || !is_same_path(path->rtt_us, fresh_rtt_us(tp))) {
		if (memory->mode == HOLD) /* at another phase's rate */
			compete(memory, sk, tp->snd_cwnd);
		return;
	}
	COUNT(switches);
	if (path->is_bounded && is_spaced(tp) && has(KUMI_TCP_PACED_RESTART)) {
		memory->confirm_rtt_us = path->rtt_us;
		memory->skipped++;
		hold(memory, sk, true);
		return;
	}
	compete(memory, sk, path->cwnd);
	if (path->ssthresh != TCP_INFINITE_SSTHRESH)
		tp->snd_ssthresh = path->ssthresh;
	if (path->mode == SEARCH) {
		memory->mode = SEARCH;
		tp->snd_ssthresh = path->ssthresh;
	}
}

/*
 * Attributes a loss right after the start of a phase to the phase before, which sent these packets.
 * Its saved window was too large.
 */
static __always_inline void blame_phase_before(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *before = &memory->phases[memory->phase_before % KUMI_PHASES_MAX];

	if (!is_recent(memory->entered_at_ns, tp) || memory->phase_before == memory->phase)
		return;
	before->ssthresh = cubic_ssthresh(before->cwnd);
	before->cwnd = before->ssthresh;
	memory->entered_at_ns = 0; /* one cut a change */
}

/*
 * Notices a change of phase and switches the parameters. Not during a repair: the kernel then
 * computes its sending from the threshold.
 */
static __always_inline void follow_phase(struct kumi_tcp_memory *memory, struct sock *sk)
{
	__u32 phase = phase_now(memory);

	if (phase == memory->phase || ca_state(tcp_sk(sk)) >= TCP_CA_CWR)
		return;
	end_share(memory, sk);
	leave(memory, tcp_sk(sk));
	memory->phase_before = memory->phase;
	memory->entered_at_ns = bpf_ktime_get_ns();
	memory->phase = phase;
	memory->is_crowded = is_all_to_all(memory->rank, phase);
	begin_round(memory, tcp_sk(sk)->delivered + tcp_sk(sk)->packets_out);
	enter(memory, sk);
}

#endif
