/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the TCP programs know of the kernel's own types: the fields they touch, found by name in the
 * running kernel's BTF at load (CO-RE), so that one object serves every kernel.
 */
#ifndef KUMI_TCP_KERNEL_H
#define KUMI_TCP_KERNEL_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define KERNEL __attribute__((preserve_access_index))

struct sock {
	unsigned long sk_pacing_rate;
	__u32 sk_pacing_status;
} KERNEL;

struct tcp_sock {
	__u32 mss_cache;
	__u32 srtt_us; /* << 3 */
	__u32 snd_cwnd;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 retrans_out;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u8 ecn_flags;
	__u8 tlp_retrans : 1; /* by BPF_CORE_READ_BITFIELD only: its place differs */
} KERNEL;

/* Only handed on; a forward declaration would not match the kernel's type. */
struct ack_sample {
	__u32 pkts_acked;
} KERNEL;

/* include/net/tcp.h; the numbers have not changed since 4.9. */
enum tcp_ca_event {
	CA_EVENT_TX_START,
	CA_EVENT_CWND_RESTART,
	CA_EVENT_COMPLETE_CWR,
	CA_EVENT_LOSS,
	CA_EVENT_ECN_NO_CE,
	CA_EVENT_ECN_IS_CE,
};

enum { SK_PACING_NONE, SK_PACING_NEEDED };
enum { TCP_ECN_OK = 1 };

/* Any program may choose it, whatever tcp_allowed_congestion_control says. */
enum { TCP_CONG_NON_RESTRICTED = 1 };

struct tcp_congestion_ops {
	char name[16];
	__u32 flags;
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
};

/* CUBIC, which does everything but the restart. Callable from BPF since 5.13. */
extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

static __always_inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

#endif
