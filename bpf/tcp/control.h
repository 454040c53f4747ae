/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The control: a rate that is known is held, one that is not is searched, and where others share
 * the path it is CUBIC. docs/explanation/tcp.md derives the constants, and crates/congestion is the
 * same in Rust, without the counts of fair_share.h.
 *
 *   R  bottleneck rate of the phase     q  queue: shortest round trip of a round, less T
 *   T  shortest round trip              s  step of a probe
 *
 *   search    cwnd + 1 per packet acknowledged   P = 2 cwnd / RTT, at most R; none if R is unknown
 *   hold      cwnd = 2 P T + P / 1024 + 2        P = R; R (1 + s) in a probe; R (1 - q / T) at a
 *                                                queue, between R 3/4 and R 31/32
 *   compete   cwnd of CUBIC  P = 5/4 cwnd / RTT; if cwnd is not full, at least R, or 5/4 R until R
 *                            is the path's limit; none if it was full for 32 rounds, or R is
 *                            unknown
 *
 * In an all-to-all, cwnd paces what does not fill it even if R is unknown, and the pace of hold and
 * compete is at least 10 / T.
 *
 *             ┌──────────── idle for an RTO, R known ─────────────┐
 *             ▼                                                   │
 *   search ──cwnd ≥ R T─► hold ──32 rounds, or q in 4 rounds──► compete
 *      │                   └── less than R arrives, twice ────────▲
 *      └── queue or loss ─────────────────────────────────────────┘
 */
#ifndef KUMI_TCP_CONTROL_H
#define KUMI_TCP_CONTROL_H

#include "fair_share.h"
#include "hold.h"

/* Returns whether a window of `flying` packets overflowed because of the path's rate. */
static __always_inline bool explains(const struct kumi_tcp_path *path, const struct tcp_sock *tp,
				     __u32 flying)
{
	__u32 full = packets_of(rate_of(path), rtt_min_us(tp));

	return full >= 2 * CWND_MIN && full >= flying / 4;
}

/* Begins a round that ends with a packet sent after `until` deliveries. */
static __always_inline void begin_round(struct kumi_tcp_memory *memory, __u32 until)
{
	memory->before_rtt_us = memory->round_rtt_us;
	memory->before_flying = memory->round_flying;
	memory->round_until = until;
	memory->round_rtt_us = 0;
	memory->round_flying = 0;
	memory->round_lost = 0;
	memory->round_pps = 0;
	memory->train_pps = 0;
	memory->train_us = 0;
	memory->is_stretched = 0;
	memory->has_anchor = 0;
}

/*
 * Returns whether a packet that left after `delivered_before` deliveries ends the round. A rate
 * that is held can only change if a train shows one, so the round waits for a train, and at most
 * for the packets of two: the first acknowledgement may cover many, and only those after it count.
 */
static __always_inline bool is_round_over(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
					  __u32 delivered_before)
{
	if ((__s32)(delivered_before - memory->round_until) < 0)
		return false;
	return memory->mode != HOLD || memory->train_us ||
	       (__s32)(tp->delivered - memory->round_until) >= 2 * TRAIN;
}

/*
 * Takes a train that arrived slower than it left for the path's limit, if another one agrees: on a
 * busy host, the times of a single one show as much about the processor as about the path.
 */
static __always_inline void agree(struct kumi_tcp_memory *memory, struct kumi_tcp_path *path, __u64 now_ns)
{
	__u32 pps = memory->train_pps, top_pps = path->top_pps;

	if (pps > top_pps + top_pps / 8) {
		path->top_pps = pps;
		return;
	}
	if (pps < top_pps - top_pps / 8)
		return;
	path->is_bounded = 1;
	note_rate(path, top_pps, now_ns);
}

