/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The kernel's types, with only the fields that the TCP programs use. Each field is found by name
 * in the running kernel's BTF at load (CO-RE), so that one object serves every kernel.
 */
#ifndef KUMI_TCP_KERNEL_H
#define KUMI_TCP_KERNEL_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#define KERNEL __attribute__((preserve_access_index))

struct net {
	__u64 net_cookie;
} KERNEL;

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
} KERNEL;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	__u32 sk_pacing_status;
} KERNEL;

struct tcp_congestion_ops;

struct inet_connection_sock {
	__u32 icsk_rto;
	__u32 icsk_rto_min;    /* ticks */
	__u32 icsk_delack_max; /* ticks */
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u8 icsk_ca_state : 5; /* by ca_state() only: its place differs */
} KERNEL;

struct minmax_sample {
	__u32 v;
} KERNEL;

struct minmax {
	struct minmax_sample s[3];
} KERNEL;

struct tcp_rack {
	__u32 rtt_us; /* of the packet that was delivered last */
} KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 mss_cache;
	__u32 srtt_us;         /* << 3 */
	__u64 tcp_mstamp;      /* microseconds: when the packet in hand came */
	__u64 first_tx_mstamp; /* microseconds: when the packet left that was delivered last */
	struct minmax rtt_min;
	struct tcp_rack rack;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 prr_out;    /* packets that left since a repair began */
	__u32 prior_cwnd; /* the window before the last cut */
	__u32 packets_out;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 lost_out;
	__u32 lost; /* packets taken for lost, in all */
	__u32 sacked_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 delivered;
	__u32 notsent_lowat; /* bytes; 0: not set */
	__u8 ecn_flags;
	__u8 tlp_retrans : 1; /* by BPF_CORE_READ_BITFIELD only: its place differs */
	__u8 chrono_type : 2; /* as that one; who holds the sender up: 2 the far window, 3 its own buffer */
} KERNEL;

struct task_struct {
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	__u64 start_boottime; /* nanoseconds */
} KERNEL;

struct rate_sample {
	__u32 prior_delivered; /* packets delivered when the acknowledged one left */
	__s32 delivered;       /* packets in the interval; negative: no sample */
	long interval_us;
	__u32 snd_interval_us; /* time in which the packets of the interval left */
	long rtt_us;           /* negative: none */
	int losses;
	__u32 acked_sacked; /* packets that this acknowledgement delivers */
	__u32 prior_in_flight;
	bool is_app_limited;
} KERNEL;

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} KERNEL;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} KERNEL;

/* Events of include/net/tcp.h. The numbers have not changed since 4.9. */
enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
	CA_EVENT_ECN_NO_CE,
	CA_EVENT_ECN_IS_CE,
};

enum { TCP_CA_Open = 0, TCP_CA_CWR = 2, TCP_CA_Loss = 4 };
/* The account of a sender's time (enum tcp_chrono): from here on, a buffer holds it up. */
enum { HELD_UP_BY_BUFFER = 2 };
enum { SK_PACING_NONE, SK_PACING_NEEDED };
enum { TCP_ECN_OK = 1 };
enum { TCP_INFINITE_SSTHRESH = 0x7fffffff };
enum { TCP_LISTEN = 10, TCP_TIME_WAIT = 6, TCP_NEW_SYN_RECV = 12 };
enum { AF_INET = 2, AF_INET6 = 10 };
enum { SOCK_STREAM = 1 };
enum { IPPROTO_TCP = 6, SOL_TCP = 6, SOL_SOCKET = 1 };
enum { TCP_CONGESTION = 13, TCP_NOTSENT_LOWAT = 25, SO_MAX_PACING_RATE = 47 };
enum { ENOENT = 2 };

/* Any program may choose the control, regardless of tcp_allowed_congestion_control. */
enum { TCP_CONG_NON_RESTRICTED = 1 };

struct tcp_congestion_ops {
	char name[16];
	__u32 flags;
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

/* CUBIC, where others share the path. Callable from BPF since 5.13. */
extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

static __always_inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

/* Returns the kernel's congestion state: TCP_CA_*. */
static __always_inline __u32 ca_state(const struct tcp_sock *tp)
{
	return BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
}

static __always_inline __u32 in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

#endif
