// SPDX-License-Identifier: GPL-2.0
/*
 * A congestion control whose `ssthresh` and `undo_cwnd` return 7. The threshold is 2^31 - 1 before
 * the first loss, and then 7. Any other threshold was not returned by a program
 * (docs/kernel-report.md). run.sh makes vmlinux.h.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

char LICENSE[] SEC("license") = "GPL";

SEC("struct_ops")
__u32 BPF_PROG(seven_ssthresh, struct sock *sk)
{
	return 7;
}

SEC("struct_ops")
void BPF_PROG(seven_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(seven_undo_cwnd, struct sock *sk)
{
	return 7;
}

SEC(".struct_ops")
struct tcp_congestion_ops seven = {
	.ssthresh = (void *)seven_ssthresh,
	.cong_avoid = (void *)seven_cong_avoid,
	.undo_cwnd = (void *)seven_undo_cwnd,
	.name = "seven",
};