static __always_inline void end_round(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 queue = has_train(memory) ? queue_us(tp, memory->round_rtt_us) : 0;
	/* An eighth of the round trip is a queue on any path (HyStart). */
	bool has_queue = queue > noise_us(tp) + (path->is_bounded ? 0 : rtt_min_us(tp) / 8);

	if (queue > memory->deepest_us)
		memory->deepest_us = queue;
	if (memory->train_pps && memory->is_stretched && !path->is_bounded)
		agree(memory, path, ack_ns(tp));
	else if (memory->train_pps && path->is_bounded && memory->mode != HOLD)
		note_rate(path, memory->train_pps, ack_ns(tp));
	if (memory->train_pps && memory->is_stretched)
		note_limit(memory, memory->train_pps);
	if (memory->mode == SEARCH && has_queue)
		compete(memory, sk, tp->snd_cwnd / 2); /* the window that caused it */
	else if (memory->mode == HOLD)
		end_held_round(memory, sk);
	else
		memory->held_rounds = memory->round_flying > tp->snd_cwnd / 2 ? memory->held_rounds + 1 : 0;
	begin_round(memory, tp->delivered);
}

/*
 * Measures the rate: the kernel's sample, and the time in which the packets of this round arrive
 * since its first acknowledgement. The second one needs no window that fills the path.
 */
static __always_inline void measure(struct kumi_tcp_memory *memory, const struct tcp_sock *tp,
				    const struct rate_sample *rs)
{
	struct kumi_tcp_path *path = path_of(memory);
	__u64 arrived_us, sent_us, paced_us = 0;
	__u32 packets, pps, gap_us, more_us;

	if (rs->delivered > 0 && rs->interval_us > 0) {
		pps = pps_of(rs->delivered, rs->interval_us);
		if (pps > memory->round_pps)
			memory->round_pps = pps;
		if (rs->delivered >= TRAIN && rs->interval_us * 7 > rs->snd_interval_us * 8ULL)
			note_limit(memory, pps);
		/*
		 * A program that sends less than the path carries shows what it sends. A rate
		 * that is held shows itself, and the highest of many samples a little more.
		 */
		if (memory->mode != HOLD &&
		    (!rs->is_app_limited || (path->is_bounded && pps > rate_of(path))))
			note_rate(path, pps, ack_ns(tp));
	}
	if (BPF_CORE_READ_BITFIELD(tp, chrono_type) >= HELD_UP_BY_BUFFER)
		memory->is_held_up = 1;
	if (!memory->has_anchor) {
		memory->has_anchor = 1;
		memory->is_held_up = 0;
		memory->anchor_at_us = tp->tcp_mstamp;
		memory->anchor_sent_us = tp->first_tx_mstamp;
		memory->anchor_delivered = tp->delivered;
		memory->train_last_us = tp->tcp_mstamp;
		memory->gap_us = 0;
		return;
	}
	gap_us = tp->tcp_mstamp - memory->train_last_us;
	if (gap_us > memory->gap_us)
		memory->gap_us = gap_us;
	memory->train_last_us = tp->tcp_mstamp;
	packets = tp->delivered - memory->anchor_delivered;
	arrived_us = tp->tcp_mstamp - memory->anchor_at_us;
	sent_us = tp->first_tx_mstamp - memory->anchor_sent_us;
	/* A pause of the program ends the train. */
	if (((struct sock *)tp)->sk_pacing_status != SK_PACING_NONE)
		paced_us = 2 * SECOND_US * packets / pace_of((struct sock *)tp);
	if (sent_us > paced_us + SECOND_US / CLUMPS_PS) {
		memory->has_anchor = 0;
		return;
	}
	/*
	 * Hosts hold acknowledgements back for parts of a millisecond, so a shorter time shows
	 * none. A single packet may have waited for a second one before its acknowledgement, unless
	 * one before it is missing.
	 */
	if (packets < TRAIN || arrived_us * CLUMPS_PS < SECOND_US ||
	    (rs->acked_sacked < 2 && ca_state(tp) == TCP_CA_Open))
		return;
	/*
	 * The longest time between two acknowledgements is how far a rate may be too high. Before a
	 * rate is known, it counts.
	 */
	more_us = memory->mode == SEARCH ? memory->gap_us : 0;
	if (memory->mode != SEARCH && arrived_us < rtt_min_us(tp) / 8)
		return;
	/* The highest of many rates counts, so each is that of a longer train. */
	if (memory->mode == COMPETE && arrived_us < rtt_min_us(tp) / 2 &&
	    arrived_us * CLUMPS_PS < 4 * SECOND_US)
		return;
	memory->train_us = arrived_us;
	memory->train_pps = pps_of(packets, (arrived_us > sent_us ? arrived_us : sent_us) + more_us);
	/* A long pause between acknowledgements shows a busy host. */
	memory->is_stretched =
		arrived_us * 7 > sent_us * 8 && memory->gap_us * 4 <= arrived_us && !memory->is_held_up;
}

