// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The congestion control `kumi`: CUBIC, except for the traffic patterns of parallel programs.
 *
 *   modest.h   in collectives within a cluster: a window that leaves room in shallow ports
 *   rate.h     estimates the path's rate
 *   pace.h     spaces packets out where they would clump
 *   restart.h  starts at the known rate, after idle time and at the first data
 *   fill.h     sets the window from there until CUBIC takes over
 *   phase.h    keeps parameters apart for each phase of the program
 *   sane.h     corrects windows and thresholds that no program has set
 *   here       a refusal by the host's own queue is not congestion; short timeouts
 *
 * The programs around it:
 *
 *   ranks.h        selects the sockets that use it; acknowledgements before data
 *   connections.h  lists connections, and gives them back
 *
 * States of a connection on a path that is not local:
 *
 *   new ──known route──► paced start ──2 RTT──► filling ──32 RTT──► CUBIC
 *    │                       ▲                     │                  │
 *    │                       │                   loss: keep the       │
 *    │                       │                   delivered rate ──► CUBIC
 *    └─unknown─► slow start  └──── idle for an RTO, then data ◄───────┘
 *                    └──────────────────────────────────────────► CUBIC
 */
#include "sane.h"
#include "modest.h"
#include "restart.h"
#include "fill.h"
#include "phase.h"
#include "ranks.h"
#include "connections.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Sets up a connection that has chosen this control. Returns NULL if there is no memory for it; it
 * then uses CUBIC.
 */
static __always_inline struct kumi_tcp_memory *welcome(struct sock *sk)
{
	struct kumi_tcp_owner *owner = bpf_sk_storage_get(&owners, sk, 0, 0);
	struct kumi_tcp_memory *memory;

	memory = bpf_sk_storage_get(&memories, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (memory && owner)
		memory->rank = owner->rank;
	COUNT(connections);
	cubictcp_init(sk);
	if (memory) {
		memory->ceiling = 0;
		approve(memory, tcp_sk(sk));
	}
	if (memory && has(KUMI_TCP_SHORT_RTO))
		memory->rto_min_us = settings.rto_min_us;
	if (memory)
		set_options(sk, tcp_sk(sk), owner ? &owner->options : &memory->options);
	return memory;
}

SEC("struct_ops")
void BPF_PROG(kumi_init, struct sock *sk)
{
	welcome(sk);
}

SEC("struct_ops")
void BPF_PROG(kumi_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	/*
	 * The kernel does not call `init` in every context: of some hundred connections, one came
	 * without.
	 */
	if (!memory && event == CA_EVENT_TX_START)
		memory = welcome(sk);
	if (memory)
		mend(memory, tcp_sk(sk));
	if (memory && event == CA_EVENT_CWND_RESTART)
		note_silence(memory, tcp_sk(sk));
	if (memory && event == CA_EVENT_TX_START) {
		if (memory->cwnd_before)
			forgive_silence(memory, tcp_sk(sk));
		judge_train(memory, tcp_sk(sk));
		if (has(KUMI_TCP_PHASE_MEMORY))
			follow_phase(memory, sk);
		memory->cwnd_before = 0;
		if (has(KUMI_TCP_FIRST_TARGET) && !memory->has_sent)
			begin(memory, sk);
		memory->has_sent = 1;
		memory->began_at_ns = bpf_ktime_get_ns();
		if (has(KUMI_TCP_PACED_RESTART))
			restart(memory, sk);
		space_out_first(memory, sk);
	}
	cubictcp_cwnd_event(sk, event);
	if (memory)
		approve(memory, tcp_sk(sk));
}

/*
 * Returns whether the window is to be cut because a queue of this host refused a packet. Then
 * nothing is lost, missing or retransmitted, no router has marked, and no tail loss probe has just
 * repaired a loss. Within a cluster the cut is kept: it is recovered quickly, and it gives other
 * users of the queue their share (send-stall, Takano et al., section 4.2).
 */
static __always_inline bool is_stall(const struct tcp_sock *tp)
{
	return !is_local(tp) && !tp->lost_out && !tp->sacked_out && !tp->retrans_out &&
	       !(tp->ecn_flags & TCP_ECN_OK) && !BPF_CORE_READ_BITFIELD(tp, tlp_retrans);
}

SEC("struct_ops")
__u32 BPF_PROG(kumi_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);
	__u32 cwnd;

	if (memory)
		mend(memory, tp);
	if (has(KUMI_TCP_STALL_FORGIVENESS) && is_stall(tp)) {
		/* The kernel sets the window to this when the reduction is complete. */
		cwnd = tp->snd_cwnd > SSTHRESH_MIN ? tp->snd_cwnd : SSTHRESH_MIN;
		COUNT(stalls);
		if (memory) {
			memory->stalls++;
			approve_cut(memory, tp, cwnd);
		}
		return cwnd;
	}
	COUNT(losses);
	cwnd = cubictcp_recalc_ssthresh(sk);
	if (!memory)
		return cwnd;
	if (tp->snd_cwnd < tp->snd_ssthresh)
		cwnd = kept_of_slow_start(memory, tp, cwnd);
	else
		cwnd = kept(memory, tp, cwnd);
	memory->losses++;
	blame_phase_before(memory, tp);
	memory->lost_at_ns = bpf_ktime_get_ns();
	space_out(memory, sk);
	retreat(memory, tp);
	note_crowd(memory, tp);
	approve_cut(memory, tp, cwnd);
	return cwnd;
}

