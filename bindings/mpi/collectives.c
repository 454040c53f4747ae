/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Collectives that are done by a plan instead of by the MPI library.
 *
 * All ranks must come to the same decision, so it rests only on what MPI has all of them know alike: the bytes of a
 * block, the communicator and the root. Where only some know, all are told first: the root of a gatherv its
 * counts, everybody of an alltoallv everybody's.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "call.h"
#include "carry.h"
#include "collectives.h"
#include "fortran.h"
#include "tally.h"

/* Below these the words between ranks cost more than collisions do: the library goes straight. Of an all-to-all's
 * blocks; of others' blocks; of a vector's part for each rank. */
enum { PAIR_BYTES_MIN = 8 << 10, BLOCK_BYTES_MIN = 8 << 10, PART_BYTES_MIN = 4 << 10 };

/* A ring of sums takes twice as many steps as there are ranks. On one switch the library's few, long steps collide little:
 * the ring pays where they are long too. */
enum { FLAT_PART_BYTES_MIN = 32 << 10 };

/* From which size on a collective is planned: of any, where ranks are in sites far apart, for then hops cost more than
 * words. */
static uint64_t least(const struct kumi_communicator *of, uint64_t bytes)
{
    return of->is_far ? 1 : bytes;
}

/* Whether this thread is in a collective of ours, whose calls of the library are its own. */
static _Thread_local bool is_inside;

/* A plan failed before anything was sent, or memory did: an error, never a result that is not whole. */
static void failed(struct call *call, const char *what)
{
    fprintf(stderr, "kumi: rank %d: %s\n", call->of->rank, what);
    call->result = KUMI_MPI_NOTHING_TO_CALL;
}

static void carry(struct call *call, const struct kumi_carried *carried)
{
    call->result = kumi_carry(call->of, carried);
}

static void copy(char *to, const char *from, uint64_t bytes)
{
    if (to != from && bytes > 0)
        memmove(to, from, bytes);
}

/* Blocks of one buffer go out, those of another come in; both are opened, and closed after. */
struct two_buffers {
    struct kumi_buffer from, to;
    struct kumi_blocks out, in;
};

static bool open_both(struct call *call, struct two_buffers *both)
{
    if (kumi_blocks_open(&both->out, call->of, &both->from, true) &&
        kumi_blocks_open(&both->in, call->of, &both->to, false))
        return true;
    failed(call, "no memory for a collective, or an argument that is none");
    return false;
}

static void close_both(struct call *call, struct two_buffers *both)
{
    if (call->result == 0 && !kumi_blocks_write_back(&both->in, call->of, &both->to))
        failed(call, "blocks cannot be unpacked");
    kumi_blocks_close(&both->out);
    kumi_blocks_close(&both->in);
}

/* Both all-to-alls, once it is known what goes between each two ranks. */
static void all_to_all(struct call *call, struct two_buffers *both, bool in_place,
                       const uint64_t *bytes)
{
    const struct kumi_communicator *of = call->of;
    if (in_place)
        both->from = both->to;
    if (open_both(call, both)) {
        char *copy_of = NULL;
        /* What is sent is read where it will be written; packed blocks are a copy already. */
        if (in_place && both->out.packed == NULL && (copy_of = kumi_blocks_copy(&both->out)) == NULL)
            failed(call, "no memory for an all-to-all in place");
        else {
            copy(both->in.at[of->rank], both->out.at[of->rank], both->in.bytes[of->rank]);
            size_t pairs = (size_t)of->size * (size_t)of->size;
            carry(call, &(struct kumi_carried){.asked = {.operation = KUMI_COLL_ALL_TO_ALL,
                                                         .bytes = bytes,
                                                         .blocks = pairs,
                                                         .element_bytes = 1},
                                               .out = both->out.at,
                                               .in = both->in.at});
        }
        free(copy_of);
    }
    close_both(call, both);
}

static bool alltoall(struct call *call)
{
    const struct kumi_communicator *of = call->of;
    struct two_buffers both = {.from = buffer(call, 0, of->size), .to = buffer(call, 3, of->size)};
    bool is_plain;
    uint64_t bytes = kumi_element_bytes(of->abi, both.to.type, &is_plain) * (uint64_t)both.to.count;
    if (both.to.count < 0 || bytes < PAIR_BYTES_MIN)
        return false;
    size_t pairs = (size_t)of->size * (size_t)of->size;
    uint64_t *all = malloc(pairs * sizeof(*all));
    for (size_t i = 0; all != NULL && i < pairs; i++)
        all[i] = bytes;
    if (all == NULL)
        failed(call, "no memory for an all-to-all");
    else
        all_to_all(call, &both, is_in_place(call, 0), all);
    free(all);
    return true;
}

