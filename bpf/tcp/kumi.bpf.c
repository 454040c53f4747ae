// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The congestion control `kumi`, for the traffic patterns of parallel programs.
 *
 *   path.h     a path's rate and its age; window and pace
 *   modes.h    the modes of the control, and its constants
 *   fair_share.h  a connection's part of the links in an all-to-all
 *   hold.h     a known rate that is held
 *   control.h  the control itself: rounds, rates, losses, window and pace
 *   route.h    starts at the known rate: after idle time, and at the first data
 *   phase.h    keeps parameters apart for each phase of the program
 *   sane.h     corrects windows and thresholds that no program has set
 *   here       a refusal by the host's own queue is not congestion; short timeouts
 *
 * The programs around it:
 *
 *   ranks.h        selects the sockets that use it; acknowledgements before data
 *   connections.h  lists connections, and gives them back
 */
#include "phase.h"
#include "ranks.h"
#include "connections.h"

/* The kernel's floor of the retransmission timeout, in microseconds (TCP_RTO_MIN). */
#define RTO_MIN_KERNEL_US 200000

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
		memory->step = STEP;
		memory->seen_lost = tcp_sk(sk)->lost;
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

/* The first packet has left on an empty path. */
static __always_inline void start(struct kumi_tcp_memory *memory, struct sock *sk)
{
	end_round(memory, sk);
	if (has(KUMI_TCP_PHASE_MEMORY))
		follow_phase(memory, sk);
	memory->round_until = tcp_sk(sk)->delivered + 1;
	if (has(KUMI_TCP_FIRST_TARGET) && !memory->has_sent)
		begin(memory, sk);
	memory->has_sent = 1;
	pace_unknown(memory, sk);
	if (has(KUMI_TCP_PACED_RESTART))
		restart(memory, sk);
	take_share(memory, sk);
}

/* Continues as CUBIC after a timeout, for which the kernel has set the window. */
static __always_inline void retreat(struct kumi_tcp_memory *memory, struct sock *sk, __u32 cwnd)
{
	compete(memory, sk, tcp_sk(sk)->snd_cwnd);
	tcp_sk(sk)->snd_ssthresh = cubic_ssthresh(cwnd);
}

/* All packets in flight are taken for lost. The kernel sets the window. */
static __always_inline void time_out(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);

	memory->timeouts++;
	COUNT(timeouts);
	if (memory->mode != COMPETE)
		retreat(memory, sk, tp->snd_cwnd);
	cubictcp_state(sk, TCP_CA_Loss);
}

SEC("struct_ops")
void BPF_PROG(kumi_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct kumi_tcp_memory *memory;

	if (event != CA_EVENT_TX_START && event != CA_EVENT_LOSS)
		return;
	memory = bpf_sk_storage_get(&memories, sk, 0, 0);
	/*
	 * The kernel does not call `init` in every context: of some hundred connections, one came
	 * without.
	 */
	if (!memory)
		memory = welcome(sk);
	if (!memory)
		return;
	mend(memory, tcp_sk(sk));
	if (event == CA_EVENT_TX_START) {
		join_crowd(memory, sk);
		/* A timer's retransmission is no start. */
		if (ca_state(tcp_sk(sk)) < TCP_CA_CWR)
			start(memory, sk);
		cubictcp_cwnd_event(sk, event);
	} else {
		time_out(memory, sk);
	}
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
	return is_spaced(tp) && !tp->lost_out && !tp->sacked_out && !tp->retrans_out &&
	       !(tp->ecn_flags & TCP_ECN_OK) && !BPF_CORE_READ_BITFIELD(tp, tlp_retrans);
}

/* Returns the threshold at the start of a repair, and sets the window with which it begins. */
static __always_inline __u32 answer(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 cwnd = tp->snd_cwnd > CWND_MIN ? tp->snd_cwnd : CWND_MIN;

	if (has(KUMI_TCP_STALL_FORGIVENESS) && is_stall(tp)) {
		memory->stalls++;
		COUNT(stalls);
		memory->is_local = 1;
		return cwnd;
	}
	memory->is_local = 0;
	if (memory->repair_flying) /* one repair has ended and the next begins */
		set_window(tp, tp->snd_ssthresh);
	memory->repair_flying = 0;
	cwnd = tp->snd_cwnd > CWND_MIN ? tp->snd_cwnd : CWND_MIN;
	memory->losses++;
	COUNT(losses);
	blame_phase_before(memory, tp);
	/* `answer_losses` judges those of a rate that is searched or held, when counted. */
	if (memory->mode != COMPETE && !tp->lost_out && (tp->ecn_flags & TCP_ECN_OK)) {
		cut(memory, sk, cwnd); /* a router has marked */
		return tp->snd_ssthresh;
	}
	if (memory->mode != COMPETE || is_stray(memory, tp))
		return cwnd;
	memory->deepest_us -= memory->deepest_us / 8;
	if (explains(path_of(memory), tp, cwnd))
		path_of(memory)->is_bounded = 1;
	cwnd = cubictcp_recalc_ssthresh(sk);
	/*
	 * The next acknowledgement calls `reduce`. A timer of RACK has none, so the window is set
	 * here.
	 */
	memory->repair_flying = tp->packets_out > tp->sacked_out ? tp->packets_out - tp->sacked_out : 1;
	memory->repair_delivered = 0;
	set_window(tp, in_flight(tp) < cwnd ? in_flight(tp) + 1 : cwnd);
	return cwnd;
}

