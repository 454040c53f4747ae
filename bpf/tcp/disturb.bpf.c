// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * For a test only. Gives every connection of this control a threshold that none of its programs has
 * set, as a kernel does that skips `ssthresh` (sane.h). TCP_BPF_SNDCWND_CLAMP writes it.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The low half of a kernel address on the stack, without the sign bit, which the option refuses. */
#define WILD 0x022034e5

enum { TCP_BPF_SNDCWND_CLAMP_OPTION = 1002 };

SEC("iter/tcp")
int disturb(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	int wild = WILD;
	char name[16];

	if (tp && !bpf_getsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)) && name[0] == 'k' &&
	    name[1] == 'u' && name[2] == 'm' && name[3] == 'i')
		bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SNDCWND_CLAMP_OPTION, &wild, sizeof(wild));
	return 0;
}