static bool alltoallv(struct call *call)
{
    const struct kumi_communicator *of = call->of;
    struct two_buffers both = {.from = buffers(call, 0, of->size), .to = buffers(call, 4, of->size)};
    bool in_place = is_in_place(call, 0), is_plain;
    /* In place, what goes to a rank is as much as comes from it. */
    const struct kumi_buffer *sent = in_place ? &both.to : &both.from;
    uint64_t element_bytes = kumi_element_bytes(of->abi, sent->type, &is_plain);
    size_t ranks = (size_t)of->size, most = 0;
    uint64_t *row = malloc(ranks * sizeof(*row)), *all = malloc(ranks * ranks * sizeof(*all));
    int row_bytes = (int)(ranks * sizeof(*row));
    bool is_done = row != NULL && all != NULL;
    for (size_t i = 0; is_done && i < ranks; i++)
        row[i] = (uint64_t)(sent->counts[i] < 0 ? 0 : sent->counts[i]) * element_bytes;
    if (!is_done || of->abi->Allgather(row, row_bytes, of->abi->byte, all, row_bytes, of->abi->byte,
                                       of->inside) != 0) {
        failed(call, "the counts of an alltoallv cannot be told");
        is_done = true;
    } else {
        for (size_t i = 0; i < ranks * ranks; i++)
            if (all[i] > most)
                most = all[i];
        is_done = most >= PAIR_BYTES_MIN;
        if (is_done)
            all_to_all(call, &both, in_place, all);
    }
    free(row);
    free(all);
    return is_done;
}

/* A gather or scatter of blocks whose bytes all ranks know. `many` is the root's buffer of all blocks, `one` the
 * block of each. */
static void to_or_from_root(struct call *call, int operation, int root, struct kumi_buffer many,
                            struct kumi_buffer one, bool in_place, const uint64_t *bytes)
{
    const struct kumi_communicator *of = call->of;
    bool is_root = of->rank == root, is_gather = operation == KUMI_COLL_GATHER;
    struct kumi_blocks all = {0}, own = {0};
    char **table = calloc((size_t)of->size, sizeof(*table));
    bool is_open = table != NULL;
    if (is_open && is_root)
        is_open = kumi_blocks_open(&all, of, &many, !is_gather || in_place);
    if (is_open && !(is_root && in_place))
        is_open = kumi_blocks_open(&own, of, &one, is_gather);
    if (!is_open) {
        failed(call, "no memory for a collective, or an argument that is none");
    } else {
        for (int i = 0; is_root && i < of->size; i++)
            table[i] = all.at[i];
        if (is_root && !in_place) {
            char *there = all.at[root], *here = own.at[0];
            copy(is_gather ? there : here, is_gather ? here : there, bytes[root]);
        }
        if (!is_root)
            table[of->rank] = own.at[0];
        carry(call, &(struct kumi_carried){.asked = {.operation = operation,
                                                     .root = root,
                                                     .bytes = bytes,
                                                     .blocks = (size_t)of->size,
                                                     .element_bytes = 1},
                                           .out = table,
                                           .in = table});
        bool is_written = call->result != 0;
        if (!is_written && is_gather)
            is_written = !is_root || kumi_blocks_write_back(&all, of, &many);
        else if (!is_written)
            is_written = (is_root && in_place) || kumi_blocks_write_back(&own, of, &one);
        if (!is_written)
            failed(call, "blocks cannot be unpacked");
    }
    kumi_blocks_close(&all);
    kumi_blocks_close(&own);
    free(table);
}

static uint64_t *alike(const struct kumi_communicator *of, uint64_t bytes)
{
    uint64_t *all = malloc((size_t)of->size * sizeof(*all));
    for (int i = 0; all != NULL && i < of->size; i++)
        all[i] = bytes;
    return all;
}

/* Like blocks: what the root knows of one, the others know of theirs. */
static bool alike_root(struct call *call, int operation, int many_at, int one_at)
{
    const struct kumi_communicator *of = call->of;
    int root = integer(call, 6);
    if (!is_root_right(call, root))
        return false;
    bool is_root = of->rank == root, is_plain;
    struct kumi_buffer many = buffer(call, many_at, of->size), one = buffer(call, one_at, 1);
    const struct kumi_buffer *known = is_root ? &many : &one;
    uint64_t bytes = kumi_element_bytes(of->abi, known->type, &is_plain) * (uint64_t)known->count;
    if (known->count < 0 || bytes < least(of, BLOCK_BYTES_MIN))
        return false;
    uint64_t *all = alike(of, bytes);
    if (all == NULL)
        failed(call, "no memory for a collective");
    else
        to_or_from_root(call, operation, root, many, one, is_root && is_in_place(call, one_at), all);
    free(all);
    return true;
}

