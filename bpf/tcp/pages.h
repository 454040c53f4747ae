/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Owners of sockets, and the pages in which their processes name phases. */
#ifndef KUMI_TCP_PAGES_H
#define KUMI_TCP_PAGES_H

#include "kernel.h"
#include "intf.h"

/* Most processes of `kumi run` on this host at one time: ten bits of a rank. */
#define RANKS_MAX 1024

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct kumi_tcp_owner);
} owners SEC(".maps");

struct phase_page_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct kumi_phase_page)); /* by size: clang leaves the type out of BTF */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, RANKS_MAX);
	__type(key, __u32);
	__array(values, struct phase_page_map);
} phase_pages SEC(".maps");

/* Number of times that each place was given back. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RANKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} generations SEC(".maps");

/* Returns the place of `rank`, an index; 0 if its process has left it. */
static __always_inline __u32 place_of(__u32 rank)
{
	__u32 place = rank % RANKS_MAX;
	__u32 *generation = bpf_map_lookup_elem(&generations, &place);

	return generation && *generation == rank / RANKS_MAX ? place : 0;
}

/* Returns the page of `rank`; NULL if no program names phases. */
static __always_inline struct kumi_phase_page *page_of(__u32 rank)
{
	__u32 place = place_of(rank);
	__u32 first = 0;
	void *map;

	if (!place)
		return NULL;
	map = bpf_map_lookup_elem(&phase_pages, &place);
	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

#endif
