/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A call of a collective that may be replaced, and accessors for its arguments by position. */
#ifndef KUMI_MPI_CALL_H
#define KUMI_MPI_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "carry.h"
#include "communicator.h"

struct call {
    struct kumi_communicator *of;
    const uintptr_t *arguments;
    /* Name of the MPI function, for messages. */
    const char *name;
    /* MPI error code that the function returns. */
    int result;
    /* True if kumi_failed() was called. */
    bool has_failed;
    /*
     * True if the call may be made in either of `ways`, under `auto`, and its trial begins with
     * them (trial.h). Otherwise a call that is long enough is planned.
     */
    bool is_tried;
    struct kumi_ways ways;
    /* Trial of the call, or NULL. */
    struct kumi_trial *trial;
    /* The way in which it is made, unless it is left to the library: at first a plan. */
    enum kumi_way way;
};

/*
 * Functions that replace a collective. Each returns true if the call is done, with `result` set,
 * and false if the call is left to the library.
 */
KUMI_HIDDEN bool kumi_alltoall(struct call *call);
KUMI_HIDDEN bool kumi_alltoallv(struct call *call);
KUMI_HIDDEN bool kumi_gather(struct call *call);
KUMI_HIDDEN bool kumi_gatherv(struct call *call);
KUMI_HIDDEN bool kumi_scatter(struct call *call);
KUMI_HIDDEN bool kumi_scatterv(struct call *call);
KUMI_HIDDEN bool kumi_allgather(struct call *call);
KUMI_HIDDEN bool kumi_allgatherv(struct call *call);
KUMI_HIDDEN bool kumi_bcast(struct call *call);
KUMI_HIDDEN bool kumi_allreduce(struct call *call);
KUMI_HIDDEN bool kumi_reduce(struct call *call);
KUMI_HIDDEN bool kumi_reduce_scatter(struct call *call);
KUMI_HIDDEN bool kumi_reduce_scatter_block(struct call *call);
KUMI_HIDDEN bool kumi_barrier(struct call *call);

/*
 * Shortest block that is planned, in bytes, except between sites (kumi_is_long). For shorter
 * blocks, control messages between ranks cost more than collisions, so the library executes them.
 */
enum { KUMI_BLOCK_BYTES_MIN = 8 << 10 };

/*
 * Largest numbers of ranks for which all-to-alls are planned, and for which they are planned only
 * to be compared with the library's. A plan has N^2 transfers of about 6 µs each: 24 ms for 64
 * ranks, 0.4 s for 256, and 6 s for 1000.
 */
enum { KUMI_EXCHANGE_RANKS_MAX = 256, KUMI_TRIED_RANKS_MAX = 64 };

/*
 * Returns whether a call is long enough to be planned. `bytes` is a length that all ranks know. It
 * must be at least `least`, or not 0 in a multi-site network. If that cannot be found out, returns
 * true with an error in `result`.
 */
KUMI_HIDDEN bool kumi_is_long(struct call *call, uint64_t bytes, uint64_t least);

/*
 * Chooses the way of a call that is long enough: by its trial if it has one, else by a plan.
 * Returns false if it is left to the library. On an error, returns true with the error in the
 * call's result. `bytes` is a length that all ranks know.
 */
KUMI_HIDDEN bool kumi_is_chosen(struct call *call, uint64_t bytes);

/*
 * Prepares a planned call. All ranks call it after they have decided to plan. Returns false if the
 * call is left to the library after all.
 */
KUMI_HIDDEN bool kumi_open(struct call *call);

/*
 * Reports a failure on stderr and sets the function's result to `code`. If `code` is 0, the result
 * is KUMI_MPI_NOTHING_TO_CALL: MPI_ERR_OTHER in Open MPI, MPI_ERR_INTERN in MPICH.
 */
KUMI_HIDDEN void kumi_failed(struct call *call, const char *what, int code);

/* Executes a call, unless it has already failed. */
KUMI_HIDDEN void kumi_carry_call(struct call *call, struct kumi_carried carried);

static inline int integer(const struct call *call, int at)
{
    return (int)(int32_t)call->arguments[at];
}

static inline char *memory(const struct call *call, int at)
{
    return (char *)call->arguments[at];
}

static inline const int *integers(const struct call *call, int at)
{
    return (const int *)call->arguments[at];
}

static inline bool is_in_place(const struct call *call, int at)
{
    return (const void *)call->arguments[at] == call->of->abi->in_place;
}

/*
 * Returns a buffer of `blocks` blocks. Argument `at` and the next two are its address, count and
 * datatype.
 */
static inline struct kumi_buffer buffer(const struct call *call, int at, int blocks)
{
    return (struct kumi_buffer){.at = memory(call, at),
                                .count = integer(call, at + 1),
                                .type = call->arguments[at + 2],
                                .blocks = blocks};
}

/*
 * Returns a buffer of `blocks` blocks. Argument `at` and the next three are its address, counts,
 * displacements and datatype.
 */
static inline struct kumi_buffer buffers(const struct call *call, int at, int blocks)
{
    return (struct kumi_buffer){.at = memory(call, at),
                                .counts = integers(call, at + 1),
                                .places = integers(call, at + 2),
                                .type = call->arguments[at + 3],
                                .blocks = blocks};
}

/* Returns whether all blocks at once is one of the two ways of the call. */
static inline bool may_be_at_once(const struct call *call)
{
    return call->is_tried && (call->ways.usual == KUMI_AT_ONCE || call->ways.other == KUMI_AT_ONCE);
}

/* Returns whether the communicator has few enough ranks for a planned all-to-all. */
static inline bool may_exchange(const struct call *call)
{
    bool is_only_tried = call->is_tried && call->ways.usual == KUMI_BY_LIBRARY && !may_be_at_once(call);
    return call->of->size <= (is_only_tried ? KUMI_TRIED_RANKS_MAX : KUMI_EXCHANGE_RANKS_MAX);
}

static inline bool is_root_right(const struct call *call, int root)
{
    return root >= 0 && root < call->of->size;
}

/*
 * Frees memory that a plan used. On a broken communicator the memory is kept, because sends of the
 * failed plan may still read it.
 */
static inline void release(const struct call *call, void *memory)
{
    if (!call->of->is_broken)
        free(memory);
}

static inline void copy(char *to, const char *from, uint64_t bytes)
{
    if (to != from && bytes > 0)
        memmove(to, from, bytes);
}

#endif