static bool gather(struct call *call)
{
    return alike_root(call, KUMI_COLL_GATHER, 3, 0);
}

static bool scatter(struct call *call)
{
    return alike_root(call, KUMI_COLL_SCATTER, 0, 3);
}

/* Unlike blocks, of which only the root knows all: it tells. */
static bool unlike_root(struct call *call, int operation, int many_at, int one_at)
{
    const struct kumi_communicator *of = call->of;
    int root = integer(call, 7);
    if (!is_root_right(call, root))
        return false;
    bool is_root = of->rank == root, is_plain;
    struct kumi_buffer many = {0}, one = buffer(call, one_at, 1);
    uint64_t *all = calloc((size_t)of->size, sizeof(*all)), most = 0;
    if (is_root) {
        many = buffers(call, many_at, of->size);
        uint64_t element_bytes = kumi_element_bytes(of->abi, many.type, &is_plain);
        for (int i = 0; all != NULL && i < of->size; i++)
            all[i] = (uint64_t)(many.counts[i] < 0 ? 0 : many.counts[i]) * element_bytes;
    }
    int bytes = (int)((size_t)of->size * sizeof(*all));
    bool is_done = true;
    if (all == NULL || of->abi->Bcast(all, bytes, of->abi->byte, root, of->inside) != 0) {
        failed(call, "the counts of a collective cannot be told");
    } else {
        for (int i = 0; i < of->size; i++)
            if (all[i] > most)
                most = all[i];
        is_done = most >= least(of, BLOCK_BYTES_MIN);
        if (is_done)
            to_or_from_root(call, operation, root, many, one, is_root && is_in_place(call, one_at), all);
    }
    free(all);
    return is_done;
}

static bool gatherv(struct call *call)
{
    return unlike_root(call, KUMI_COLL_GATHER, 3, 0);
}

static bool scatterv(struct call *call)
{
    return unlike_root(call, KUMI_COLL_SCATTER, 0, 4);
}

static bool all_gather(struct call *call, struct kumi_buffer to)
{
    const struct kumi_communicator *of = call->of;
    bool in_place = is_in_place(call, 0);
    struct kumi_blocks all = {0}, own = {0};
    struct kumi_buffer from = buffer(call, 0, 1);
    /* In place, what is packed must be what is there. */
    bool is_open = kumi_blocks_open(&all, of, &to, in_place) &&
                   (in_place || kumi_blocks_open(&own, of, &from, true));
    uint64_t most = 0;
    for (int i = 0; is_open && i < of->size; i++)
        if (all.bytes[i] > most)
            most = all.bytes[i];
    bool is_done = !is_open || most >= least(of, BLOCK_BYTES_MIN);
    if (!is_open) {
        failed(call, "no memory for a collective, or an argument that is none");
    } else if (is_done) {
        if (!in_place)
            copy(all.at[of->rank], own.at[0], all.bytes[of->rank]);
        carry(call, &(struct kumi_carried){.asked = {.operation = KUMI_COLL_ALL_GATHER,
                                                     .bytes = all.bytes,
                                                     .blocks = (size_t)of->size,
                                                     .element_bytes = 1},
                                           .out = all.at,
                                           .in = all.at});
        if (call->result == 0 && !kumi_blocks_write_back(&all, of, &to))
            failed(call, "blocks cannot be unpacked");
    }
    kumi_blocks_close(&all);
    kumi_blocks_close(&own);
    return is_done;
}

static bool allgather(struct call *call)
{
    return all_gather(call, buffer(call, 3, call->of->size));
}

static bool allgatherv(struct call *call)
{
    return all_gather(call, buffers(call, 3, call->of->size));
}

