/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Spacing packets out: by the kernel's timers, and only while acknowledgements do not yet do it or a window has
 * just opened at a stroke; a timer a clump costs more than the clump where queues are deep enough.
 */
#ifndef KUMI_TCP_PACE_H
#define KUMI_TCP_PACE_H

#include "path.h"
#include "rate.h"

/* So many packets may go at once, as the kernel lets every connection begin. */
#define CLUMP_MAX 10
/* So many while nothing is known of the path: a train that shows the bottleneck's rate. */
#define FIRST_TRAIN_MAX 20
/* After so many round trips acknowledgements come as far apart as the path's packets. */
#define CLOCKED_ROUND_TRIPS 2
/* So many take a repair and the window that opens at once when it is done. */
#define REPAIR_ROUND_TRIPS 8
/* So many after a paced start at the path's limit, CUBIC decides again. */
#define FILL_ROUND_TRIPS 32
/* What is being filled is sent so much faster than the path is known to carry: that finds more, if there is. */
#define HELD_PART 32
/* Packets that a pacing timer sends at least, as the kernel has it (tcp_min_tso_segs). */
#define CLUMP_MIN 2

/*
 * Has what follows sent at `bytes_ps`, until an acknowledgement has the kernel set the rate anew. Where the rate may not be written
 * (before 6.0), the ceiling of the rate stands in for it: `uncap` lifts it again.
 */
static __always_inline void set_pacing(struct kumi_tcp_memory *memory, struct sock *sk, __u64 bytes_ps)
{
	int ceiling = bytes_ps < 0x7fffffff ? bytes_ps : 0x7fffffff;

	if (has(KUMI_TCP_WRITES_PACING)) {
		sk->sk_pacing_rate = bytes_ps < sk->sk_max_pacing_rate ? bytes_ps : sk->sk_max_pacing_rate;
		if (sk->sk_pacing_status == SK_PACING_NONE)
			sk->sk_pacing_status = SK_PACING_NEEDED;
		return;
	}
	bpf_setsockopt(sk, SOL_SOCKET, SO_MAX_PACING_RATE, &ceiling, sizeof(ceiling));
	memory->is_capped = 1;
}

static __always_inline void uncap(struct kumi_tcp_memory *memory, struct sock *sk)
{
	int none = -1;

	if (has(KUMI_TCP_WRITES_PACING) || !memory->is_capped)
		return;
	memory->is_capped = 0;
	bpf_setsockopt(sk, SOL_SOCKET, SO_MAX_PACING_RATE, &none, sizeof(none));
}

/*
 * With nothing under way, a whole window is sent at once, slow start sends in clumps of twice what was
 * acknowledged, and the end of a repair opens the window at a stroke: a shallow buffer overflows before the
 * path is full. Spaced out they fit. Within a cluster the timers would cost more than the clumps; so they
 * do where acknowledgements clock what is sent.
 */
static __always_inline void space_out(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	bool is_clumped;

	if (!has(KUMI_TCP_PACED_RESTART) || !has(KUMI_TCP_WRITES_PACING))
		return;
	is_clumped = !is_local(tp) && tp->snd_cwnd > (is_known(memory) ? CLUMP_MAX : FIRST_TRAIN_MAX) &&
		     (tp->snd_cwnd < tp->snd_ssthresh ||
		      is_recent(memory->began_at_ns, tp, CLOCKED_ROUND_TRIPS) ||
		      is_recent(memory->lost_at_ns, tp, REPAIR_ROUND_TRIPS) ||
		      is_soon_after_start(memory, tp, FILL_ROUND_TRIPS));
	if (is_clumped && sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	/*
	 * A program that has set a ceiling of its own (SO_MAX_PACING_RATE) keeps it. Nor while the next packet
	 * waits: it would bear the time at which it was to go, and make the round trip seem too short.
	 */
	if (!is_clumped && sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL &&
	    tp->tcp_wstamp_ns <= bpf_ktime_get_ns())
		sk->sk_pacing_status = SK_PACING_NONE;
}

/*
 * The first packet has been sent while none was under way. The kernel spaces the others out by the window
 * and the round trip, which are less than what the path carries where messages are short.
 */
static __always_inline void space_out_first(struct kumi_tcp_memory *memory, struct sock *sk)
{
	__u64 bytes_ps = (__u64)best_pps(path_of(memory)) * tcp_sk(sk)->mss_cache;

	space_out(memory, sk);
	memory->is_clump = sk->sk_pacing_status == SK_PACING_NONE;
	if (sk->sk_pacing_status != SK_PACING_NONE && bytes_ps > sk->sk_pacing_rate &&
	    has(KUMI_TCP_PACED_RESTART) && has(KUMI_TCP_WRITES_PACING) && !is_local(tcp_sk(sk)))
		set_pacing(memory, sk, bytes_ps);
}

/* Sets the window to `cwnd`, and has it sent at `pps`, which was measured or guessed. */
static __always_inline void pace(struct kumi_tcp_memory *memory, struct sock *sk, __u64 pps, __u32 cwnd,
				 bool is_guess)
{
	struct tcp_sock *tp = tcp_sk(sk);

	set_window(tp, cwnd);
	set_pacing(memory, sk, pps * tp->mss_cache);
	memory->restarted_at_ns = bpf_ktime_get_ns();
	memory->paced_pps = pps < PPS_MAX ? pps : PPS_MAX;
	memory->is_guess = is_guess;
	memory->paced++;
	COUNT(paced);
}

/* Packets that may go faster than trains as long have proven: twice as many as these, and a first train. */
static __always_inline __u32 at_once(const struct kumi_tcp_path *path)
{
	__u32 proven = path->proven < CWND_MAX ? path->proven : CWND_MAX;

	return 2 * proven > 2 * TRAIN_MIN ? 2 * proven : 2 * TRAIN_MIN;
}

/*
 * Before the first acknowledgement of a start nothing tells whether its rate is too much, and a rate that short
 * trains have shown is so by an eighth, easily: what exceeds them twice goes as much slower.
 */
static __always_inline void hold_first(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = path_of(memory);
	const struct tcp_sock *tp = tcp_sk(sk);
	__u64 pps = best_pps(path);

	if (!memory->paced_pps || memory->is_guess || memory->train_at_ns ||
	    tp->packets_out < at_once(path))
		return;
	if (path->is_bounded)
		pps -= pps / 8;
	if (pps >= memory->paced_pps)
		return;
	memory->paced_pps = pps;
	set_pacing(memory, sk, pps * tp->mss_cache);
}

/*
 * The kernel is about to send; since the last acknowledgement it paces a fifth faster than the window calls for.
 * While a start is being filled no faster than the path is known to carry, and a little: a sender that was held
 * up has room in its window, and would send all of that into the bottleneck's queue. At the path's own rate
 * it sends it when the gap that it left comes back as one of acknowledgements.
 */
static __always_inline void hold_pace(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = path_of(memory);
	const struct tcp_sock *tp = tcp_sk(sk);
	__u64 bytes_ps = (__u64)best_pps(path) * tp->mss_cache;

	bytes_ps += bytes_ps / HELD_PART;
	if (path->is_bounded && !memory->is_guess && bytes_ps && bytes_ps < sk->sk_pacing_rate &&
	    is_soon_after_start(memory, tp, FILL_ROUND_TRIPS))
		sk->sk_pacing_rate = bytes_ps;
}

#endif
