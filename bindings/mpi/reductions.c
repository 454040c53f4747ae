/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Planned collectives that combine: allreduce, reduce, reduce_scatter. */

#include <stdlib.h>

#include "judge.h"

/*
 * Shortest planned part of a vector, in bytes per rank. For shorter ones, control messages cost
 * more than collisions.
 */
enum { PART_BYTES_MIN = 4 << 10 };

/*
 * Shortest planned part of a vector, in bytes per rank, for a ring on one switch. A ring of sums
 * takes twice as many steps as there are ranks. On one switch the library has few, long steps that
 * rarely collide, so the ring is faster only if its own steps are long too.
 */
enum { FLAT_PART_BYTES_MIN = 32 << 10 };

/*
 * Returns the size of an element in bytes. Returns 0 if the element is not one contiguous run of
 * memory; the library then executes the call.
 */
static uint64_t element_bytes_of(const struct call *call, kumi_handle type)
{
    bool is_plain = false;
    uint64_t bytes = type == call->of->abi->no_type ? 0 : kumi_element_bytes(call->of->abi, type, &is_plain);
    return is_plain ? bytes : 0;
}

/*
 * Returns whether a vector of `bytes` has long enough parts. `parts` is the number of parts, one
 * per rank. Rings need longer parts on one switch.
 */
static bool is_long_part(struct call *call, uint64_t bytes, uint64_t parts, bool is_ring)
{
    if (!kumi_is_long(call, bytes, PART_BYTES_MIN * parts))
        return false;
    if (call->result != 0 || !is_ring || bytes >= FLAT_PART_BYTES_MIN * parts)
        return true;
    if (!kumi_communicator_network(call->of)) {
        kumi_failed(call, "cannot create the network of the communicator", 0);
        return true;
    }
    return !call->of->is_single_switch || call->of->is_multi_site;
}

/*
 * Returns whether the reduction may be combined in any order. If the reduction is invalid, returns
 * true with an error in `result`.
 */
static bool may_combine(struct call *call, kumi_handle type, kumi_handle operation, bool has_result)
{
    int is_commutative = 0;
    const char *sent = memory(call, 0);
    call->result = kumi_judge_reduction(call, sent, has_result ? memory(call, 1) : NULL, type, operation);
    if (call->result != 0)
        return true;
    return call->of->abi->Op_commutative(operation, &is_commutative) == 0 && is_commutative;
}

/*
 * Executes a call with the arguments sendbuf, recvbuf, count, type, op. `root` is that of a reduce,
 * otherwise -1.
 */
static bool reduction(struct call *call, int operation, int root)
{
    const struct kumi_communicator *of = call->of;
    int count = integer(call, 2);
    kumi_handle type = call->arguments[3], op = call->arguments[4];
    bool has_result = root < 0 || of->rank == root;
    uint64_t element_bytes = count < 0 ? 0 : element_bytes_of(call, type);
    uint64_t bytes = element_bytes * (uint64_t)count;
    if (element_bytes == 0 || !is_long_part(call, bytes, (uint64_t)of->size, operation != KUMI_COLL_REDUCE) ||
        (call->result == 0 && !may_combine(call, type, op, has_result)))
        return false;
    if (call->result != 0 || !kumi_open(call))
        return call->result != 0;
    if (call->result != 0)
        return true;
    char *scratch = has_result ? NULL : malloc(bytes);
    char *sum = has_result ? memory(call, 1) : scratch;
    if (!has_result && scratch == NULL) {
        kumi_failed(call, "out of memory for a reduction", 0);
        return true;
    }
    if (!is_in_place(call, 0))
        copy(sum, memory(call, 0), bytes);
    kumi_carry_call(call, (struct kumi_carried){.request = {.operation = operation,
                                                            .root = root < 0 ? 0 : root,
                                                            .bytes = &bytes,
                                                            .blocks = 1,
                                                            .element_bytes = element_bytes},
                                                .out = &sum,
                                                .in = &sum,
                                                .type = type,
                                                .operation = op});
    release(call, scratch);
    return true;
}

bool kumi_allreduce(struct call *call)
{
    return reduction(call, KUMI_COLL_ALL_REDUCE, -1);
}

bool kumi_reduce(struct call *call)
{
    int root = integer(call, 5);
    return is_root_right(call, root) && reduction(call, KUMI_COLL_REDUCE, root);
}

/* Gives each rank its block of the sum of all ranks' vectors. */
static void scatter_sums(struct call *call, kumi_handle type, kumi_handle op, uint64_t element_bytes,
                         const uint64_t *bytes)
{
    const struct kumi_communicator *of = call->of;
    uint64_t all = 0, before_own = 0;
    for (int i = 0; i < of->size; i++) {
        if (i == of->rank)
            before_own = all;
        all += bytes[i];
    }
    char *sums = malloc(all + 1), **table = calloc((size_t)of->size, sizeof(*table));
    if (sums == NULL || table == NULL) {
        kumi_failed(call, "out of memory for a reduction", 0);
    } else {
        copy(sums, memory(call, is_in_place(call, 0) ? 1 : 0), all);
        char *next = sums;
        for (int i = 0; i < of->size; i++) {
            table[i] = next;
            next += bytes[i];
        }
        kumi_carry_call(call, (struct kumi_carried){.request = {.operation = KUMI_COLL_REDUCE_SCATTER,
                                                                .bytes = bytes,
                                                                .blocks = (size_t)of->size,
                                                                .element_bytes = element_bytes},
                                                    .out = table,
                                                    .in = table,
                                                    .type = type,
                                                    .operation = op});
        if (call->result == 0)
            copy(memory(call, 1), sums + before_own, bytes[of->rank]);
    }
    release(call, sums);
    free(table);
}

/*
 * Executes a reduce-scatter with blocks of `counts[i]` elements, or of `count` elements each if
 * `counts` is NULL.
 */
static bool reduce_scatter(struct call *call, const int *counts, int count)
{
    const struct kumi_communicator *of = call->of;
    kumi_handle type = call->arguments[3], op = call->arguments[4];
    uint64_t element_bytes = element_bytes_of(call, type), most = 0;
    uint64_t *bytes = calloc((size_t)of->size, sizeof(*bytes));
    bool is_valid = element_bytes > 0;
    for (int i = 0; bytes != NULL && i < of->size; i++) {
        int elements = counts == NULL ? count : counts[i];
        is_valid &= elements >= 0;
        bytes[i] = element_bytes * (uint64_t)(elements < 0 ? 0 : elements);
        most = bytes[i] > most ? bytes[i] : most;
    }
    bool is_done = bytes == NULL || (is_valid && is_long_part(call, most, 1, true) &&
                                     (call->result != 0 || may_combine(call, type, op, true)) &&
                                     (call->result != 0 || kumi_open(call)));
    if (bytes == NULL)
        kumi_failed(call, "out of memory for a reduction", 0);
    if (is_done && call->result == 0)
        scatter_sums(call, type, op, element_bytes, bytes);
    free(bytes);
    return is_done;
}

bool kumi_reduce_scatter(struct call *call)
{
    return reduce_scatter(call, integers(call, 2), 0);
}

bool kumi_reduce_scatter_block(struct call *call)
{
    return reduce_scatter(call, NULL, integer(call, 2));
}
