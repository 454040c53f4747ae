/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Routes: what a connection leaves for later ones to the same host (RFC 9040, RFC 9959). */
#ifndef KUMI_TCP_ROUTE_H
#define KUMI_TCP_ROUTE_H

#include "control.h"

/* Interval at which a route is saved. */
#define SHARE_EVERY_NS 1000000000ULL

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
 * rate counts only where it is the path's limit.
 */
static __always_inline void share(struct kumi_tcp_memory *memory, const struct sock *sk, __u64 now_ns)
{
	const struct kumi_tcp_path *path = path_of(memory);
	struct kumi_tcp_route route = {}, *known;
	struct route_key key = {};

	route.at_ns = now_ns;
	route.pps = rate_of(path);
	route.rtt_us = fresh_rtt_us(tcp_sk(sk));
	route.is_bounded = path->is_bounded;
	if (!route.pps)
		return;
	memory->shared_at_ns = now_ns;
	route_key(&key, sk);
	known = bpf_map_lookup_elem(&routes, &key);
	if (!known || !is_fresh(known->at_ns) || !is_same_path(known->rtt_us, route.rtt_us) ||
	    route.pps >= known->pps || route.is_bounded)
		bpf_map_update_elem(&routes, &key, &route, BPF_ANY);
}

/*
 * Starts a connection's first data at half of the route's rate, or of the administrator's (GridMPI,
 * Matsuda et al., section 3.2). The rate is held, so a probe finds the rest.
 */
static __always_inline void begin(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_route *route;
	struct route_key key = {};
	__u64 pps = 0;

	route_key(&key, sk);
	route = bpf_map_lookup_elem(&routes, &key);
	if (route && route->is_bounded && is_fresh(route->at_ns) && is_same_path(route->rtt_us, srtt_us(tp)))
		pps = route->pps / 2;
	else if (tp->mss_cache)
		pps = settings.first_bytes_ps / tp->mss_cache;
	if (!has(KUMI_TCP_PACED_RESTART) || !is_spaced(tp) || packets_of(pps, srtt_us(tp)) <= CWND_INITIAL)
		return;
	note_rate(path, pps < PPS_MAX ? pps : PPS_MAX, bpf_ktime_get_ns());
	path->is_bounded = 1;
	memory->step = 1;
	hold(memory, sk, false);
	memory->paced++;
	COUNT(paced);
}

/*
 * Paces what follows on an empty path whose rate is unknown. In an all-to-all, the window spaces it
 * out, since the bursts of all connections would meet. Elsewhere it leaves at once: only then does
 * it show the rate, and a short message has no use for a pace.
 */
static __always_inline void pace_unknown(struct kumi_tcp_memory *memory, struct sock *sk)
{
	__u64 clocked = 2 * pps_of(tcp_sk(sk)->snd_cwnd, srtt_us(tcp_sk(sk)));

	if (memory->mode == HOLD || memory->is_local || path_of(memory)->is_bounded)
		return;
	if (memory->is_crowded)
		set_pace(sk, clocked);
	else
		set_burst(sk, clocked);
}

/* Makes the first burst a probe of any step: its packets arrive in the first round. */
static __always_inline void probe_at_once(struct kumi_tcp_memory *memory, struct sock *sk)
{
	__u32 pps = rate_of(path_of(memory));

	if (memory->skipped < memory->skip)
		return;
	pps += pps / memory->step;
	memory->is_probing = 1;
	memory->probed_pps = pps;
	set_window(tcp_sk(sk), held_window(memory, tcp_sk(sk), pps));
	set_pace(sk, least_pace(memory, tcp_sk(sk), pps));
}

/*
 * Slows down the first round trip after silence: the kernel lets the second clump leave half of a
 * clump's time early, since the first one was late (`tcp_update_skb_after_send`).
 */
static __always_inline void take_back_early_clump(struct sock *sk)
{
	__u32 pps = pace_of(sk), early_pps;

	early_pps = (__u64)pps * SECOND_US / CLUMPS_PS / 2 / rtt_min_us(tcp_sk(sk));
	set_pace(sk, pps - (early_pps < pps / STEP ? early_pps : pps / STEP));
}

/*
 * Restarts after silence, when the first packet has been sent: the others follow at the phase's
 * rate (GridMPI, section 3.2). A silence that is shorter than a timeout changes nothing.
 */
static __always_inline void restart(struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 rto_ns = tp->inet_conn.icsk_rto * (__u64)settings.tick_us * 1000;

	if (!is_spaced(tp) || !path->is_bounded || !is_fresh(path->acked_at_ns) ||
	    bpf_ktime_get_ns() < path->acked_at_ns + rto_ns)
		return;
	memory->skipped++;
	memory->confirm_rtt_us = path->rtt_us ? path->rtt_us : rtt_min_us(tp);
	hold(memory, sk, true);
	probe_at_once(memory, sk);
	take_back_early_clump(sk);
	memory->paced++;
	COUNT(paced);
}

/*
 * Checks with the first sample after a start whether the path is the measured one. If not, the
 * memory does not count, and the connection begins anew (RFC 9959, safe retreat).
 */
static __always_inline void confirm(struct kumi_tcp_memory *memory, struct tcp_sock *tp, long sample_us)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 then_us = memory->confirm_rtt_us;

	if (!then_us || sample_us <= 0)
		return;
	memory->confirm_rtt_us = 0;
	if (is_same_path(then_us, sample_us))
		return;
	path->best_pps = 0;
	path->last_pps = 0;
	path->is_bounded = 0;
	path->top_pps = 0;
	memory->deepest_us = 0;
	memory->limit_pps = 0;
	memory->mode = SEARCH;
	set_window(tp, CWND_INITIAL);
}

#endif
