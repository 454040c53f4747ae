/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Selects the sockets that use kumi: those of processes of `kumi run` and their children.
 *
 * The programs are attached to the cgroup of the process, whoever owns it. No process is moved. A
 * socket is marked when it is created, in the process. Sockets that it accepts inherit the mark.
 * When the connection is established, marked sockets get the congestion control.
 */
#ifndef KUMI_TCP_RANKS_H
#define KUMI_TCP_RANKS_H

#include "memory.h"

/* Most generations between a rank and its helpers. Shells in between count. */
#define GENERATIONS_MAX 8
/* Unit of `started`, in nanoseconds. USER_HZ is 100 on every architecture here. */
#define STARTED_UNIT_NS 10000000
/* Longest IPv4 or IPv6 header with a TCP header and all its options, in bytes. */
#define ACK_BYTES_MAX 120
/* TC_PRIO_INTERACTIVE of linux/pkt_sched.h: the first band of pfifo_fast, prio and fq. */
#define FIRST_BAND 6

static __always_inline __u32 rank_of_caller(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct kumi_tcp_process *process;
	__u32 tgid;

	for (int generation = 0; generation < GENERATIONS_MAX && task; generation++) {
		tgid = BPF_CORE_READ(task, tgid);
		process = bpf_map_lookup_elem(&ranks, &tgid);
		if (process &&
		    process->started == BPF_CORE_READ(task, group_leader, start_boottime) / STARTED_UNIT_NS)
			return process->rank;
		task = BPF_CORE_READ(task, real_parent);
	}
	return 0;
}

static __always_inline bool is_tcp(const struct bpf_sock *sk)
{
	return (sk->family == AF_INET || sk->family == AF_INET6) && sk->type == SOCK_STREAM &&
	       sk->protocol == IPPROTO_TCP;
}

static __always_inline void own(struct bpf_sock *sk, __u32 rank)
{
	struct kumi_tcp_owner *owner;

	owner = bpf_sk_storage_get(&owners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (owner)
		owner->rank = rank;
}

SEC("cgroup/sock_create")
int own_ranks_socket(struct bpf_sock *sk)
{
	__u32 rank = is_tcp(sk) ? rank_of_caller() : 0;

	if (rank)
		own(sk, rank);
	return 1;
}

/* For a systemd unit: all processes of its cgroup are selected. */
SEC("cgroup/sock_create")
int own_units_socket(struct bpf_sock *sk)
{
	if (is_tcp(sk))
		own(sk, 0);
	return 1;
}

/*
 * Gives a connection without the control its floor of the timeout back if its round trip is longer
 * than the short one. After an idle time of a timeout, the kernel's controls start again with a
 * small window: with a short floor that is soon, and with a long round trip it takes long.
 */
static __always_inline void settle(struct bpf_sock_ops *ctx, struct kumi_tcp_options *options)
{
	int before_us = options->rto_min_ticks * settings.tick_us;

	if (before_us && ctx->srtt_us >> 3 > settings.rto_min_us &&
	    !bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_RTO_MIN, &before_us, sizeof(before_us)))
		options->rto_min_ticks = 0;
}

/*
 * Sets short timeouts before the first round trip is measured. The kernel starts with a variance as
 * long as the floor, and takes a dozen round trips to forget it. Accepted sockets inherit the
 * timeouts.
 */
SEC("sockops")
int choose(struct bpf_sock_ops *ctx)
{
	char name[] = OWN_CONTROL;
	struct bpf_sock *sk = ctx->sk;
	struct kumi_tcp_owner *owner;
	struct tcp_sock *tp;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB && ctx->op != BPF_SOCK_OPS_TCP_LISTEN_CB &&
	    ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	owner = sk ? bpf_sk_storage_get(&owners, sk, 0, 0) : NULL;
	if (!owner)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB || ctx->op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp)
			set_options(ctx, tp, &owner->options);
	} else if (has(KUMI_TCP_HAS_CONTROL)) {
		bpf_getsockopt(ctx, SOL_TCP, TCP_CONGESTION, owner->before, sizeof(owner->before));
		bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	} else {
		settle(ctx, &owner->options);
	}
	return 1;
}

/* Returns whether the packet is a pure acknowledgement. TCP starts at offset `l4`. */
static __always_inline bool is_pure_ack(struct __sk_buff *skb, __u32 l4)
{
	__u8 tcp[14];

	if (bpf_skb_load_bytes(skb, l4, tcp, sizeof(tcp)))
		return false;
	/* ACK without FIN, SYN or RST, and no payload. */
	return (tcp[13] & 0x17) == 0x10 && l4 + (tcp[12] >> 4) * 4 == skb->len;
}

/*
 * Puts pure acknowledgements first in the host's queue, if the queue has bands (send-stall, Takano
 * et al., section 4: data in the other direction delayed them by 200 ms).
 */
SEC("cgroup_skb/egress")
int put_acks_first(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	__u8 ip[10];
	__u32 l4 = 40;

	if (!has(KUMI_TCP_ACK_BAND))
		return 1;
	if (skb->len > ACK_BYTES_MAX || !sk || bpf_skb_load_bytes(skb, 0, ip, sizeof(ip)))
		return 1;
	if (ip[0] >> 4 == 4)
		l4 = (ip[0] & 15) * 4;
	if ((ip[0] >> 4 == 4 ? ip[9] : ip[6]) != IPPROTO_TCP)
		return 1;
	if (is_pure_ack(skb, l4) && bpf_sk_storage_get(&owners, sk, 0, 0)) {
		skb->priority = FIRST_BAND;
		COUNT(acks_first);
	}
	return 1;
}

#endif
