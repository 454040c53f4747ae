/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Execution of one request, each number once (docs/spec/wind.md). crates/wind, slots.rs, has the
 * same rules for the program.
 */
#ifndef KUMI_WIND_EXECUTE_H
#define KUMI_WIND_EXECUTE_H

#include "place.h"
#include "tag.h"

#define RUNNING 1
#define NUMBERS_MAX (1ULL << 55)

/* Outcomes of a request beside the refusals. */
enum {
	DONE = 0,
	SILENT = -1,  /* no answer now: it is old, running, forged or malformed */
	PROGRAM = -2, /* left to the program */
};

/* A request, after its header was parsed. */
struct request {
	__u64 number;
	__u64 place;
	__u64 key[2];
	__u32 region;
	__u32 operation;
	__u32 length; /* of the payload, or bytes to read */
	__u32 bytes;  /* of the packet, without its tag */
	__u32 result_bytes;
};

static __always_inline __u64 big64(const __u8 *at)
{
	return bpf_be64_to_cpu(*(const __u64 *)at);
}

static __always_inline __u32 big32(const __u8 *at)
{
	return bpf_ntohl(*(const __u32 *)at);
}

/* Parses the request in the scratch memory. Returns 0, or SILENT if it is malformed. */
static __always_inline int parse(const __u8 *packet, __u32 bytes, struct request *request)
{
	__u32 payload;

	if (bytes < REQUEST_HEAD_BYTES || packet[16] != OPERATION_RECORD ||
	    packet[1] & ~(QUIET | WANTS_SUMMARY))
		return SILENT;
	request->operation = packet[17];
	request->length = packet[18] << 8 | packet[19];
	request->number = big64(packet + 20);
	request->region = big32(packet + 28);
	request->key[0] = *(const __u64 *)(packet + 32);
	request->key[1] = *(const __u64 *)(packet + 40);
	request->place = big64(packet + 48);
	request->bytes = bytes;
	request->result_bytes = 0;
	payload = bytes - REQUEST_HEAD_BYTES;
	switch (request->operation) {
	case PUT:
	case PUT_DIFF:
		return payload == request->length ? 0 : SILENT;
	case GET:
		return payload == 0 ? 0 : SILENT;
	case FETCH_ADD:
	case SWAP:
		return payload == 8 && !request->length ? 0 : SILENT;
	case COMPARE_SWAP:
	case MASKED_STORE:
		return payload == 16 && !request->length ? 0 : SILENT;
	}
	return SILENT;
}

/* Returns 0 if the session may access the place, or a refusal. */
static __always_inline int check(const struct request *request, __u32 owner, __u64 *region_bytes)
{
	__u32 number = request->region & ~KUMI_WIND_KERNEL_REGION;
	struct kumi_wind_region *region = bpf_map_lookup_elem(&regions, &number);
	__u64 bytes = request->operation >= FETCH_ADD ? 8 : request->length;

	if (!region || !region->bytes || region->owner != owner ||
	    (region->key[0] ^ request->key[0]) | (region->key[1] ^ request->key[1]))
		return REFUSED_REGION;
	*region_bytes = region->bytes;
	if (request->operation == PUT_DIFF)
		bytes = 0;
	if (request->place > region->bytes || bytes > region->bytes - request->place)
		return REFUSED_BOUNDS;
	if (request->operation >= FETCH_ADD && request->place % 8)
		return REFUSED_ALIGNMENT;
	return 0;
}

/* Reads the bytes of a get to the response, behind its first answer's head. */
static __always_inline int perform_get(struct request *request)
{
	__u32 number = request->region & ~KUMI_WIND_KERNEL_REGION;

	if (HEADER_BYTES + ANSWER_HEAD_BYTES + request->length + TAG_BYTES > REQUEST_BYTES_MAX)
		return SILENT;
	request->result_bytes = request->length;
	return read_region(number, request->place, HEADER_BYTES + ANSWER_HEAD_BYTES, request->length);
}