/* Grows the window, by kumi's rules or else by CUBIC's. */
static __always_inline void grow(struct kumi_tcp_memory *memory, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);

	uncap(memory, sk);
	space_out(memory, sk);
	if (has(KUMI_TCP_PHASE_MEMORY))
		follow_phase(memory, sk);
	if (is_local(tp)) {
		path_of(memory)->acked_at_ns = ack_ns(tp);
		if (modest(memory, tp, acked))
			return;
	} else {
		bound_slow_start(memory, tp);
		if (fill(memory, tp, acked))
			return;
		/*
		 * CUBIC's clock continued while the window was held. CUBIC would jump to the window
		 * of the present time.
		 */
		if (memory->has_filled)
			cubictcp_recalc_ssthresh(sk);
		memory->has_filled = 0;
	}
	cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
void BPF_PROG(kumi_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (!memory) {
		cubictcp_cong_avoid(sk, ack, acked);
		return;
	}
	mend(memory, tcp_sk(sk));
	grow(memory, sk, ack, acked);
	approve(memory, tcp_sk(sk));
}

SEC("struct_ops")
void BPF_PROG(kumi_set_state, struct sock *sk, __u8 state)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (memory) {
		mend(memory, tcp_sk(sk));
		if (state == TCP_CA_Loss && ca_state(tcp_sk(sk)) != TCP_CA_Loss) {
			memory->timeouts++;
			memory->restarted_at_ns = 0; /* that start is over */
			COUNT(timeouts);
		}
		approve(memory, tcp_sk(sk));
	}
	cubictcp_state(sk, state);
}

/*
 * Returns whether the path is local, no loss is under repair, and all values are plausible.
 * Processor time is scarce there, and nothing is learnt.
 */
static __always_inline bool is_busy_local(const struct tcp_sock *tp)
{
	return is_local(tp) && ca_state(tp) < TCP_CA_CWR && tp->snd_cwnd <= CWND_MAX &&
	       (tp->snd_ssthresh <= CWND_MAX || tp->snd_ssthresh == TCP_INFINITE_SSTHRESH);
}

SEC("struct_ops")
void BPF_PROG(kumi_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct kumi_tcp_memory *memory;

	/*
	 * Done here and not where the window grows, because deliveries during a repair show the
	 * most.
	 */
	memory = is_busy_local(tcp_sk(sk)) ? NULL : bpf_sk_storage_get(&memories, sk, 0, 0);
	if (memory)
		mend(memory, tcp_sk(sk));
	if (memory && !is_local(tcp_sk(sk))) {
		learn(memory, sk);
		follow_train(memory, tcp_sk(sk));
		confirm(memory, tcp_sk(sk), sample->rtt_us);
		approve(memory, tcp_sk(sk));
	}
	cubictcp_acked(sk, sample);
}

/*
 * The only callback between an acknowledgement, at which the kernel sets the pace, and the packets
 * that it releases.
 */
SEC("struct_ops")
__u32 BPF_PROG(kumi_min_tso_segs, struct sock *sk)
{
	struct kumi_tcp_memory *memory;

	if (is_busy_local(tcp_sk(sk)))
		return CLUMP_MIN;
	memory = bpf_sk_storage_get(&memories, sk, 0, 0);
	if (memory)
		mend(memory, tcp_sk(sk));
	if (memory && !is_local(tcp_sk(sk)) && has(KUMI_TCP_PACED_RESTART) && has(KUMI_TCP_WRITES_PACING)) {
		hold_first(memory, sk);
		hold_pace(memory, sk);
	}
	return CLUMP_MIN;
}

/*
 * Handles a loss that was none. If it was a timeout, the floor is too low for this path: the far
 * end may delay its acknowledgements for longer than it is configured to here. The floor doubles,
 * up to the kernel's own.
 */
SEC("struct_ops")
__u32 BPF_PROG(kumi_undo_cwnd, struct sock *sk)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);
	__u32 cwnd;
	int us;

	if (memory)
		mend(memory, tcp_sk(sk));
	if (memory && ca_state(tcp_sk(sk)) == TCP_CA_Loss && memory->rto_min_us) {
		us = memory->rto_min_us * 2;
		if (us > RTO_MIN_KERNEL_US)
			us = RTO_MIN_KERNEL_US;
		memory->rto_min_us = us;
		bpf_setsockopt(sk, SOL_TCP, TCP_BPF_RTO_MIN, &us, sizeof(us));
		COUNT(spurious);
	}
	cwnd = tcp_reno_undo_cwnd(sk); /* from before the cut, which no program may have seen either */
	return !memory || is_sane_cwnd(memory, cwnd) ? cwnd : memory->ceiling;
}

/* clang-format off */
#define OPERATIONS                                                       \
	.init = (void *)kumi_init,                                       \
	.ssthresh = (void *)kumi_ssthresh,                               \
	.cong_avoid = (void *)kumi_cong_avoid,                           \
	.set_state = (void *)kumi_set_state,                             \
	.cwnd_event = (void *)kumi_cwnd_event,                           \
	.pkts_acked = (void *)kumi_pkts_acked,                           \
	.min_tso_segs = (void *)kumi_min_tso_segs,                       \
	.undo_cwnd = (void *)kumi_undo_cwnd,                             \
	.flags = TCP_CONG_NON_RESTRICTED, /* any program may choose it */ \
	.name = OWN_CONTROL
/* clang-format on */

/*
 * Only one of the two is loaded. The kernel holds the first by a link (6.4), the second by its map.
 */
SEC(".struct_ops.link")
struct tcp_congestion_ops kumi = { OPERATIONS };

SEC(".struct_ops")
struct tcp_congestion_ops kumi_unlinked = { OPERATIONS };
