// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The congestion control `kumi`: CUBIC, but for two moments.
 *
 * A restart after idle time (Matsuda et al., "TCP Layer Adapted to MPI Library", section 3.2). The
 * kernel halves the window for each retransmission timeout of silence and slow start begins again.
 * Here the window is what the path carried before, sent at that rate from the pacing timer until the
 * first acknowledgement; from then on acknowledgements clock it as ever, and CUBIC decides.
 *
 * A send stall (Takano et al., section 3.3): a queue of this host refused a packet. The kernel cuts the
 * window as if the network had lost it. Nothing left the host, so nothing is cut.
 */
#include "kernel.h"
#include "intf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Filled in before the programs are loaded: the only constant, so that it is where the loader writes. */
const volatile struct kumi_tcp_settings settings = {};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kumi_tcp_memory);
} memories SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kumi_tcp_totals);
} totals SEC(".maps");

static __always_inline struct kumi_tcp_totals *all(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&totals, &first);
}

SEC("struct_ops")
void BPF_PROG(kumi_init, struct sock *sk)
{
	struct kumi_tcp_totals *sum = all();

	bpf_sk_storage_get(&memories, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (sum)
		sum->connections++;
	cubictcp_init(sk);
}

/* The highest delivery rate of late: what the path has shown it can carry. */
static __always_inline void learn(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 interval_us = tp->rate_interval_us;
	__u32 pps;

	memory->acked_at_ns = now_ns;
	if (now_ns - memory->span_began_ns > settings.memory_max_ns) {
		memory->last_pps = memory->best_pps;
		memory->best_pps = 0;
		memory->span_began_ns = now_ns;
	}
	if (!interval_us)
		return;
	pps = (__u64)tp->rate_delivered * 1000000 / interval_us;
	if (pps > memory->best_pps)
		memory->best_pps = pps;
}

static __always_inline __u32 best_pps(const struct kumi_tcp_memory *memory)
{
	return memory->best_pps > memory->last_pps ? memory->best_pps : memory->last_pps;
}

/* The window is about to be cut for silence; what is remembered may be too old by now. */
static __always_inline void note_silence(struct kumi_tcp_memory *memory)
{
	__u64 idle_ns = bpf_ktime_get_ns() - memory->acked_at_ns;

	memory->is_idle = memory->acked_at_ns && idle_ns < settings.memory_max_ns;
}

/*
 * The first packet after silence has been sent: the others follow at the rate the path has carried,
 * as many as fill it. The window it had may be far less (CUBIC may have been climbing back from a
 * loss) or more (what stood in queues need not be sent again): the delivery rate knows.
 */
static __always_inline void restart(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_totals *sum = all();
	__u64 rtt_us = tp->srtt_us >> 3;
	__u64 pps = best_pps(memory);
	__u32 cwnd;

	if (!memory->is_idle)
		return;
	memory->is_idle = 0;
	/* Short bursts never show all of a path: twice as much each time, as slow start, until one is lost. */
	if (!memory->is_bounded)
		pps *= 2;
	cwnd = pps * rtt_us / 1000000;
	if (!rtt_us || cwnd <= tp->snd_cwnd)
		return;
	tp->snd_cwnd = cwnd;
	sk->sk_pacing_rate = pps * tp->mss_cache;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	memory->restarted_at_ns = bpf_ktime_get_ns();
	if (sum)
		sum->paced++;
}

/* A loss soon after a paced restart: no more than what was delivered is believed (RFC 9959). */
static __always_inline void retreat(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u64 since_ns = bpf_ktime_get_ns() - memory->restarted_at_ns;
	__u64 rtt_us = tp->srtt_us >> 3;

	if (!memory->restarted_at_ns || since_ns > 3 * rtt_us * 1000)
		return;
	memory->restarted_at_ns = 0;
	if (memory->is_bounded) /* it was believed, and is too much now */
		memory->best_pps = best_pps(memory) * 3ULL / 4;
	memory->is_bounded = 1;
	memory->last_pps = 0;
}

SEC("struct_ops")
void BPF_PROG(kumi_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (memory && settings.paces_restart) {
		if (event == CA_EVENT_CWND_RESTART)
			note_silence(memory);
		else if (event == CA_EVENT_TX_START)
			restart(memory, sk);
	}
	cubictcp_cwnd_event(sk, event);
}

/*
 * Whether the window is to be cut because a queue of this host refused a packet: nothing is lost,
 * missing or sent again, no router marked, and no tail loss probe has just repaired a loss.
 */
static __always_inline bool is_stall(const struct tcp_sock *tp)
{
	return !tp->lost_out && !tp->sacked_out && !tp->retrans_out &&
	       !(tp->ecn_flags & TCP_ECN_OK) && !BPF_CORE_READ_BITFIELD(tp, tlp_retrans);
}

SEC("struct_ops")
__u32 BPF_PROG(kumi_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_totals *sum = all();
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (settings.forgives_stall && is_stall(tp)) {
		if (sum)
			sum->stalls++;
		/* The kernel sets the window to this when the reduction is complete. */
		return tp->snd_cwnd > 2 ? tp->snd_cwnd : 2;
	}
	if (memory)
		retreat(memory, tp);
	if (sum)
		sum->losses++;
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(kumi_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (memory)
		learn(memory, tcp_sk(sk));
	cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
void BPF_PROG(kumi_set_state, struct sock *sk, __u8 state)
{
	cubictcp_state(sk, state);
}

SEC("struct_ops")
void BPF_PROG(kumi_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
}

SEC("struct_ops")
__u32 BPF_PROG(kumi_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops kumi = {
	.init = (void *)kumi_init,
	.ssthresh = (void *)kumi_ssthresh,
	.cong_avoid = (void *)kumi_cong_avoid,
	.set_state = (void *)kumi_set_state,
	.cwnd_event = (void *)kumi_cwnd_event,
	.pkts_acked = (void *)kumi_pkts_acked,
	.undo_cwnd = (void *)kumi_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED, /* any program may choose it */
	.name = "kumi",
};