/* Performs the request, which may access its place. Returns 0, a refusal, or SILENT. */
static __always_inline int perform(struct request *request, __u64 region_bytes)
{
	__u32 number = request->region & ~KUMI_WIND_KERNEL_REGION;
	int refusal;

	switch (request->operation) {
	case PUT:
		return write_region(number, request->place, REQUEST_HEAD_BYTES, request->length);
	case PUT_DIFF:
		refusal = walk_diff(number, request->place, request->bytes, region_bytes, 0);
		if (refusal)
			return refusal;
		return walk_diff(number, request->place, request->bytes, region_bytes, 1);
	case GET:
		return perform_get(request);
	}
	request->result_bytes = 8;
	return update_region(number, request->place, request->operation);
}

static __always_inline void count(struct kumi_wind_window *window, const struct request *request)
{
	if (request->operation <= PUT_DIFF)
		__sync_fetch_and_add(&window->puts, 1);
	else if (request->operation == GET)
		__sync_fetch_and_add(&window->gets, 1);
	else
		__sync_fetch_and_add(&window->atomics, 1);
	__sync_fetch_and_add(&window->bytes, request->length);
}

/* Returns the outcome of a request that was executed before. */
static __always_inline int repeat(struct kumi_wind_window *window, struct kumi_wind_slot *slot, __u64 state,
				  struct request *request, __u32 owner)
{
	struct scratch *scratch = own_scratch();
	__u64 region_bytes;
	int refusal = (state >> 1) & 0x7f;

	__sync_fetch_and_add(&window->repeated, 1);
	if (refusal || !scratch)
		return refusal;
	if (request->operation == GET) {
		refusal = check(request, owner, &region_bytes);
		return refusal ? refusal : perform_get(request);
	}
	if (request->operation >= FETCH_ADD) {
		scratch->word = slot->result;
		request->result_bytes = 8;
	}
	return DONE;
}

/* Executes a request, or finds the outcome of its first execution. */
static __always_inline int execute(struct kumi_wind_window *window, struct request *request, __u32 owner)
{
	struct kumi_wind_slot *slot = &window->slots[request->number % KUMI_WIND_SLOTS];
	__u64 seen = *(volatile __u64 *)&slot->state;
	__u64 own = (request->number + 1) << 8;
	struct scratch *scratch;
	__u64 region_bytes;
	int outcome;

	if (request->number >= NUMBERS_MAX || seen & RUNNING || own >> 8 < seen >> 8)
		return SILENT;
	if (own >> 8 == seen >> 8)
		return repeat(window, slot, seen, request, owner);
	if (__sync_val_compare_and_swap(&slot->state, seen, own | RUNNING) != seen)
		return SILENT;
	outcome = check(request, owner, &region_bytes);
	if (!outcome)
		outcome = perform(request, region_bytes);
	if (outcome < 0) {
		/* The requester sends it again. */
		__sync_lock_test_and_set(&slot->state, seen);
		return SILENT;
	}
	if (outcome) {
		request->result_bytes = 0;
		__sync_fetch_and_add(&window->refused, 1);
	} else {
		count(window, request);
		scratch = own_scratch();
		if (scratch && request->operation >= FETCH_ADD)
			slot->result = scratch->word;
	}
	/* An exchange, so that what was written is visible before. */
	__sync_lock_test_and_set(&slot->state, own | (__u64)outcome << 1);
	return outcome;
}

/* Returns which requests up to `highest` were executed and not refused: bit i for `highest` - i. */
static __always_inline __u64 summarize(const struct kumi_wind_window *window, __u64 highest)
{
	__u64 executed = 0;

	for (__u32 place = 0; place < SUMMARY_REQUESTS && place <= highest; place++) {
		__u64 number = highest - place;
		const struct kumi_wind_slot *slot = &window->slots[number % KUMI_WIND_SLOTS];

		if (*(volatile const __u64 *)&slot->state == (number + 1) << 8)
			executed |= 1ULL << place;
	}
	return executed;
}

#endif
