/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs keep: the settings, each connection's memory, routes, totals. */
#ifndef KUMI_TCP_MEMORY_H
#define KUMI_TCP_MEMORY_H

#include "kernel.h"
#include "intf.h"
#include "pages.h"

/* Filled in before the programs are loaded: the only constant, so that it is where the loader writes. */
const volatile struct kumi_tcp_settings settings = {};

/* Hosts to which a route is remembered; the least used is forgotten. */
#define ROUTES_MAX 4096

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kumi_tcp_memory);
} memories SEC(".maps");

/* A route: the network namespace and the far host, an IPv4 address as IPv6 maps it. */
struct route_key {
	__u64 net_cookie;
	__u8 remote[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ROUTES_MAX);
	__type(key, struct route_key);
	__type(value, struct kumi_tcp_route);
} routes SEC(".maps");

/* Process (thread group) to rank: an index of phase_pages, from 1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RANKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} ranks SEC(".maps");

/* What the connections of a rank have met within a cluster, by phase. Times by CLOCK_MONOTONIC, 0: never. */
struct crowd {
	__u64 lost_at_ns[KUMI_PHASES_MAX]; /* something was lost */
	__u64 room_at_ns[KUMI_PHASES_MAX]; /* the room below was changed */
	__u32 room[KUMI_PHASES_MAX];       /* packets that each connection may have in queues */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RANKS_MAX);
	__type(key, __u32);
	__type(value, struct crowd);
} crowds SEC(".maps");

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

/* Adds one to a total. */
#define COUNT(what)                               \
	do {                                      \
		struct kumi_tcp_totals *t = all(); \
		if (t)                            \
			t->what++;                \
	} while (0)

static __always_inline bool has(__u32 mechanism)
{
	return settings.mechanisms & mechanism;
}

/* The options that any kernel has: on a socket of the congestion control's, or of sockops'. */
#define set_options(sk)                                                                       \
	do {                                                                                  \
		int rto_us = settings.rto_min_us, delack_us = settings.delack_max_us;         \
		int unsent = settings.unsent_bytes_max;                                       \
		if (has(KUMI_TCP_SHORT_RTO)) {                                                \
			bpf_setsockopt(sk, SOL_TCP, TCP_BPF_RTO_MIN, &rto_us, sizeof(int));   \
			bpf_setsockopt(sk, SOL_TCP, TCP_BPF_DELACK_MAX, &delack_us, sizeof(int)); \
		}                                                                             \
		if (has(KUMI_TCP_UNSENT_CAP))                                                 \
			bpf_setsockopt(sk, SOL_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(int)); \
	} while (0)

static __always_inline struct kumi_tcp_path *path_of(struct kumi_tcp_memory *memory)
{
	return &memory->phases[memory->phase % KUMI_PHASES_MAX];
}

#endif
