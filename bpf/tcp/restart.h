/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Starting at the rate the path is known to carry (Matsuda et al., section 3.2).
 *
 * What is known is the delivery rate, per phase. After idle time, at the first data of a connection to
 * a known host, and at a change of phase, the window is set to rate x round trip and sent from the
 * pacing timer until the first acknowledgement; from then on acknowledgements clock it as ever.
 */
#ifndef KUMI_TCP_RESTART_H
#define KUMI_TCP_RESTART_H

#include "memory.h"

/* A loss within so many round trips of a paced start is laid at its door (RFC 9959). */
#define SAFE_ROUND_TRIPS 3
/* So many after a paced start at the path's limit, CUBIC decides again. */
#define FILL_ROUND_TRIPS 32
/* So many packets may go at once, as the kernel lets every connection begin. */
#define CLUMP_MAX 10
/* After so many round trips acknowledgements come as far apart as the path's packets. */
#define CLOCKED_ROUND_TRIPS 2
/* A route is put down for later connections so often. */
#define SHARE_EVERY_NS 1000000000ULL
/*
 * A restart at the limit asks for so much more than the best rate: a third of what a shallow buffer (a
 * tenth of the path) is deep, as the kernel sends in clumps that need the rest.
 */
#define PROBE_PART 32
/*
 * The window's growth while a paced start is being filled, as a part of it a round trip: of a rate that was
 * measured little, as a step must fit a shallow buffer; of one that was guessed more.
 */
#define MEASURED_GROWTH_PART 32
#define GUESSED_GROWTH_PART 8
/* No queue stands where the round trip is longer by less than this part: clumps and timers take that. */
#define QUEUE_PART 16
/* The same while a window grows: what stands in the queue then must leave room for a clump. */
#define FULL_PART 32
/* The kernel's own floor under the retransmission timeout, in microseconds (TCP_RTO_MIN). */
#define RTO_MIN_KERNEL_US 200000
/* Packets of a train, at least, that tell a rate. */
#define TRAIN_MIN 16
/* Round trips shorter than this are a cluster's own: slow start costs nothing there, and a full port much. */
#define LOCAL_RTT_US 2000
/* No window below what the kernel begins with. */
#define INITIAL_CWND 10

static __always_inline __u32 best_pps(const struct kumi_tcp_path *path)
{
	return path->best_pps > path->last_pps ? path->best_pps : path->last_pps;
}

/* When the acknowledgement in hand came: the kernel has asked the clock already. */
static __always_inline __u64 ack_ns(const struct tcp_sock *tp)
{
	return tp->tcp_mstamp * 1000;
}

/* Whether the path is so short that nothing about it need be remembered. */
static __always_inline bool is_local(const struct tcp_sock *tp)
{
	return tp->rtt_min.s[0].v < LOCAL_RTT_US;
}

static __always_inline bool is_fresh(__u64 at_ns)
{
	return at_ns && bpf_ktime_get_ns() - at_ns < settings.memory_max_ns;
}

/* Whether the path is still the one that was measured: neither half as long nor ten times (RFC 9959). */
static __always_inline bool is_same_path(__u32 then_us, __u32 now_us)
{
	return now_us > then_us / 2 && now_us / 10 < then_us;
}

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

static __always_inline void share(struct kumi_tcp_memory *memory, const struct sock *sk, __u64 now_ns)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_route route = {};
	struct route_key key = {};

	memory->shared_at_ns = now_ns;
	route.at_ns = now_ns;
	route.pps = best_pps(path_of(memory));
	route.rtt_us = tp->rtt_min.s[0].v;
	route.is_bounded = path_of(memory)->is_bounded;
	route_key(&key, sk);
	bpf_map_update_elem(&routes, &key, &route, BPF_ANY);
}

/* The highest delivery rate of late: what the path has shown it can carry. */
static __always_inline void learn(struct kumi_tcp_memory *memory, const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_path *path = path_of(memory);
	__u64 now_ns = ack_ns(tp);
	__u64 interval_us = tp->rate_interval_us;
	__u32 pps;

	path->acked_at_ns = now_ns;
	if (now_ns - path->span_began_ns > settings.memory_max_ns) {
		path->last_pps = path->best_pps;
		path->best_pps = 0;
		path->span_began_ns = now_ns;
	}
	if (interval_us) {
		pps = (__u64)tp->rate_delivered * 1000000 / interval_us;
		if (pps > path->best_pps)
			path->best_pps = pps;
	}
	if (has(KUMI_TCP_FIRST_TARGET) && now_ns - memory->shared_at_ns > SHARE_EVERY_NS)
		share(memory, sk, now_ns);
}

