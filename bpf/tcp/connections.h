/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Iterators over the live connections of one network namespace: one lists them, one gives them back
 * to the kernel's control.
 */
#ifndef KUMI_TCP_CONNECTIONS_H
#define KUMI_TCP_CONNECTIONS_H

#include "path.h"

/*
 * Control for connections that had no other, or whose control no longer exists. The kernel always
 * has it.
 */
#define FALLBACK "cubic"

static __always_inline struct tcp_sock *connection(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;

	/* Requests and time-wait sockets are not full sockets. For them this returns NULL. */
	return common ? bpf_skc_to_tcp_sock(common) : NULL;
}

SEC("iter/tcp")
int show(struct bpf_iter__tcp *ctx)
{
	struct kumi_tcp_connection row = {};
	struct sock_common *common = ctx->sk_common;
	struct kumi_tcp_memory *memory;
	struct kumi_phase_page *page;
	struct tcp_sock *tp = connection(ctx);
	__u32 at;

	if (!tp)
		return 0;
	memory = bpf_sk_storage_get(&memories, (void *)tp, 0, 0);
	if (!memory)
		return 0;
	row.is_ipv6 = common->skc_family == AF_INET6;
	if (row.is_ipv6) {
		BPF_CORE_READ_INTO(row.local, common, skc_v6_rcv_saddr.in6_u.u6_addr8);
		BPF_CORE_READ_INTO(row.remote, common, skc_v6_daddr.in6_u.u6_addr8);
	} else {
		*(__u32 *)row.local = common->skc_rcv_saddr;
		*(__u32 *)row.remote = common->skc_daddr;
	}
	row.local_port = common->skc_num;
	row.remote_port = bpf_ntohs(common->skc_dport);
	row.phase = memory->phase;
	row.rank = place_of(memory->rank);
	row.cwnd = tp->snd_cwnd;
	row.ssthresh = tp->snd_ssthresh;
	row.in_flight = in_flight(tp);
	row.rtt_us = tp->srtt_us >> 3;
	row.rto_us = tp->inet_conn.icsk_rto; /* jiffies; user space knows their length */
	row.mss_bytes = tp->mss_cache;
	row.stalls = memory->stalls;
	row.losses = memory->losses;
	row.timeouts = memory->timeouts;
	row.paced = memory->paced;
	row.rto_min_us = memory->rto_min_us;
	row.pacing_bytes_ps = BPF_CORE_READ((struct sock *)tp, sk_pacing_rate);
	row.retransmits = tp->total_retrans;
	page = page_of(memory->rank);
	at = memory->phase;
	if (page && at < KUMI_PHASES_MAX)
		bpf_probe_read_kernel(row.phase_name, sizeof(row.phase_name),
				      (__u8 *)page + 64 + at * sizeof(row.phase_name));
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
	return 0;
}

static __always_inline bool is_own(const char *name)
{
	return name[0] == 'k' && name[1] == 'u' && name[2] == 'm' && name[3] == 'i' && !name[4];
}

/* Restores the congestion control that the connection had before. */
static __always_inline void give_back_control(struct tcp_sock *tp, struct kumi_tcp_owner *owner)
{
	char name[] = FALLBACK;

	if (owner && owner->before[0] && !is_own(owner->before) &&
	    !bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, owner->before, sizeof(owner->before)))
		return;
	bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
}

/* Restores the timers of a listener. Connections that it accepts from now on start with them. */
static __always_inline void give_back_timers(struct tcp_sock *tp, const struct kumi_tcp_options *options)
{
	int rto_us = options->rto_min_ticks * settings.tick_us;
	int delack_us = options->delack_max_ticks * settings.tick_us;

	if (rto_us)
		bpf_setsockopt(tp, SOL_TCP, TCP_BPF_RTO_MIN, &rto_us, sizeof(rto_us));
	if (delack_us)
		bpf_setsockopt(tp, SOL_TCP, TCP_BPF_DELACK_MAX, &delack_us, sizeof(delack_us));
}

/* Removes the cap on unsent data. A program that has set its own cap since then keeps it. */
static __always_inline void give_back_cap(struct tcp_sock *tp)
{
	int unsent = 0;

	if (tp->notsent_lowat == settings.unsent_bytes_max)
		bpf_setsockopt(tp, SOL_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
}

/*
 * Restores the settings that kumi changed. A connection keeps its short timers. The kernel does not
 * raise the variance of the round trip to a longer floor, and under such a floor it does not learn
 * from longer round trips. If the peer then delayed acknowledgements for longer than the timeout,
 * everything would be sent twice.
 */
SEC("iter/tcp")
int give_back(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = connection(ctx);
	struct kumi_tcp_memory *memory;
	struct kumi_tcp_owner *owner;

	if (!tp)
		return 0;
	memory = bpf_sk_storage_get(&memories, (void *)tp, 0, 0);
	owner = bpf_sk_storage_get(&owners, (void *)tp, 0, 0);
	if (memory) {
		give_back_control(tp, owner);
		if (memory->options.is_capped)
			give_back_cap(tp);
	}
	if (!owner)
		return 0;
	if (owner->options.is_capped)
		give_back_cap(tp);
	if (BPF_CORE_READ((struct sock *)tp, __sk_common.skc_state) == TCP_LISTEN)
		give_back_timers(tp, &owner->options);
	return 0;
}

#endif
