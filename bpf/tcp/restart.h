/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Starting at the rate the path is known to carry (Matsuda et al., section 3.2), per phase: after idle time,
 * and at the first data of a connection to a known host, the window is set to rate x round trip and spaced out.
 * Where nothing is known, slow start goes as far as its own first packets show the path to be wide.
 */
#ifndef KUMI_TCP_RESTART_H
#define KUMI_TCP_RESTART_H

#include "pace.h"

/* What is guessed for slow start's end is at least this: less, and the program may have written slowly. */
#define GUESS_MIN 80
/*
 * A restart at the limit asks for so much more than the best rate: a third of what a shallow buffer (a
 * tenth of the path) is deep, as the kernel sends in clumps that need the rest. Twice that, if the last one
 * met no queue.
 */
#define PROBE_PART 32
/* No window below what the kernel begins with. */
#define INITIAL_CWND 10

/* The window is about to be cut for silence; what is remembered may be too old by now. */
static __always_inline void note_silence(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	memory->cwnd_before = tp->snd_cwnd;
	if (has(KUMI_TCP_PACED_RESTART))
		memory->is_idle = is_fresh(path_of(memory)->acked_at_ns);
}

/*
 * The kernel halves the window for every retransmission timeout of silence. Short timeouts are for what is
 * lost: a silence that the kernel's own floor would have forgiven is forgiven, or programs that send little
 * and often never get beyond slow start (LU and MG of Matsuda et al., section 4.5).
 */
static __always_inline void forgive_silence(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	__u64 silent_ns = bpf_ktime_get_ns() - path_of(memory)->acked_at_ns;
	__u64 floor_us = RTO_MIN_KERNEL_US + (tp->srtt_us >> 3);
	__u32 cwnd = memory->cwnd_before;

	if (!has(KUMI_TCP_SHORT_RTO) || is_local(tp) || silent_ns >= floor_us * 1000)
		return;
	memory->is_idle = 0; /* nor is it asked for more than the window that was enough */
	if (cwnd > tp->snd_cwnd)
		set_window(tp, cwnd);
}

/*
 * The first packet after silence has been sent: the others follow at the rate the path has carried,
 * as many as fill it. The window it had may be far less (CUBIC may have been climbing back from a
 * loss) or more (what stood in queues need not be sent again): the delivery rate knows.
 */
static __always_inline void restart(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 rtt_us = tp->rtt_min.s[0].v;
	__u64 pps = best_pps(path);
	__u32 proven_cwnd, cwnd;

	if (!memory->is_idle)
		return;
	memory->is_idle = 0;
	/*
	 * Short bursts never show all of a path: half as much again each time, until one comes slower than it
	 * was sent. Twice as much would overflow a shallow buffer before that shows. Only as many packets go at
	 * that rate as have been proven, twice (`hold_first`): the window has room for these.
	 */
	proven_cwnd = packets_of(pps, rtt_us + CLUMP_US / 4);
	if (!path->is_bounded)
		pps += pps / 2;
	else
		pps += pps / (!memory->queued_at_ns ? PROBE_PART / 2 : PROBE_PART);
	cwnd = packets_of(pps, rtt_us + CLUMP_US / 4);
	if (!path->is_bounded && cwnd > proven_cwnd + at_once(path))
		cwnd = proven_cwnd + at_once(path);
	if (is_local(tp) || cwnd <= tp->snd_cwnd)
		return;
	if (path->is_bounded) /* more is not there: no slow start beyond */
		tp->snd_ssthresh = cwnd;
	pace(memory, sk, pps, cwnd, false);
	memory->confirm_rtt_us = rtt_us;
}

/* Slow start ends at `cwnd`, which is a guess: what more there is, `fill` finds. */
static __always_inline void guess(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 cwnd)
{
	tp->snd_ssthresh = cwnd > tp->snd_cwnd ? cwnd : tp->snd_cwnd;
	memory->is_guess = 1;
	memory->restarted_at_ns = bpf_ktime_get_ns();
}

/*
 * The first sample after a start says whether the path is the one that was measured. If not, what is
 * remembered does not count (RFC 9959, safe retreat): the connection goes on as a new one, whose slow start ends
 * where half of that rate would.
 */
static __always_inline void confirm(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __s32 sample_us)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 then_us = memory->confirm_rtt_us;
	__u32 half;

	if (!then_us || sample_us <= 0)
		return;
	memory->confirm_rtt_us = 0;
	if (is_same_path(then_us, sample_us))
		return;
	half = packets_of(best_pps(path), sample_us) / 2;
	path->best_pps = 0;
	path->last_pps = 0;
	path->is_bounded = 0;
	path->proven = 0;
	memory->restarted_at_ns = 0;
	memory->paced_pps = 0;
	memory->is_guess = 0;
	tp->snd_ssthresh = TCP_INFINITE_SSTHRESH;
	set_window(tp, INITIAL_CWND);
	if (half > INITIAL_CWND)
		guess(memory, tp, half);
}

/*
 * The first data of a connection. Half of what the route carried the last time, or of what the
 * administrator says it carries (section 3.2: half the bottleneck), and no slow start beyond: a shallow
 * buffer is not flooded.
 */
static __always_inline void begin(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_route *route;
	__u64 rtt_us = tp->srtt_us >> 3;
	struct route_key key = {};
	bool is_bounded = true;
	__u64 pps = 0;
	__u32 cwnd;

	route_key(&key, sk);
	route = bpf_map_lookup_elem(&routes, &key);
	if (route && is_fresh(route->at_ns) && is_same_path(route->rtt_us, rtt_us)) {
		pps = route->pps / 2;
		is_bounded = route->is_bounded;
	} else if (tp->mss_cache) {
		pps = settings.first_bytes_ps / tp->mss_cache;
	}
	cwnd = packets_of(pps, rtt_us);
	if (rtt_us < LOCAL_RTT_US || cwnd <= INITIAL_CWND || cwnd <= tp->snd_cwnd)
		return;
	path_of(memory)->best_pps = pps < PPS_MAX ? pps : PPS_MAX;
	if (is_bounded) { /* what more there is, `fill` finds */
		path_of(memory)->is_bounded = 1;
		tp->snd_ssthresh = cwnd;
	}
	pace(memory, sk, pps, cwnd, true);
}

/*
 * Slow start goes no further than its first train has shown the path to be wide: it would double a window
 * that fills the path, and overflow a shallow buffer.
 */
static __always_inline void bound_slow_start(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	__u64 carried = filling(tp, memory->train_pps);

	if (has(KUMI_TCP_PACED_RESTART) && !is_local(tp) && memory->is_clump && carried >= GUESS_MIN &&
	    tp->snd_cwnd < tp->snd_ssthresh && carried < tp->snd_ssthresh)
		guess(memory, tp, carried);
}

#endif
