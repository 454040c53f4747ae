/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A call of a collective that may be replaced, and its arguments by their places. */
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
    /* The MPI function's name, for messages. */
    const char *name;
    /* MPI error code that the function returns. */
    int result;
    /* kumi_failed() was called. */
    bool has_failed;
};

/* Functions that replace a collective. True if the call is done, with `result`; false if it is
 * left to the library. */
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

/* Below this length of a block the control messages between ranks cost more than collisions: the
 * library goes straight. */
enum { KUMI_BLOCK_BYTES_MIN = 8 << 10 };

/* Above this number of ranks all-to-alls are the library's: the plan of all N^2 transfers takes
 * some 6 µs each, 0.4 s here and 6 s for 1000 ranks. */
enum { KUMI_EXCHANGE_RANKS_MAX = 256 };

/*
 * Whether a length that all ranks know is planned: from `least` on, or any but 0 between sites far
 * apart. True with an error in `result` if that cannot be found out.
 */
KUMI_HIDDEN bool kumi_is_long(struct call *call, uint64_t bytes, uint64_t least);

/* Makes what a plan needs; all ranks call it once they decided to plan. False if the call is the
 * library's after all. */
KUMI_HIDDEN bool kumi_open(struct call *call);

/* An error: says what failed, and has the function return `code`, or MPI_ERR_OTHER or
 * MPI_ERR_INTERN if that is 0. */
KUMI_HIDDEN void kumi_failed(struct call *call, const char *what, int code);

/* Carries a plan out, unless the call has failed already. */
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

/* Buffer, count and datatype, in this order from argument `at` on, of `blocks` blocks. */
static inline struct kumi_buffer buffer(const struct call *call, int at, int blocks)
{
    return (struct kumi_buffer){.at = memory(call, at),
                                .count = integer(call, at + 1),
                                .type = call->arguments[at + 2],
                                .blocks = blocks};
}

/* Buffer, counts, displacements and datatype. */
static inline struct kumi_buffer buffers(const struct call *call, int at, int blocks)
{
    return (struct kumi_buffer){.at = memory(call, at),
                                .counts = integers(call, at + 1),
                                .places = integers(call, at + 2),
                                .type = call->arguments[at + 3],
                                .blocks = blocks};
}

static inline bool is_root_right(const struct call *call, int root)
{
    return root >= 0 && root < call->of->size;
}

/* Frees memory that a plan was carried out on. Sends of a broken one may still read it: it is
 * lost. */
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
