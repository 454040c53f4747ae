/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * In a collective within a cluster: a window that leaves room in a shallow switch for other flows.
 *
 * On a path with a short round trip, a full queue gains nothing. In an all-to-all many flows meet
 * in one port, and a packet that overflows it costs a timeout of many round trips. As in TCP Vegas,
 * each flow keeps a few packets queued:
 *
 * queued = cwnd * (rtt - rtt_min) / rtt
 * queued < room / 2   cwnd + 1 per round trip
 * queued > room       cwnd - 1 - (cwnd - CWND_MIN) / 8 per round trip
 */
#ifndef KUMI_TCP_MODEST_H
#define KUMI_TCP_MODEST_H

#include "control.h"

/*
 * Room: packets of a flow that may stand in queues. Nothing reports the number of flows in a port
 * or its depth. A rank's connections start in the middle. They take one more each while nothing is
 * lost, and a quarter less after a loss.
 */
#define ROOM_MIN 2
#define ROOM_FIRST 4
#define ROOM_MAX 32
#define ROOM_GROWS_EVERY_NS 500000000ULL
/* Losses within this time belong to one overflow. */
#define ROOM_SHRINKS_EVERY_NS 10000000ULL

/* Time for which a rank treats the ports of a phase as crowded after a loss there. */
#define CROWDED_NS 10000000000ULL

/*
 * Returns the losses of this connection's rank. Returns NULL if no program names phases, or the
 * path is not a cluster's.
 */
static __always_inline struct crowd *crowd_of(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 place;

	if (!memory->rank || !memory->phase || is_spaced(tp))
		return NULL;
	place = place_of(memory->rank);
	return place ? bpf_map_lookup_elem(&crowds, &place) : NULL;
}

/*
 * Records that a connection of a rank lost a packet in a named phase. Its other connections may
 * lose some too.
 */
static __always_inline void note_crowd(const struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	struct crowd *crowd = crowd_of(memory, tp);
	__u32 phase = memory->phase % KUMI_PHASES_MAX;
	__u64 now_ns = bpf_ktime_get_ns();
	__u32 room;

	if (!crowd)
		return;
	if (!crowd->lost_at_ns[phase] || now_ns > crowd->lost_at_ns[phase] + CROWDED_NS) {
		crowd->room[phase] = ROOM_FIRST;
		crowd->room_at_ns[phase] = now_ns;
	} else if (now_ns > crowd->room_at_ns[phase] + ROOM_SHRINKS_EVERY_NS) {
		room = crowd->room[phase];
		room -= (room + 3) / 4;
		crowd->room[phase] = room > ROOM_MIN ? room : ROOM_MIN;
		crowd->room_at_ns[phase] = now_ns;
	}
	crowd->lost_at_ns[phase] = now_ns;
}

/* Returns the room of each connection at present. */
static __always_inline __u32 room_of(struct crowd *crowd, const struct kumi_tcp_memory *memory, __u64 now_ns)
{
	__u32 phase = memory->phase % KUMI_PHASES_MAX;

	if (now_ns > crowd->room_at_ns[phase] + ROOM_GROWS_EVERY_NS) {
		crowd->room_at_ns[phase] = now_ns;
		if (crowd->room[phase] < ROOM_MAX)
			crowd->room[phase]++;
	}
	return crowd->room[phase];
}

/*
 * Returns the crowd if this connection must limit its queue: in a named phase, on a short path,
 * after a loss there. Returns NULL otherwise. Without a loss, a longer round trip comes from busy
 * processors as often as from queues.
 */
static __always_inline struct crowd *crowd_around(const struct kumi_tcp_memory *memory,
						  const struct tcp_sock *tp)
{
	struct crowd *crowd = crowd_of(memory, tp);
	__u64 at_ns = crowd ? crowd->lost_at_ns[memory->phase % KUMI_PHASES_MAX] : 0;

	return at_ns && ack_ns(tp) < at_ns + CROWDED_NS ? crowd : NULL;
}

/* Records the shortest round trip of a round, which excludes delayed acknowledgements. */
static __always_inline void note_rtt(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 rtt_us = tp->rack.rtt_us;

	if (rtt_us && (!memory->crowd_rtt_us || rtt_us < memory->crowd_rtt_us))
		memory->crowd_rtt_us = rtt_us;
}

/* Moves the window towards the room. Returns false if no crowd requires it. */
static __always_inline bool modest(struct kumi_tcp_memory *memory, struct tcp_sock *tp, __u32 acked)
{
	struct crowd *crowd = crowd_around(memory, tp);
	__u32 shortest_us = tp->rtt_min.s[0].v;
	__u32 cwnd = tp->snd_cwnd;
	__u32 room, rtt_us, queued;
	bool is_used;

	if (!crowd)
		return false;
	note_rtt(memory, tp);
	room = room_of(crowd, memory, ack_ns(tp));
	rtt_us = memory->crowd_rtt_us;
	if (rtt_us < shortest_us)
		return true;
	is_used = in_flight(tp) + acked >= cwnd / 2;
	queued = (__u64)cwnd * (rtt_us - shortest_us) / rtt_us;
	if (cwnd < tp->snd_ssthresh && queued < room) { /* slow start, until a queue shows */
		if (is_used)
			tp->snd_cwnd = cwnd + acked;
		return true;
	}
	if (cwnd < tp->snd_ssthresh)
		tp->snd_ssthresh = cwnd;
	memory->credit += acked;
	if (memory->credit < cwnd)
		return true;
	memory->credit = 0; /* a round trip has passed */
	memory->crowd_rtt_us = 0;
	if (queued < room / 2 && is_used)
		tp->snd_cwnd = cwnd + 1;
	else if (queued > room && cwnd > CWND_MIN)
		tp->snd_cwnd = cwnd - 1 - (cwnd - CWND_MIN) / 8;
	return true;
}

#endif