static bool bcast(struct call *call)
{
    const struct kumi_communicator *of = call->of;
    int root = integer(call, 3);
    struct kumi_buffer vector = buffer(call, 0, 1);
    bool is_plain;
    uint64_t bytes = kumi_element_bytes(of->abi, vector.type, &is_plain) * (uint64_t)vector.count;
    if (!is_root_right(call, root) || vector.count < 0 ||
        bytes < least(of, (uint64_t)PART_BYTES_MIN * (uint64_t)of->size))
        return false;
    struct kumi_blocks whole;
    if (!kumi_blocks_open(&whole, of, &vector, of->rank == root)) {
        failed(call, "no memory for a collective");
    } else {
        carry(call, &(struct kumi_carried){.asked = {.operation = KUMI_COLL_BROADCAST,
                                                     .root = root,
                                                     .bytes = whole.bytes,
                                                     .blocks = 1,
                                                     .element_bytes = 1},
                                           .out = whole.at,
                                           .in = whole.at});
        if (call->result == 0 && of->rank != root && !kumi_blocks_write_back(&whole, of, &vector))
            failed(call, "blocks cannot be unpacked");
    }
    kumi_blocks_close(&whole);
    return true;
}

/* The elements of a reduction, if they are one run of memory and may be combined in any order; else 0 bytes. */
static uint64_t combinable(const struct call *call, kumi_handle type, kumi_handle operation)
{
    bool is_plain = false;
    int is_commutative = 0;
    uint64_t bytes = kumi_element_bytes(call->of->abi, type, &is_plain);
    if (!is_plain || call->of->abi->Op_commutative(operation, &is_commutative) != 0 || !is_commutative)
        return 0;
    return bytes;
}

/* From which part of a rank on sums go round a ring. */
static uint64_t ring_part_min(const struct call *call)
{
    return call->of->is_flat ? FLAT_PART_BYTES_MIN : PART_BYTES_MIN;
}

/* sendbuf, recvbuf, count, type, op: `root` of a reduce, or -1. */
static bool reduction(struct call *call, int operation, int root)
{
    const struct kumi_communicator *of = call->of;
    int count = integer(call, 2);
    kumi_handle type = call->arguments[3], op = call->arguments[4];
    uint64_t element_bytes = combinable(call, type, op), bytes = element_bytes * (uint64_t)count;
    uint64_t part_min = operation == KUMI_COLL_REDUCE ? PART_BYTES_MIN : ring_part_min(call);
    if (count < 0 || element_bytes == 0 || bytes < least(of, part_min * (uint64_t)of->size))
        return false;
    bool has_result = root < 0 || of->rank == root;
    char *scratch = has_result ? NULL : malloc(bytes);
    char *sum = has_result ? memory(call, 1) : scratch;
    if (sum == NULL) {
        failed(call, "no memory for a reduction");
        return true;
    }
    if (!is_in_place(call, 0))
        copy(sum, memory(call, 0), bytes);
    carry(call, &(struct kumi_carried){.asked = {.operation = operation,
                                                 .root = root < 0 ? 0 : root,
                                                 .bytes = &bytes,
                                                 .blocks = 1,
                                                 .element_bytes = element_bytes},
                                       .out = &sum,
                                       .in = &sum,
                                       .type = type,
                                       .operation = op});
    free(scratch);
    return true;
}

static bool allreduce(struct call *call)
{
    return reduction(call, KUMI_COLL_ALL_REDUCE, -1);
}

static bool reduce(struct call *call)
{
    int root = integer(call, 5);
    return is_root_right(call, root) && reduction(call, KUMI_COLL_REDUCE, root);
}

