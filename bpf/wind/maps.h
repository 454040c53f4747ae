/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Maps of the Wind program, and its scratch memory. */
#ifndef KUMI_WIND_MAPS_H
#define KUMI_WIND_MAPS_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "intf.h"

/* docs/spec/wind.md */
#define REQUEST_KIND 0x51 /* kind 5, version 1 */
#define RESPONSE_KIND 0x61
#define OPERATION_RECORD 4
#define ANSWER_RECORD 5
#define SUMMARY_RECORD 12
#define QUIET 2 /* flags of a request */
#define WANTS_SUMMARY 4
#define HEADER_BYTES 16
#define REQUEST_HEAD_BYTES 56 /* header and operation, without payload and operands */
#define ANSWER_HEAD_BYTES 12
#define SUMMARY_BYTES 20
#define SUMMARY_REQUESTS 64
#define TAG_BYTES 8
#define RUN_HEAD_BYTES 6

enum { PUT, PUT_DIFF, GET, FETCH_ADD, COMPARE_SWAP, SWAP, MASKED_STORE };
enum { REFUSED_REGION = 1, REFUSED_BOUNDS, REFUSED_ALIGNMENT, REFUSED_DIFF };

/* Longest UDP payload of a request: a frame of 1500 bytes has 1472. */
#define REQUEST_BYTES_MAX 1480
/* The scratch memory of a packet, with room for accesses that begin in it. */
#define PACKET_BYTES_MAX 4096
/* Most runs of a diff, and its end. */
#define RUNS_MAX (REQUEST_BYTES_MAX / RUN_HEAD_BYTES + 1)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, KUMI_WIND_SESSIONS_MAX);
	__type(key, struct kumi_wind_name);
	__type(value, struct kumi_wind_session);
} sessions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_WIND_REGIONS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_wind_region);
} regions SEC(".maps");

/* Memory of the regions, by number: arrays of pages, of any length (Linux 5.10). */
struct memory {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, KUMI_WIND_PAGE_BYTES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, KUMI_WIND_REGIONS_MAX);
	__type(key, __u32);
	__array(values, struct memory);
} memories SEC(".maps");

/* Windows of the sessions of each owner. */
struct windows {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct kumi_wind_window));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, KUMI_WIND_OWNERS_MAX);
	__type(key, __u32);
	__array(values, struct windows);
} owners SEC(".maps");

/* Copies of a request and of its response. A packet is handled without being interrupted. */
struct scratch {
	__u8 request[PACKET_BYTES_MAX];
	__u8 response[PACKET_BYTES_MAX];
	__u64 word;       /* result of an atomic operation */
	__u64 summarized; /* request whose response has a summary, and 1; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline struct scratch *own_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

#endif
