/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Collectives that move blocks of lengths that all ranks know: alltoall, gather, scatter,
 * allgather, bcast, barrier.
 */

#include <stdlib.h>

#include "judge.h"
#include "moves.h"

/*
 * Shortest planned part of a vector, in bytes per rank. For shorter ones, control messages cost
 * more than collisions.
 */
enum { PART_BYTES_MIN = 4 << 10 };

void kumi_exchange(struct call *call, struct kumi_exchange *both, struct kumi_carried carried)
{
    const struct kumi_communicator *of = call->of;
    if (both->in_place)
        both->from = both->to;
    if (!kumi_blocks_open(&both->out, of, &both->from, true) ||
        !kumi_blocks_open(&both->in, of, &both->to, false)) {
        kumi_failed(call, "out of memory for blocks, or the datatype cannot be packed", 0);
    } else {
        char *copy_of = NULL;
        /*
         * Blocks are read from memory into which others will be written, so they are copied. Packed
         * blocks are a copy already.
         */
        if (both->in_place && both->out.packed == NULL && (copy_of = kumi_blocks_copy(&both->out)) == NULL) {
            kumi_failed(call, "out of memory for an in-place exchange", 0);
        } else {
            uint64_t own = both->in.bytes[of->rank];
            copy(both->in.at[of->rank], both->out.at[of->rank],
                 own < both->out.bytes[of->rank] ? own : both->out.bytes[of->rank]);
            carried.out = both->out.at;
            carried.in = both->in.at;
            carried.out_bytes = both->out.bytes;
            carried.in_bytes = both->in.bytes;
            kumi_carry_call(call, carried);
        }
        release(call, copy_of);
    }
    if (call->result == 0 && !kumi_blocks_write_back(&both->in, of, &both->to))
        kumi_failed(call, "blocks cannot be unpacked", 0);
    kumi_blocks_close(&both->out, of);
    kumi_blocks_close(&both->in, of);
}

bool kumi_alltoall(struct call *call)
{
    const struct kumi_communicator *of = call->of;
    struct kumi_exchange both = {
        .from = buffer(call, 0, of->size), .to = buffer(call, 3, of->size), .in_place = is_in_place(call, 0)};
    bool is_plain;
    if (!kumi_is_valid(of->abi, &both.to) || (!both.in_place && !kumi_is_valid(of->abi, &both.from)))
        return false;
    uint64_t bytes = kumi_element_bytes(of->abi, both.to.type, &is_plain) * (uint64_t)both.to.count;
    /*
     * A planned all-to-all needs the most control messages, because each rank exchanges them with
     * all others. For this reason shorter blocks are not planned between sites either.
     */
    if (!may_exchange(call))
        return false;
    bool is_long = may_be_at_once(call) ? kumi_is_long(call, bytes, KUMI_BLOCK_BYTES_MIN)
                                        : bytes >= KUMI_BLOCK_BYTES_MIN;
    if (!is_long || !kumi_is_chosen(call, bytes) || !kumi_open(call))
        return false;
    if (call->result == 0 && !both.in_place)
        call->result = kumi_judge_buffers(call, &both.from, &both.to);
    if (call->result == 0)
        kumi_exchange(
            call, &both,
            (struct kumi_carried){.equal = {.operation = KUMI_COLL_ALL_TO_ALL, .block_bytes = bytes},
                                  .is_at_once = call->way == KUMI_AT_ONCE});
    return true;
}

