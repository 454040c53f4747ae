/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* State of the programs: the settings, each connection's memory, routes, totals. */
#ifndef KUMI_TCP_MEMORY_H
#define KUMI_TCP_MEMORY_H

#include "kernel.h"
#include "intf.h"
#include "pages.h"

/*
 * Written before the programs are loaded. It is the only constant, so its place is the start of the
 * read-only data.
 */
const volatile struct kumi_tcp_settings settings = {};

/* Most hosts with a remembered route. The least recently used is forgotten. */
#define ROUTES_MAX 4096

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kumi_tcp_memory);
} memories SEC(".maps");

/* Key of a route: the network namespace and the far host. IPv4 addresses are mapped to IPv6. */
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

/* Processes of `kumi run`, by the number of the thread group. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RANKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_tcp_process);
} ranks SEC(".maps");

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
#define COUNT(what)                                \
	do {                                       \
		struct kumi_tcp_totals *t = all(); \
		if (t)                             \
			t->what++;                 \
	} while (0)

static __always_inline bool has(__u32 mechanism)
{
	return settings.mechanisms & mechanism;
}

static __always_inline bool is_longer(__u32 ticks, __u32 than_us)
{
	return (__u64)ticks * settings.tick_us > than_us;
}

/*
 * Sets the options that every kernel has. `target` is a socket of the congestion control, or the
 * context of sockops. Values that the program or its route has set for `tp` stay, unless kumi's
 * timer is shorter.
 */
#define set_options(target, tp, options)                                                           \
	do {                                                                                       \
		int rto_us = settings.rto_min_us, delack_us = settings.delack_max_us;              \
		int unsent = settings.unsent_bytes_max;                                            \
		__u32 rto_ticks = (tp)->inet_conn.icsk_rto_min;                                    \
		__u32 delack_ticks = (tp)->inet_conn.icsk_delack_max;                              \
		if (has(KUMI_TCP_SHORT_RTO) && is_longer(rto_ticks, rto_us) &&                     \
		    !bpf_setsockopt(target, SOL_TCP, TCP_BPF_RTO_MIN, &rto_us, sizeof(int)))       \
			(options)->rto_min_ticks = rto_ticks;                                      \
		if (has(KUMI_TCP_SHORT_RTO) && is_longer(delack_ticks, delack_us) &&               \
		    !bpf_setsockopt(target, SOL_TCP, TCP_BPF_DELACK_MAX, &delack_us, sizeof(int))) \
			(options)->delack_max_ticks = delack_ticks;                                \
		if (has(KUMI_TCP_UNSENT_CAP) && !(tp)->notsent_lowat &&                            \
		    !bpf_setsockopt(target, SOL_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(int)))     \
			(options)->is_capped = 1;                                                  \
	} while (0)

static __always_inline struct kumi_tcp_path *path_of(struct kumi_tcp_memory *memory)
{
	return &memory->phases[memory->phase % KUMI_PHASES_MAX];
}

#endif
