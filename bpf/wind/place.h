/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Access to the memory of regions. */
#ifndef KUMI_WIND_PLACE_H
#define KUMI_WIND_PLACE_H

#include "maps.h"

/* Longest access that is copied at once, a power of two. */
#define PIECE_BYTES_MAX 1024

/*
 * Copies `bytes` < 2 * PIECE_BYTES_MAX bytes between a page and the packet. The verifier follows no
 * sum of two variables, so the bytes are copied in pieces of constant length: the binary digits of
 * `bytes`.
 */
static __always_inline int copy(__u8 *page, __u64 offset, __u8 *packet, __u64 at, __u32 bytes, int is_write)
{
#pragma unroll
	for (__u32 piece = PIECE_BYTES_MAX; piece > 0; piece >>= 1) {
		if (!(bytes & piece))
			continue;
		/* Keeps what is checked in the registers that are used. */
		asm volatile("" : "+r"(offset), "+r"(at));
		if (offset > KUMI_WIND_PAGE_BYTES - piece || at > PACKET_BYTES_MAX - piece)
			return -1;
		if (is_write)
			bpf_probe_read_kernel(page + offset, piece, packet + at);
		else
			bpf_probe_read_kernel(packet + at, piece, page + offset);
		offset += piece;
		at += piece;
	}
	return 0;
}

/* Copies `bytes` bytes at `place` of a region, which are inside it, from or to a packet. */
static __always_inline int access(void *memory, __u64 place, __u8 *packet, __u32 at, __u32 bytes,
				  int is_write)
{
	for (int part = 0; part < 2; part++) {
		__u32 number = place / KUMI_WIND_PAGE_BYTES;
		__u32 offset = place % KUMI_WIND_PAGE_BYTES;
		__u32 rest = KUMI_WIND_PAGE_BYTES - offset;
		__u32 count = bytes < rest ? bytes : rest;
		__u8 *page;

		if (!count)
			return 0;
		page = bpf_map_lookup_elem(memory, &number);
		if (!page || copy(page, offset, packet, at, count, is_write))
			return -1;
		place += count;
		at += count;
		bytes -= count;
	}
	return 0;
}

/* Writes bytes of the request to the memory of region `number`. */
__noinline int write_region(__u32 number, __u64 place, __u32 at, __u32 bytes)
{
	struct scratch *scratch = own_scratch();
	void *memory = bpf_map_lookup_elem(&memories, &number);

	if (!scratch || !memory)
		return -1;
	return access(memory, place, scratch->request, at, bytes, 1);
}

/* Reads bytes of the memory of region `number` to the response. */
__noinline int read_region(__u32 number, __u64 place, __u32 at, __u32 bytes)
{
	struct scratch *scratch = own_scratch();
	void *memory = bpf_map_lookup_elem(&memories, &number);

	if (!scratch || !memory)
		return -1;
	return access(memory, place, scratch->response, at, bytes, 0);
}

/*
 * Walks over the runs of a diff, | offset (32) | length (16) | bytes |. Writes them if `is_write`
 * is set. Returns 0, or a refusal.
 */
__noinline int walk_diff(__u32 number, __u64 place, __u32 end, __u64 region_bytes, int is_write)
{
	struct scratch *scratch = own_scratch();
	__u32 at = REQUEST_HEAD_BYTES;

	if (!scratch)
		return -1;
	for (int run = 0; run < RUNS_MAX; run++) {
		__u32 offset, bytes;
		const __u8 *head;

		if (at >= end)
			return 0;
		if (at + RUN_HEAD_BYTES > end || at > PACKET_BYTES_MAX - RUN_HEAD_BYTES)
			return REFUSED_DIFF;
		head = scratch->request + at;
		offset = head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3];
		bytes = head[4] << 8 | head[5];
		at += RUN_HEAD_BYTES;
		if (at + bytes > end)
			return REFUSED_DIFF;
		if (place + offset < place || place + offset > region_bytes ||
		    bytes > region_bytes - (place + offset))
			return REFUSED_BOUNDS;
		if (is_write && bytes && write_region(number, place + offset, at, bytes))
			return -1;
		at += bytes;
	}
	return REFUSED_DIFF;
}

/* Tries of a masked store whose word others change at the same time. */
#define STORE_TRIES 256

/*
 * Executes an atomic operation on the word at `place`, a multiple of 8 inside the region. Writes
 * the word before it to the scratch area.
 */
__noinline int update_region(__u32 number, __u64 place, __u32 operation)
{
	struct scratch *scratch = own_scratch();
	void *memory = bpf_map_lookup_elem(&memories, &number);
	__u32 index = place / KUMI_WIND_PAGE_BYTES;
	__u64 first, second, before, *word;
	__u8 *page;

	if (!scratch || !memory)
		return -1;
	page = bpf_map_lookup_elem(memory, &index);
	if (!page)
		return -1;
	word = (__u64 *)(page + (place & (KUMI_WIND_PAGE_BYTES - 8)));
	first = bpf_be64_to_cpu(*(__u64 *)(scratch->request + REQUEST_HEAD_BYTES));
	second = bpf_be64_to_cpu(*(__u64 *)(scratch->request + REQUEST_HEAD_BYTES + 8));
	switch (operation) {
	case FETCH_ADD:
		scratch->word = __sync_fetch_and_add(word, first);
		return 0;
	case COMPARE_SWAP:
		scratch->word = __sync_val_compare_and_swap(word, first, second);
		return 0;
	case SWAP:
		scratch->word = __sync_lock_test_and_set(word, first);
		return 0;
	}
	before = *(volatile __u64 *)word;
	for (int try = 0; try < STORE_TRIES; try++) {
		__u64 stored = (before & ~first) | (second & first);
		__u64 found = __sync_val_compare_and_swap(word, before, stored);

		if (found == before) {
			scratch->word = before;
			return 0;
		}
		before = found;
	}
	return -1;
}

#endif