void kumi_rooted(struct call *call, const struct kumi_rooted *rooted, struct kumi_carried carried)
{
    const struct kumi_communicator *of = call->of;
    int root = rooted->root;
    bool is_root = of->rank == root, is_gather = rooted->is_gather;
    /* In place, the root's own block stays in the buffer of all blocks. */
    bool has_one = !(is_root && rooted->in_place);
    struct kumi_blocks all = {0}, own = {0};
    char **table = calloc((size_t)of->size, sizeof(*table));
    uint64_t *bytes = calloc((size_t)of->size, sizeof(*bytes));
    bool is_open = table != NULL && bytes != NULL;
    if (is_open && is_root)
        is_open = kumi_blocks_open(&all, of, &rooted->many, !is_gather || rooted->in_place);
    if (is_open && has_one)
        is_open = kumi_blocks_open(&own, of, &rooted->one, is_gather);
    if (!is_open) {
        kumi_failed(call, "out of memory for blocks, or the datatype cannot be packed", 0);
    } else {
        for (int i = 0; is_root && i < of->size; i++) {
            table[i] = all.at[i];
            bytes[i] = all.bytes[i];
        }
        if (is_root && has_one) {
            char *there = all.at[root], *here = own.at[0];
            uint64_t least = own.bytes[0] < bytes[root] ? own.bytes[0] : bytes[root];
            copy(is_gather ? there : here, is_gather ? here : there, least);
        }
        if (!is_root) {
            table[of->rank] = own.at[0];
            bytes[of->rank] = own.bytes[0];
        }
        carried.equal.operation = is_gather ? KUMI_COLL_GATHER : KUMI_COLL_SCATTER;
        carried.equal.root = root;
        carried.out = carried.in = table;
        carried.out_bytes = carried.in_bytes = bytes;
        kumi_carry_call(call, carried);
        bool is_written = true;
        if (call->result == 0 && is_gather && is_root)
            is_written = kumi_blocks_write_back(&all, of, &rooted->many);
        if (call->result == 0 && !is_gather && has_one)
            is_written = kumi_blocks_write_back(&own, of, &rooted->one);
        if (!is_written)
            kumi_failed(call, "blocks cannot be unpacked", 0);
    }
    kumi_blocks_close(&all, of);
    kumi_blocks_close(&own, of);
    free(table);
    free(bytes);
}

/*
 * Gather or scatter of blocks of one length. The root knows the length from the buffer of all
 * blocks, each other rank from its own.
 */
static bool rooted_alike(struct call *call, bool is_gather, int many_at, int one_at)
{
    const struct kumi_communicator *of = call->of;
    struct kumi_rooted rooted = {.root = integer(call, 6), .is_gather = is_gather};
    if (!is_root_right(call, rooted.root))
        return false;
    bool is_root = of->rank == rooted.root, is_plain;
    rooted.many = buffer(call, many_at, of->size);
    rooted.one = buffer(call, one_at, 1);
    rooted.in_place = is_root && is_in_place(call, one_at);
    const struct kumi_buffer *known = is_root ? &rooted.many : &rooted.one;
    if (!kumi_is_valid(of->abi, known) ||
        (is_root && !rooted.in_place && !kumi_is_valid(of->abi, &rooted.one)))
        return false;
    uint64_t bytes = kumi_element_bytes(of->abi, known->type, &is_plain) * (uint64_t)known->count;
    if (!kumi_is_long(call, bytes, KUMI_BLOCK_BYTES_MIN) || !kumi_is_chosen(call, bytes) || !kumi_open(call))
        return false;
    if (call->result == 0 && is_root && !rooted.in_place)
        call->result = kumi_judge_buffers(call, &rooted.many, &rooted.one);
    if (call->result == 0)
        kumi_rooted(call, &rooted, (struct kumi_carried){.equal = {.block_bytes = bytes}});
    return true;
}

bool kumi_gather(struct call *call)
{
    return rooted_alike(call, true, 3, 0);
}

bool kumi_scatter(struct call *call)
{
    return rooted_alike(call, false, 0, 3);
}

static void gather_to_all(struct call *call, const struct kumi_buffer *to, const struct kumi_buffer *from,
                          bool in_place)
{
    const struct kumi_communicator *of = call->of;
    struct kumi_blocks all = {0}, own = {0};
    /*
     * In place, the own block is read from the buffer of all blocks. So its present content must be
     * packed.
     */
    if (!kumi_blocks_open(&all, of, to, in_place) || (!in_place && !kumi_blocks_open(&own, of, from, true))) {
        kumi_failed(call, "out of memory for blocks, or the datatype cannot be packed", 0);
    } else {
        uint64_t own_bytes = all.bytes[of->rank];
        if (!in_place)
            copy(all.at[of->rank], own.at[0], own_bytes < own.bytes[0] ? own_bytes : own.bytes[0]);
        kumi_carry_call(call, (struct kumi_carried){.request = {.operation = KUMI_COLL_ALL_GATHER,
                                                                .bytes = all.bytes,
                                                                .blocks = (size_t)of->size,
                                                                .element_bytes = 1},
                                                    .out = all.at,
                                                    .in = all.at});
        if (call->result == 0 && !kumi_blocks_write_back(&all, of, to))
            kumi_failed(call, "blocks cannot be unpacked", 0);
    }
    kumi_blocks_close(&all, of);
    kumi_blocks_close(&own, of);
}