/* Every rank's block of the sum of all ranks' blocks; `bytes` of each. */
static void reduce_scattered(struct call *call, kumi_handle type, kumi_handle op,
                             uint64_t element_bytes, const uint64_t *bytes)
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
        failed(call, "no memory for a reduction");
    } else {
        copy(sums, memory(call, is_in_place(call, 0) ? 1 : 0), all);
        char *next = sums;
        for (int i = 0; i < of->size; i++) {
            table[i] = next;
            next += bytes[i];
        }
        carry(call, &(struct kumi_carried){.asked = {.operation = KUMI_COLL_REDUCE_SCATTER,
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
    free(sums);
    free(table);
}

static bool reduce_scatter_of(struct call *call, const int *counts, int count)
{
    const struct kumi_communicator *of = call->of;
    kumi_handle type = call->arguments[3], op = call->arguments[4];
    uint64_t element_bytes = combinable(call, type, op), most = 0;
    uint64_t *bytes = alike(of, element_bytes * (uint64_t)(count < 0 ? 0 : count));
    if (bytes == NULL) {
        failed(call, "no memory for a reduction");
        return true;
    }
    for (int i = 0; i < of->size; i++) {
        if (counts != NULL)
            bytes[i] = element_bytes * (uint64_t)(counts[i] < 0 ? 0 : counts[i]);
        if (bytes[i] > most)
            most = bytes[i];
    }
    bool is_done = element_bytes > 0 && most >= least(of, ring_part_min(call));
    if (is_done)
        reduce_scattered(call, type, op, element_bytes, bytes);
    free(bytes);
    return is_done;
}

static bool reduce_scatter(struct call *call)
{
    return reduce_scatter_of(call, integers(call, 2), 0);
}

static bool reduce_scatter_block(struct call *call)
{
    return reduce_scatter_of(call, NULL, integer(call, 2));
}

/* Between sites: a tree of them, over which a word goes there and back once. On one, the library's is as good. */
static bool barrier(struct call *call)
{
    const struct kumi_communicator *of = call->of;
    uint64_t nothing = 0;
    char none_of_it, *vector = &none_of_it;
    if (!of->is_far)
        return false;
    carry(call, &(struct kumi_carried){.asked = {.operation = KUMI_COLL_ALL_REDUCE,
                                                 .bytes = &nothing,
                                                 .blocks = 1,
                                                 .element_bytes = 1},
                                       .out = &vector,
                                       .in = &vector});
    return true;
}

/*
 * The collectives, their names in KUMI_COLL, and their arguments as fortran.h has them, the communicator last.
 */
static const struct replaced {
    const char *call, *name, *arguments;
    bool (*instead)(struct call *);
} all_replaced[] = {
    {"MPI_Alltoall", "alltoall", "bitbitc", alltoall},
    {"MPI_Alltoallv", "alltoallv", "baatbaatc", alltoallv},
    {"MPI_Gather", "gather", "bitbitic", gather},
    {"MPI_Gatherv", "gatherv", "bitbaatic", gatherv},
    {"MPI_Scatter", "scatter", "bitbitic", scatter},
    {"MPI_Scatterv", "scatterv", "baatbitic", scatterv},
    {"MPI_Allgather", "allgather", "bitbitc", allgather},
    {"MPI_Allgatherv", "allgatherv", "bitbaatc", allgatherv},
    {"MPI_Bcast", "bcast", "bitic", bcast},
    {"MPI_Allreduce", "allreduce", "bbitoc", allreduce},
    {"MPI_Reduce", "reduce", "bbitoic", reduce},
    {"MPI_Reduce_scatter", "reduce_scatter", "bbatoc", reduce_scatter},
    {"MPI_Reduce_scatter_block", "reduce_scatter_block", "bbitoc", reduce_scatter_block},
    {"MPI_Barrier", "barrier", "c", barrier},
};

enum { ARGUMENTS_MAX = 9 };

static const struct replaced none;

/* What a function is replaced with; `none` if it is not, or not asked for. */
static const struct replaced *replaced_of(struct kumi_mpi_call *call)
{
    const struct replaced *of = __atomic_load_n(&call->replaced, __ATOMIC_RELAXED);
    if (of != NULL)
        return of;
    of = &none;
    for (size_t i = 0; i < sizeof(all_replaced) / sizeof(*all_replaced); i++)
        if (strcmp(all_replaced[i].call, call->phase_name) == 0 &&
            kumi_coll_asked_for(all_replaced[i].name))
            of = &all_replaced[i];
    __atomic_store_n(&call->replaced, of, __ATOMIC_RELAXED);
    return of;
}

bool kumi_collective(struct kumi_mpi_call *called, const uintptr_t *arguments, const void *caller,
                     int *result)
{
    if (is_inside || called->calling == BY_VALUE_LARGE || !kumi_mpi_is_outermost())
        return false;
    const struct replaced *replaced = replaced_of(called);
    const struct kumi_abi *abi = replaced == &none ? NULL : kumi_abi(caller);
    if (abi == NULL)
        return false;
    uintptr_t converted[ARGUMENTS_MAX];
    if (called->calling == BY_ADDRESS) {
        kumi_from_fortran(abi, replaced->arguments, arguments, converted);
        arguments = converted;
    }
    is_inside = true;
    kumi_handle comm = arguments[strlen(replaced->arguments) - 1];
    struct call call = {.of = kumi_communicator(comm, caller), .arguments = arguments};
    bool is_done = call.of != NULL && replaced->instead(&call);
    is_inside = false;
    /* A barrier that is left to the library is nothing to speak of. */
    if (call.of != NULL && (is_done || replaced->instead != barrier))
        kumi_tally(call.of->rank, call.of->size, is_done);
    *result = call.result;
    return is_done;
}