/* Answers losses while a rate is searched or held. */
static __always_inline void answer_losses(struct kumi_tcp_memory *memory, struct sock *sk)
{
	struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 flying = most_flying(memory), pps = rate_of(path);
	__u32 arrived_pps = memory->round_pps > memory->train_pps ? memory->round_pps : memory->train_pps;
	__u32 share = packets_of(arrived_pps, rtt_min_us(tp));

	if (memory->round_lost <= (flying + TOLERATED / 2) / TOLERATED)
		return;
	if (memory->mode == SEARCH) {
		/* The first acknowledgements of a burst show less than its end. */
		if (!memory->train_pps || share > flying)
			share = flying;
		else if (share < flying / 2)
			share = flying / 2;
		/* A burst that overflows before it could show a rate leaves none. */
		if (explains(path, tp, flying))
			path->is_bounded = 1;
		cut(memory, sk, share);
	} else if (memory->mode == HOLD && flying < packets_of(pps, rtt_min_us(tp)) / 4) {
		/* A short burst that meets others shows no rate. */
		show_limit(memory);
		cut(memory, sk, flying);
		path->best_pps = pps - pps / 4;
		path->last_pps = 0;
	} else if (memory->mode == HOLD && !memory->lost_pps) {
		/* The end of the round shows what arrives. */
		memory->lost_pps = pps;
		if (memory->is_probing || memory->probed_pps)
			memory->lost_pps += pps / memory->step;
		show_limit(memory);
		/* A message that ends with this round has no later one that judges the probe. */
		if (memory->is_probing || memory->probed_pps)
			fail_probe(memory);
		memory->is_probing = 0;
		memory->probed_pps = 0;
	}
}

/*
 * Returns whether a loss came without a queue, on a path that has shown one twice as long as noise:
 * the network lost it, and no port overflowed.
 */
static __always_inline bool is_stray(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 rtt_us =
		memory->round_rtt_us > memory->before_rtt_us ? memory->round_rtt_us : memory->before_rtt_us;

	return rtt_us && tp->lost_out && memory->deepest_us > 2 * noise_us(tp) &&
	       queue_us(tp, rtt_us) < memory->deepest_us / 2 && tp->lost_out * TOLERATED <= in_flight(tp);
}

static __always_inline bool is_repairing(const struct tcp_sock *tp)
{
	return ca_state(tp) >= TCP_CA_CWR && ca_state(tp) != TCP_CA_Loss;
}

/*
 * Sets the window in a repair: proportional rate reduction (RFC 6937). Where nothing is paced, the
 * slow start bound keeps a burst away from the port. The kernel does it only for controls without
 * `cong_control`, and counts what left.
 */
static __always_inline void reduce(struct kumi_tcp_memory *memory, struct tcp_sock *tp,
				   const struct rate_sample *rs, bool is_paced)
{
	__u32 pipe = in_flight(tp), left = tp->prr_out, target = tp->snd_ssthresh;
	__u32 due, more;

	if (!memory->repair_flying) {
		memory->repair_flying = rs->prior_in_flight ? rs->prior_in_flight : 1;
		memory->repair_delivered = 0;
	}
	memory->repair_delivered += rs->acked_sacked;
	due = memory->repair_delivered;
	if (pipe > target) {
		due = ((__u64)target * due + memory->repair_flying - 1) / memory->repair_flying;
		more = due > left ? due - left : 0;
	} else {
		more = due > left + rs->acked_sacked ? due - left : rs->acked_sacked;
		more += !rs->losses;
		if (is_paced || more > target - pipe)
			more = target - pipe;
	}
	set_window(tp, pipe + more);
}

