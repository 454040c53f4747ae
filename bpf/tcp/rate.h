/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Estimates the path's rate, in packets per second (ADR 014). Sources are the kernel's samples of
 * the delivery rate, the spacing of the acknowledgements of a short burst, and earlier connections
 * to the same host.
 */
#ifndef KUMI_TCP_RATE_H
#define KUMI_TCP_RATE_H

#include "path.h"

/* Round trips after a paced start within which a loss is attributed to it (RFC 9959). */
#define SAFE_ROUND_TRIPS 3
/* Interval at which a route is saved for later connections. */
#define SHARE_EVERY_NS 1000000000ULL
/* Fewest packets of a train that shows a rate. */
#define TRAIN_MIN 16
/* First value of the kernel's account of a sender's time (enum tcp_chrono) that means a buffer. */
#define HELD_UP_BY_BUFFER 2
/* Packets of a train long enough that clumps and timers do not matter: four times TRAIN_MIN. */
#define LONG_TRAIN 64
/*
 * Lowest window for which a train limits a path. A path with less per round trip is not limited by
 * one.
 */
#define CLUMP_MIN_WINDOW 10
/*
 * Fewest packets of slow start's first trains. A guess suffices there, and a receiver may
 * acknowledge many packets at once.
 */
#define FIRST_TRAIN_MIN 8

static __always_inline void route_key(struct route_key *key, const struct sock *sk)
{
	__u32 ipv4;

	key->net_cookie = BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie);
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6) {
		BPF_CORE_READ_INTO(key->remote, sk, __sk_common.skc_v6_daddr.in6_u.u6_addr8);
		return;
	}
	ipv4 = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	__builtin_memset(key->remote, 0, 10);
	key->remote[10] = key->remote[11] = 0xff;
	__builtin_memcpy(key->remote + 12, &ipv4, 4);
}

/*
 * Saves the path for later connections. A connection that has sent little knows little, so a lower
 * rate counts only if a start at the path's limit was too fast. A loss says nothing about the rate
 * of a slow phase.
 */
static __always_inline void share(struct kumi_tcp_memory *memory, const struct sock *sk, __u64 now_ns)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_route route = {}, *known;
	struct route_key key = {};

	route.at_ns = now_ns;
	route.pps = best_pps(path_of(memory));
	route.rtt_us = fresh_rtt_us(tp);
	route.is_bounded = path_of(memory)->is_bounded;
	if (!route.pps)
		return;
	memory->shared_at_ns = now_ns;
	route_key(&key, sk);
	known = bpf_map_lookup_elem(&routes, &key);
	if (!known || !is_fresh(known->at_ns) || !is_same_path(known->rtt_us, route.rtt_us) ||
	    route.pps >= known->pps || memory->has_retreated)
		bpf_map_update_elem(&routes, &key, &route, BPF_ANY);
	memory->has_retreated = 0;
}

/*
 * Returns the kernel's sample of the delivery rate, in packets per second; 0 if it was seen before.
 * The kernel keeps a sample while the program is slow, until there is a higher one. An old sample
 * of another phase, or from before a loss, must not count again.
 */
static __always_inline __u32 new_sample_pps(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 delivered = tp->rate_delivered, interval_us = tp->rate_interval_us;

	if (!interval_us || (delivered == memory->rate_delivered && interval_us == memory->rate_interval_us))
		return 0;
	memory->rate_delivered = delivered;
	memory->rate_interval_us = interval_us;
	return pps_of(delivered, interval_us * 1000ULL);
}

/* Learns the highest recent delivery rate: the rate that the path has shown. */
static __always_inline void learn(struct kumi_tcp_memory *memory, const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_path *path = path_of(memory);
	__u32 pps = new_sample_pps(memory, tp);
	__u64 now_ns = ack_ns(tp);

	path->acked_at_ns = now_ns;
	if (now_ns - path->span_began_ns > settings.memory_max_ns) {
		path->last_pps = path->best_pps;
		path->best_pps = 0;
		path->span_began_ns = now_ns;
	}
	/*
	 * Packets acknowledged right after a start with a loss were sent at the rate that was too
	 * high.
	 */
	if (pps > path->best_pps &&
	    !(is_recent(memory->lost_at_ns, tp, 2) && is_soon_after_start(memory, tp, SAFE_ROUND_TRIPS + 2)))
		path->best_pps = pps;
	if (has(KUMI_TCP_FIRST_TARGET) && now_ns - memory->shared_at_ns > SHARE_EVERY_NS)
		share(memory, sk, now_ns);
}

