/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Paces packets with the kernel's timers, while acknowledgements do not clock them yet, or after a
 * window has opened at once. Where queues are deep enough, a timer per clump costs more than the
 * clump.
 */
#ifndef KUMI_TCP_PACE_H
#define KUMI_TCP_PACE_H

#include "path.h"
#include "rate.h"

/* Most packets that leave at once, the kernel's own initial window. */
#define CLUMP_MAX 10
/* The same while the path is unknown: a train that shows the bottleneck rate. */
#define FIRST_TRAIN_MAX 20
/* Round trips after which acknowledgements have the spacing of the path's packets. */
#define CLOCKED_ROUND_TRIPS 2
/* Round trips of a repair and of the window that opens at once after it. */
#define REPAIR_ROUND_TRIPS 8
/* Round trips after a paced start at the path's limit until CUBIC takes over. */
#define FILL_ROUND_TRIPS 32
/*
 * Reciprocal of the excess over the path's known rate while a start is filled. The excess finds a
 * higher rate, if there is one.
 */
#define HELD_PART 32
/* Fewest packets that a pacing timer sends, as in the kernel (tcp_min_tso_segs). */
#define CLUMP_MIN 2

/*
 * Sets the pacing rate to `bytes_ps`, until an acknowledgement makes the kernel compute it again.
 * Kernels before 6.0 do not allow writing the rate. There, the upper limit of the rate is written
 * instead, and `uncap` removes it again.
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
 * Spaces packets out. With nothing in flight, a whole window is sent at once. Slow start sends
 * clumps of twice the acknowledged amount. The end of a repair opens the window at once. A shallow
 * buffer overflows with each of these before the path is full. Within a cluster the timers would
 * cost more than the clumps. They would too when acknowledgements clock the sending.
 */
static __always_inline void space_out(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	bool is_clumped;

	if (!has(KUMI_TCP_PACED_RESTART) || !has(KUMI_TCP_WRITES_PACING))
		return;
	is_clumped =
		!is_local(tp) && tp->snd_cwnd > (is_known(memory) ? CLUMP_MAX : FIRST_TRAIN_MAX) &&
		(tp->snd_cwnd < tp->snd_ssthresh || is_recent(memory->began_at_ns, tp, CLOCKED_ROUND_TRIPS) ||
		 is_recent(memory->lost_at_ns, tp, REPAIR_ROUND_TRIPS) ||
		 is_soon_after_start(memory, tp, FILL_ROUND_TRIPS));
	if (is_clumped && sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	/*
	 * A program that has set its own limit (SO_MAX_PACING_RATE) keeps it. While the next packet
	 * waits, nothing changes: it would carry the time at which it was due, and make the round
	 * trip seem too short.
	 */
	if (!is_clumped && sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL &&
	    tp->tcp_wstamp_ns <= bpf_ktime_get_ns())
		sk->sk_pacing_status = SK_PACING_NONE;
}

/*
 * Spaces out the packets after the first one on an empty path. The kernel would pace them by window
 * and round trip, which is less than the path's rate if messages are short.
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

/* Sets the window to `cwnd` and paces it at `pps`, which was measured or guessed. */
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

/*
 * Returns the packets that may exceed the proven rate: twice the proven burst, and a first train.
 */
static __always_inline __u32 at_once(const struct kumi_tcp_path *path)
{
	__u32 proven = path->proven < CWND_MAX ? path->proven : CWND_MAX;

	return 2 * proven > 2 * TRAIN_MIN ? 2 * proven : 2 * TRAIN_MIN;
}

/*
 * Limits the rate before the first acknowledgement of a start, when nothing shows whether the rate
 * is too high. Rates of short trains are easily too high by an eighth. Packets beyond twice the
 * proven burst go more slowly by that much.
 */
static __always_inline void hold_first(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = path_of(memory);
	const struct tcp_sock *tp = tcp_sk(sk);
	__u64 pps = best_pps(path);

	if (!memory->paced_pps || memory->is_guess || memory->train_at_ns || tp->packets_out < at_once(path))
		return;
	if (path->is_bounded)
		pps -= pps / 8;
	if (pps >= memory->paced_pps)
		return;
	memory->paced_pps = pps;
	set_pacing(memory, sk, pps * tp->mss_cache);
}

/*
 * Limits the rate before the kernel sends. Since the last acknowledgement the kernel paces a fifth
 * faster than the window requires. While a start is filled, the rate is at most the path's known
 * rate plus a little. A sender that was delayed has room in its window and would send all of it
 * into the bottleneck's queue. At the path's own rate, it sends that when the gap that it left
 * returns as a gap between acknowledgements.
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