/* Sets window and pace. */
static __always_inline void steer(struct kumi_tcp_memory *memory, struct sock *sk,
				  const struct rate_sample *rs)
{
	struct kumi_tcp_path *path = path_of(memory);
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 pps = rate_of(path);
	bool is_full = rs->prior_in_flight > tp->snd_cwnd / 2, is_at_once, is_paced;
	__u64 clocked;

	if (memory->train_pps > pps)
		pps = memory->train_pps;
	switch (memory->mode) {
	case SEARCH:
		if (is_full)
			set_window(tp, tp->snd_cwnd + rs->acked_sacked);
		clocked = 2 * pps_of(tp->snd_cwnd, srtt_us(tp));
		if (path->is_bounded || memory->is_local || (memory->is_crowded && !is_full))
			set_pace(sk, clocked < pps || !path->is_bounded ? clocked : pps);
		else
			set_burst(sk, clocked);
		if (!path->is_bounded || tp->snd_cwnd < packets_of(pps, rtt_min_us(tp)))
			break;
		if (is_spaced(tp) && has(KUMI_TCP_PACED_RESTART))
			hold(memory, sk, false);
		else
			compete(memory, sk, tp->snd_cwnd);
		break;
	case HOLD:
		pps = rate_of(path);
		if (memory->lost_pps && memory->train_pps && memory->train_pps < pps)
			pps = memory->train_pps;
		if (memory->queue_rounds || memory->lost_pps)
			pps -= drained_pps(memory, tp, pps);
		else if (has_probe_pace(memory, tp, pps))
			pps += pps / memory->step;
		set_window(tp, held_window(memory, tp, pps > rate_of(path) ? pps : rate_of(path)));
		set_pace(sk, least_pace(memory, tp, pps));
		break;
	default:
		if (tp->snd_ssthresh == TCP_INFINITE_SSTHRESH) /* from before a cut that was undone */
			tp->snd_ssthresh = tp->snd_cwnd;
		/*
		 * Acknowledgements space out a window that has long been full. Paced as well, it
		 * would leave the losses of a shared port to unpaced neighbours.
		 */
		is_at_once = path->is_bounded ? is_full && memory->held_rounds > HELD_ROUNDS
					      : is_full || !memory->is_crowded;
		is_paced = memory->is_local || (is_spaced(tp) && !is_at_once);
		if (memory->is_local && ca_state(tp) == TCP_CA_CWR) {
			set_window(tp, tp->snd_ssthresh);
		} else if (is_repairing(tp)) {
			reduce(memory, tp, rs, is_paced && path->is_bounded);
		} else {
			if (memory->repair_flying && ca_state(tp) < TCP_CA_CWR)
				set_window(tp, tp->snd_ssthresh);
			memory->repair_flying = 0;
			if (rs->acked_sacked)
				cubictcp_cong_avoid(sk, 0, rs->acked_sacked);
		}
		clocked = pps_of(tp->snd_cwnd, srtt_us(tp)) * 5ULL / 4;
		if (memory->is_local) /* spaced out, the packets fit this host's queue */
			pps = pps && pps + pps / STEP_LAST < clocked ? pps + pps / STEP_LAST : clocked;
		else if (!path->is_bounded || is_full)
			pps = clocked;
		else /* what fits the window leaves at the path's rate */
			pps = is_limited(memory) ? pps : pps + pps / STEP_LAST;
		if (pps < clocked && !memory->is_local)
			pps = clocked;
		if (is_paced)
			set_pace(sk, memory->is_local ? pps : least_pace(memory, tp, pps));
		else
			set_burst(sk, clocked);
	}
	take_share(memory, sk);
	/* Sends the first lost packet at once: its timer counts from its first departure. */
	if (is_repairing(tp) && tp->lost_out && !tp->prr_out && tp->snd_cwnd <= in_flight(tp))
		set_window(tp, in_flight(tp) + 1);
}

#endif