/*
 * Ends slow start at the train's rate. The train arrived more slowly than it was sent, so that is
 * the path's rate. Slow start beyond it would overflow the bottleneck's queue.
 */
static __always_inline void bound_by_train(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 carried = filling(tp, memory->train_pps);

	if (path->is_bounded || memory->is_held_up || !memory->paced_pps ||
	    memory->train_pps >= memory->paced_pps / 8 * 7 || carried < CLUMP_MIN_WINDOW)
		return;
	path->is_bounded = 1;
	tp->snd_ssthresh = carried;
	if (tp->snd_cwnd > carried)
		set_window(tp, carried);
}

/*
 * Follows a train: the packets sent within a round trip on an empty path. They arrive with the
 * bottleneck's spacing, and so do their acknowledgements. A short burst therefore shows the rate of
 * a path that it does not fill. A train that starts slow start is short, and later packets belong
 * to the next round trip.
 */
static __always_inline void follow_train(struct kumi_tcp_memory *memory, struct tcp_sock *tp)
{
	bool is_first = tp->snd_cwnd < tp->snd_ssthresh && memory->is_clump;
	__u64 span_ns = (__u64)(tp->srtt_us >> 3) * 1000 / (is_first ? 2 : 1);
	__u64 now_ns = ack_ns(tp);
	__u64 took_ns = now_ns - memory->train_at_ns;
	__u32 packets = tp->delivered - memory->train_from;

	if (BPF_CORE_READ_BITFIELD(tp, chrono_type) >= HELD_UP_BY_BUFFER)
		memory->is_held_up = 1;
	if (!memory->train_at_ns) {
		if (tp->delivered == memory->train_from)
			return; /* the far end's data came, no acknowledgement */
		memory->train_at_ns = now_ns;
		memory->train_from = tp->delivered;
		memory->train_pps = 0;
	} else if (packets >= (is_first ? FIRST_TRAIN_MIN : TRAIN_MIN) && took_ns && took_ns < span_ns) {
		memory->train_pps = pps_of(packets, took_ns);
		if (packets >= 2 * TRAIN_MIN)
			bound_by_train(memory, tp);
	}
}

/*
 * Evaluates a train that has arrived. If it was sent faster than it arrived, the path has shown its
 * limit without a loss.
 */
static __always_inline void judge_train(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 pps = memory->train_pps, best = best_pps(path);
	__u32 packets = tp->delivered - memory->train_from;
	__u32 borne_out;

	/*
	 * Delayed acknowledgements that arrive together show too high a rate. The sending rate
	 * limits it.
	 */
	if (memory->paced_pps && pps > memory->paced_pps)
		pps = memory->paced_pps;
	/*
	 * A single train is too high as often as too low, and the highest of many is always too
	 * high. If the path's limit is known, a higher rate counts as far as two trains in a row
	 * confirm it. A long train that arrives an eighth slower than it was sent corrects half of
	 * the difference. A train that filled its window shows a little less, which says nothing
	 * about the path. A burst without pacing left at the NIC's rate.
	 */
	borne_out = pps < memory->burst_before_pps ? pps : memory->burst_before_pps;
	memory->burst_before_pps = pps;
	if (memory->paced_pps && !path->is_bounded)
		borne_out = pps;
	if (pps && borne_out > best)
		path->best_pps = best && borne_out / 2 > best ? 2 * best : borne_out;
	else if (pps && pps < best && pps < memory->paced_pps / 8 * 7 && path->is_bounded &&
		 packets >= LONG_TRAIN && !memory->is_held_up) {
		path->best_pps = best - (best - pps) / 2;
		path->last_pps = 0;
	}
	if (memory->paced_pps && pps) {
		if (pps < memory->paced_pps / 8 * 7)
			path->is_bounded |= !memory->is_held_up;
		else if (memory->lost_at_ns < memory->began_at_ns && packets > path->proven)
			path->proven = packets;
	}
	memory->is_held_up = 0;
	memory->paced_pps = 0;
	memory->train_pps = 0;
	memory->train_at_ns = 0;
	memory->train_from = tp->delivered;
}

/* Returns whether the path's rate is known, from a train or from an overflow. */
static __always_inline bool is_known(struct kumi_tcp_memory *memory)
{
	return memory->train_pps || path_of(memory)->is_bounded;
}

#endif