static bool all_gather(struct call *call, struct kumi_buffer to)
{
    const struct kumi_communicator *of = call->of;
    bool in_place = is_in_place(call, 0), is_plain;
    struct kumi_buffer from = buffer(call, 0, 1);
    if (!kumi_is_valid(of->abi, &to) || (!in_place && !kumi_is_valid(of->abi, &from)))
        return false;
    int count = to.count;
    for (int i = 0; to.counts != NULL && i < of->size; i++)
        count = i == 0 || to.counts[i] > count ? to.counts[i] : count;
    uint64_t bytes = kumi_element_bytes(of->abi, to.type, &is_plain) * (uint64_t)count;
    if (!kumi_is_long(call, bytes, KUMI_BLOCK_BYTES_MIN) || !kumi_is_chosen(call, bytes) || !kumi_open(call))
        return false;
    if (call->result == 0 && !in_place)
        call->result = kumi_judge_buffers(call, &from, &to);
    if (call->result == 0)
        gather_to_all(call, &to, &from, in_place);
    return true;
}

bool kumi_allgather(struct call *call)
{
    return all_gather(call, buffer(call, 3, call->of->size));
}

bool kumi_allgatherv(struct call *call)
{
    return all_gather(call, buffers(call, 3, call->of->size));
}

bool kumi_bcast(struct call *call)
{
    const struct kumi_communicator *of = call->of;
    int root = integer(call, 3);
    struct kumi_buffer vector = buffer(call, 0, 1);
    bool is_plain;
    if (!is_root_right(call, root) || !kumi_is_valid(of->abi, &vector))
        return false;
    uint64_t bytes = kumi_element_bytes(of->abi, vector.type, &is_plain) * (uint64_t)vector.count;
    if (!kumi_is_long(call, bytes, (uint64_t)PART_BYTES_MIN * (uint64_t)of->size) ||
        !kumi_is_chosen(call, bytes) || !kumi_open(call))
        return false;
    if (call->result != 0)
        return true;
    struct kumi_blocks whole;
    if (!kumi_blocks_open(&whole, of, &vector, of->rank == root)) {
        kumi_failed(call, "out of memory for a vector, or the datatype cannot be packed", 0);
    } else {
        kumi_carry_call(call, (struct kumi_carried){.request = {.operation = KUMI_COLL_BROADCAST,
                                                                .root = root,
                                                                .bytes = whole.bytes,
                                                                .blocks = 1,
                                                                .element_bytes = 1},
                                                    .out = whole.at,
                                                    .in = whole.at});
        if (call->result == 0 && of->rank != root && !kumi_blocks_write_back(&whole, of, &vector))
            kumi_failed(call, "a vector cannot be unpacked", 0);
    }
    kumi_blocks_close(&whole, of);
    return true;
}

/*
 * Planned only between sites, over a tree of the sites. A control message crosses the tree once up
 * and once down. On one site the library's barrier is as fast.
 */
bool kumi_barrier(struct call *call)
{
    uint64_t nothing = 0;
    char no_byte, *vector = &no_byte;
    if (!kumi_is_long(call, 1, UINT64_MAX) || !kumi_is_chosen(call, 1) || !kumi_open(call))
        return false;
    kumi_carry_call(call, (struct kumi_carried){.request = {.operation = KUMI_COLL_ALL_REDUCE,
                                                            .bytes = &nothing,
                                                            .blocks = 1,
                                                            .element_bytes = 1},
                                                .out = &vector,
                                                .in = &vector});
    return true;
}