SEC("struct_ops")
__u32 BPF_PROG(kumi_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);
	__u32 before, cwnd;

	if (!memory)
		return cubictcp_recalc_ssthresh(sk);
	mend(memory, tp);
	before = tp->snd_cwnd;
	cwnd = answer(memory, sk);
	approve_cut(memory, tp, before, cwnd);
	return cwnd;
}

/*
 * Counts losses. RACK's timer finds those at the end of a burst, for which no acknowledgement is
 * due. The sample of the next acknowledgement leaves them out, so they are answered here, before
 * the round of the burst ends.
 */
static __always_inline void count_losses(struct kumi_tcp_memory *memory, struct sock *sk,
					 const struct rate_sample *rs)
{
	__u32 lost = tcp_sk(sk)->lost, sampled = rs->losses > 0 ? rs->losses : 0;
	bool is_timed = lost - memory->seen_lost > sampled;

	memory->round_lost += lost - memory->seen_lost;
	memory->seen_lost = lost;
	if (is_timed && ca_state(tcp_sk(sk)) != TCP_CA_Loss && memory->mode != COMPETE)
		answer_losses(memory, sk);
}

static __always_inline void acknowledge(struct kumi_tcp_memory *memory, struct sock *sk,
					const struct rate_sample *rs)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 flying = rs->prior_in_flight;

	mend(memory, tp);
	if (has(KUMI_TCP_PHASE_MEMORY))
		follow_phase(memory, sk);
	path_of(memory)->acked_at_ns = ack_ns(tp);
	confirm(memory, tp, rs->rtt_us);
	if (flying > memory->round_flying)
		memory->round_flying = flying;
	count_losses(memory, sk, rs);
	if (rs->rtt_us > 0 && (!memory->round_rtt_us || rs->rtt_us < memory->round_rtt_us))
		memory->round_rtt_us = rs->rtt_us;
	if (rs->delivered > 0 && is_round_over(memory, tp, rs->prior_delivered))
		end_round(memory, sk);
	measure(memory, tp, rs);
	/* The kernel does not announce a timeout within a repair. */
	if (ca_state(tp) == TCP_CA_Loss && memory->mode != COMPETE)
		retreat(memory, sk, most_flying(memory));
	else if (rs->losses > 0)
		answer_losses(memory, sk);
	if (is_delivered(tp))
		leave_crowd(memory);
	else
		join_crowd(memory, sk);
	steer(memory, sk, rs);
	if (has(KUMI_TCP_FIRST_TARGET) && ack_ns(tp) - memory->shared_at_ns > SHARE_EVERY_NS)
		share(memory, sk, ack_ns(tp));
	approve(memory, tp);
}

/* CUBIC for a connection without memory. */
static __always_inline void acknowledge_alone(struct sock *sk, const struct rate_sample *rs)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (ca_state(tp) < TCP_CA_CWR || ca_state(tp) == TCP_CA_Loss)
		cubictcp_cong_avoid(sk, 0, rs->acked_sacked);
	else if (tp->snd_cwnd > tp->snd_ssthresh)
		set_window(tp, tp->snd_ssthresh);
	set_pace(sk, 2 * pps_of(tp->snd_cwnd, srtt_us(tp)));
}

SEC("struct_ops")
void BPF_PROG(kumi_cong_control, struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (memory)
		acknowledge(memory, sk, rs);
	else
		acknowledge_alone(sk, rs);
}

/* The same before Linux 6.10. */
SEC("struct_ops")
void BPF_PROG(kumi_cong_control_6_0, struct sock *sk, const struct rate_sample *rs)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (memory)
		acknowledge(memory, sk, rs);
	else
		acknowledge_alone(sk, rs);
}

SEC("struct_ops")
void BPF_PROG(kumi_release, struct sock *sk)
{
	struct kumi_tcp_memory *memory = bpf_sk_storage_get(&memories, sk, 0, 0);

	if (memory)
		leave_crowd(memory);
}

/* Never called. Kernels before 6.0 require it of programs. */
SEC("struct_ops")
void BPF_PROG(kumi_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
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

	if (memory) {
		mend(memory, tcp_sk(sk));
		memory->repair_flying = 0;
	}
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
	.cwnd_event = (void *)kumi_cwnd_event,                           \
	.undo_cwnd = (void *)kumi_undo_cwnd,                             \
	.release = (void *)kumi_release,                                 \
	.flags = TCP_CONG_NON_RESTRICTED, /* any program may choose it */ \
	.name = OWN_CONTROL
/* clang-format on */

/*
 * Only one of the three is loaded. The kernel holds the first by a link (6.4), and passes it two
 * arguments more (6.10). It holds the last by its map.
 */
SEC(".struct_ops.link")
struct tcp_congestion_ops kumi = {
	OPERATIONS,
	.cong_control = (void *)kumi_cong_control,
};

SEC(".struct_ops.link")
struct tcp_congestion_ops kumi_6_4 = {
	OPERATIONS,
	.cong_control = (void *)kumi_cong_control_6_0,
};

SEC(".struct_ops")
struct tcp_congestion_ops kumi_unlinked = {
	OPERATIONS,
	.cong_avoid = (void *)kumi_cong_avoid,
	.cong_control = (void *)kumi_cong_control_6_0,
};
