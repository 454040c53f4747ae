/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * In a collective within a cluster: a window that leaves room in a shallow switch for everybody else's.
 *
 * Where a round trip is short, a full queue wins nothing and costs all: in an all-to-all many flows meet
 * in one port, and what overflows it waits for a timeout of many round trips. As TCP Vegas does, each flow
 * keeps a few packets queued, known from how much longer than the shortest the round trip is.
 */
#ifndef KUMI_TCP_MODEST_H
#define KUMI_TCP_MODEST_H

#include "path.h"

/*
 * Packets of a flow that may stand in queues. How many flows share the port and how deep it is nobody says:
 * a rank's connections begin in the middle, take one more each while nothing is lost, and a quarter less
 * when something is. Below half of it a window grows, above it shrinks.
 */
#define ROOM_MIN 2
#define ROOM_FIRST 4
#define ROOM_MAX 32
#define ROOM_GROWS_EVERY_NS 500000000ULL
/* What is lost within this belongs to one overflow. */
#define ROOM_SHRINKS_EVERY_NS 10000000ULL
/* The kernel's fast recovery wants so many. */
#define CWND_MIN 2

/* So long a rank takes the ports of a phase for crowded after it has lost something there. */
#define CROWDED_NS 10000000000ULL

/* What this connection's rank has met; NULL: nobody tells its phases, or the path is not a cluster's. */
static __always_inline struct crowd *crowd_of(const struct kumi_tcp_memory *memory,
					      const struct tcp_sock *tp)
{
	__u32 place;

	if (!memory->rank || !memory->phase || !is_local(tp))
		return NULL;
	place = place_of(memory->rank);
	return place ? bpf_map_lookup_elem(&crowds, &place) : NULL;
}

/* What one connection of a rank loses, in a phase that the program has named, the others could have. */
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

/* The packets that each may have in queues now. */
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
 * Where this connection is to be modest: in a phase that the program has named, on a short path, when packets
 * were lost there; else NULL. Where none is, round trips tell of busy processors as often as of queues.
 */
static __always_inline struct crowd *crowd_around(const struct kumi_tcp_memory *memory,
						  const struct tcp_sock *tp)
{
	struct crowd *crowd = crowd_of(memory, tp);
	__u64 at_ns = crowd ? crowd->lost_at_ns[memory->phase % KUMI_PHASES_MAX] : 0;

	return at_ns && ack_ns(tp) < at_ns + CROWDED_NS ? crowd : NULL;
}

/* The shortest round trip of a round: what delayed acknowledgements add is not the queue's. */
static __always_inline void note_rtt(struct kumi_tcp_memory *memory, const struct tcp_sock *tp)
{
	__u32 rtt_us = tp->rack.rtt_us;

	if (rtt_us && (!memory->round_rtt_us || rtt_us < memory->round_rtt_us))
		memory->round_rtt_us = rtt_us;
}

/* Has the window follow the room there is; false where nothing calls for modesty. */
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
	rtt_us = memory->round_rtt_us;
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
	memory->round_rtt_us = 0;
	if (queued < room / 2 && is_used)
		tp->snd_cwnd = cwnd + 1;
	else if (queued > room && cwnd > CWND_MIN)
		tp->snd_cwnd = cwnd - 1 - (cwnd - CWND_MIN) / 8;
	return true;
}

#endif