/*
 * Has the window sent at `bytes_ps` until the first acknowledgement. Where the rate may not be written
 * (before 6.0), the ceiling of the rate stands in for it: `uncap` lifts it again.
 */
static __always_inline void set_pacing(struct kumi_tcp_memory *memory, struct sock *sk, __u64 bytes_ps)
{
	int ceiling = bytes_ps < 0x7fffffff ? bytes_ps : 0x7fffffff;

	if (has(KUMI_TCP_WRITES_PACING)) {
		sk->sk_pacing_rate = bytes_ps;
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
 * A train is what is sent after the path was empty, within a round trip. Its packets come to the far end
 * as far apart as the bottleneck makes them, and so do their acknowledgements: a short burst shows the
 * rate of a path that it does not fill.
 */
static __always_inline void follow_train(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u64 now_ns = ack_ns(tp);
	__u64 took_ns = now_ns - memory->train_at_ns;
	__u32 packets = tp->delivered - memory->train_from;

	if (!memory->train_at_ns) {
		memory->train_at_ns = now_ns;
		memory->train_from = tp->delivered;
		memory->train_pps = 0;
	} else if (packets >= TRAIN_MIN && took_ns < (__u64)(tp->srtt_us >> 3) * 1000) {
		memory->train_pps = packets * 1000000000ULL / took_ns;
	}
}

/*
 * The train has arrived. If it was sent faster than it came, the path has shown its limit, and nothing
 * had to be lost for that.
 */
static __always_inline void judge_train(struct kumi_tcp_memory *memory)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u32 pps = memory->train_pps;

	/* Acknowledgements that were held back and came together show too much; the rate sent does not. */
	if (memory->paced_pps && pps > memory->paced_pps)
		pps = memory->paced_pps;
	/* A burst that was not paced left at the NIC's rate: it shows the bottleneck's, if not the NIC's. */
	if (!memory->paced_pps && pps > path->best_pps)
		path->best_pps = pps < 2 * path->best_pps ? pps : 2 * path->best_pps;
	if (memory->paced_pps && pps) {
		if (pps > path->best_pps)
			path->best_pps = pps;
		if (pps < memory->paced_pps / 8 * 7)
			path->is_bounded = 1;
	}
	memory->paced_pps = 0;
	memory->train_pps = 0;
	memory->train_at_ns = 0;
}

/* Whether that was, and no more than so many round trips ago. */
static __always_inline bool is_recent(__u64 at_ns, const struct tcp_sock *tp, __u32 round_trips)
{
	return at_ns &&
	       bpf_ktime_get_ns() - at_ns <= round_trips * (__u64)(tp->srtt_us >> 3) * 1000;
}

/* Whether the last paced start is no more than so many round trips ago. */
static __always_inline bool is_soon_after_start(const struct kumi_tcp_memory *memory,
						const struct tcp_sock *tp, __u32 round_trips)
{
	return is_recent(memory->restarted_at_ns, tp, round_trips);
}

/*
 * With nothing under way, a whole window is sent at once, and slow start sends in clumps of twice what was
 * acknowledged: a shallow buffer overflows before the path is full. Spaced out they fit. Within a cluster
 * the timers would cost more than the clumps; so they do where acknowledgements clock what is sent.
 */
static __always_inline void space_out(const struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	bool is_clumped;

	if (!has(KUMI_TCP_PACED_RESTART) || !has(KUMI_TCP_WRITES_PACING))
		return;
	is_clumped = !is_local(tp) && tp->snd_cwnd > CLUMP_MAX &&
		     (tp->snd_cwnd < tp->snd_ssthresh ||
		      is_recent(memory->began_at_ns, tp, CLOCKED_ROUND_TRIPS) ||
		      is_soon_after_start(memory, tp, FILL_ROUND_TRIPS));
	if (is_clumped && sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	/* A program that has set a ceiling of its own (SO_MAX_PACING_RATE) keeps it. */
	if (!is_clumped && sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL)
		sk->sk_pacing_status = SK_PACING_NONE;
}

/*
 * The first packet has been sent while none was under way. The kernel spaces the others out by the window
 * and the round trip, which are less than what the path carries where messages are short.
 */
static __always_inline void space_out_first(const struct kumi_tcp_memory *memory, struct sock *sk)
{
	const struct kumi_tcp_path *path = &memory->phases[memory->phase % KUMI_PHASES_MAX];
	__u64 bytes_ps = (__u64)best_pps(path) * tcp_sk(sk)->mss_cache;

	space_out(memory, sk);
	if (sk->sk_pacing_status != SK_PACING_NONE && bytes_ps > sk->sk_pacing_rate &&
	    has(KUMI_TCP_PACED_RESTART) && has(KUMI_TCP_WRITES_PACING) && !is_local(tcp_sk(sk)))
		sk->sk_pacing_rate = bytes_ps;
}

/* Sets the window to `cwnd`, and has it sent at `pps`, which was measured or guessed. */
static __always_inline void pace(struct kumi_tcp_memory *memory, struct sock *sk, __u64 pps, __u32 cwnd,
				 bool is_guess)
{
	struct tcp_sock *tp = tcp_sk(sk);

	tp->snd_cwnd = cwnd;
	set_pacing(memory, sk, pps * tp->mss_cache);
	memory->restarted_at_ns = bpf_ktime_get_ns();
	memory->paced_pps = pps;
	memory->is_guess = is_guess;
	memory->paced++;
	COUNT(paced);
}

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

	memory->cwnd_before = 0;
	if (!has(KUMI_TCP_SHORT_RTO) || is_local(tp) || silent_ns >= floor_us * 1000)
		return;
	memory->is_idle = 0; /* nor is it asked for more than the window that was enough */
	if (cwnd > tp->snd_cwnd)
		tp->snd_cwnd = cwnd;
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
	__u64 cwnd;

	if (!memory->is_idle)
		return;
	memory->is_idle = 0;
	/*
	 * Short bursts never show all of a path: half as much again each time, until one comes slower than it
	 * was sent. Twice as much would overflow a shallow buffer before that shows.
	 */
	pps = path->is_bounded ? pps + pps / PROBE_PART : pps + pps / 2;
	cwnd = pps * rtt_us / 1000000;
	if (is_local(tp) || cwnd <= tp->snd_cwnd)
		return;
	if (path->is_bounded) /* more is not there: no slow start beyond */
		tp->snd_ssthresh = cwnd;
	pace(memory, sk, pps, cwnd, false);
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
	cwnd = pps * rtt_us / 1000000;
	if (rtt_us < LOCAL_RTT_US || cwnd <= INITIAL_CWND || cwnd <= tp->snd_cwnd)
		return;
	path_of(memory)->best_pps = pps;
	if (is_bounded) { /* what more there is, `fill` finds */
		path_of(memory)->is_bounded = 1;
		tp->snd_ssthresh = cwnd;
	}
	pace(memory, sk, pps, cwnd, true);
}

/*
 * For a while after a paced start at the limit the window follows the queue, not CUBIC: where none stands
 * before the bottleneck a part more each round trip, where one does no more. CUBIC would go on to a loss.
 * False when that while is over.
 */
static __always_inline bool fill(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 acked)
{
	__u32 srtt_us = tp->srtt_us >> 3;
	__u32 rtt_us = tp->rtt_min.s[0].v;
	__u32 part;

	if (!path_of(memory)->is_bounded || !is_soon_after_start(memory, tp, FILL_ROUND_TRIPS))
		return false;
	if (srtt_us - rtt_us > rtt_us / FULL_PART || in_flight(tp) < tp->snd_cwnd / 4 * 3)
		return true;
	part = memory->is_guess ? GUESSED_GROWTH_PART : MEASURED_GROWTH_PART;
	memory->credit += acked;
	tp->snd_cwnd += memory->credit / part;
	memory->credit %= part;
	return true;
}

/*
 * The network lost something: the path's limit has been seen. Soon after a paced start, the rate believed
 * is too much (RFC 9959): an eighth less, or what is delivered while the loss is repaired, if that is more:
 * the queue is full then, and the rate the bottleneck's own.
 */
static __always_inline void retreat(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct kumi_tcp_path *path = path_of(memory);

	if (path->is_bounded && is_soon_after_start(memory, tp, SAFE_ROUND_TRIPS)) {
		path->best_pps = best_pps(path) * 7ULL / 8;
		path->last_pps = 0;
	}
	path->is_bounded = 1;
	memory->is_guess = 0;
}

/*
 * The window after a loss, `cubic` by CUBIC's reckoning. While a paced start is being filled, how fast its
 * first packets came is known, and with them what the path carries now, be it shared or not: no less is
 * kept (as TCP Westwood does, here from a fresh measurement only).
 */
static __always_inline __u32 kept(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
				  __u32 cubic)
{
	__u64 carried = (__u64)memory->train_pps * tp->rtt_min.s[0].v / 1000000;

	carried -= carried / QUEUE_PART;
	if (!memory->train_pps || carried > tp->snd_cwnd ||
	    !is_soon_after_start(memory, tp, FILL_ROUND_TRIPS))
		return cubic;
	return carried > cubic ? carried : cubic;
}

#endif
