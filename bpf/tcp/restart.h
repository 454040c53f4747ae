/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Starts at the path's known rate (GridMPI, Matsuda et al., section 3.2), per phase. After idle
 * time, and at the first data of a connection to a known host, the window is rate x round trip, and
 * paced. On an unknown path, slow start goes as far as its own first packets show.
 */
#ifndef KUMI_TCP_RESTART_H
#define KUMI_TCP_RESTART_H

#include "pace.h"

/* Lowest guess for the end of slow start. With less, the program may just have written slowly. */
#define GUESS_MIN 80
/*
 * Reciprocal of the excess over the best rate that a restart at the limit tries. It is a third of
 * the depth of a shallow buffer (a tenth of the path), because the kernel's clumps need the rest.
 * It is doubled if the last restart met no queue.
 */
#define PROBE_PART 32
/* Lowest window, the kernel's initial one. */
#define INITIAL_CWND 10

/*
 * Records that the kernel is about to reduce the window after silence. The memory may be too old by
 * now.
 */
static __always_inline void note_silence(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	memory->cwnd_before = tp->snd_cwnd;
	if (has(KUMI_TCP_PACED_RESTART))
		memory->is_idle = is_fresh(path_of(memory)->acked_at_ns);
}

/*
 * Restores the window after a short silence. The kernel halves it for every retransmission timeout
 * of silence. Short timeouts exist for losses. A silence shorter than the kernel's own floor is
 * forgiven. Otherwise programs that send little and often never leave slow start (LU and MG of
 * Matsuda et al., section 4.5).
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
 * Restarts after silence, when the first packet has been sent. The others follow at the path's
 * known rate, as many as fill it. The former window may be far lower (CUBIC was recovering from a
 * loss) or higher (it included packets in queues). The delivery rate is the better measure.
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
	 * Short bursts never show all of a path. The rate grows by half each time, until a burst
	 * arrives more slowly than it was sent. Doubling would overflow a shallow buffer before
	 * that shows. Only twice the proven burst goes at the new rate (`hold_first`), and the
	 * window has room for it.
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

/* Ends slow start at the guess `cwnd`. `fill` finds a higher rate, if there is one. */
static __always_inline void guess(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 cwnd)
{
	tp->snd_ssthresh = cwnd > tp->snd_cwnd ? cwnd : tp->snd_cwnd;
	memory->is_guess = 1;
	memory->restarted_at_ns = bpf_ktime_get_ns();
}

/*
 * Checks with the first sample after a start whether the path is the measured one. If not, the
 * memory does not count (RFC 9959, safe retreat). The connection continues as a new one, whose slow
 * start ends at half of the remembered rate.
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
 * Starts a connection's first data at half of the route's last rate, or of the administrator's
 * (section 3.2: half the bottleneck). There is no slow start beyond, so a shallow buffer is not
 * flooded.
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
	if (is_bounded) { /* `fill` finds a higher rate */
		path_of(memory)->is_bounded = 1;
		tp->snd_ssthresh = cwnd;
	}
	pace(memory, sk, pps, cwnd, true);
}

/*
 * Ends slow start at the rate of its first train. Otherwise it would double a window that fills the
 * path, and overflow a shallow buffer.
 */
static __always_inline void bound_slow_start(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	__u64 carried = filling(tp, memory->train_pps);

	if (has(KUMI_TCP_PACED_RESTART) && !is_local(tp) && memory->is_clump && carried >= GUESS_MIN &&
	    tp->snd_cwnd < tp->snd_ssthresh && carried < tp->snd_ssthresh)
		guess(memory, tp, carried);
}

#endif
