/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Steps of an all-to-all that sends all blocks at once (ADR 049): no block waits for another. The
 * receives are posted first, so that blocks go to their places. Then the blocks begin in the order
 * that libkumi gives. Blocks for far sites are first, and the first blocks of the ranks of one site
 * go to different ranks.
 *
 * Each rank needs only the lengths of its own blocks. An empty block is a message too, so that a
 * block is never taken for one of a later call if the lengths of two ranks differ.
 */
#ifndef KUMI_MPI_AT_ONCE_H
#define KUMI_MPI_AT_ONCE_H

#include "planner.h"

struct kumi_at_once {
    int rank, size;
    /* Sizes in bytes of the blocks for each rank, and from each rank. */
    const uint64_t *out_bytes, *in_bytes;
    /* The other ranks in the order in which blocks for them begin. */
    const int *order;
    /*
     * The next step: a receive or a send, the place of its peer in `order`, its place in the block,
     * and whether an earlier step has begun the block.
     */
    bool is_sending;
    int place;
    uint64_t offset;
    bool has_begun;
    /* Steps in flight. */
    int open;
};

/* Writes the next step to `step`. Returns false after the last one. */
KUMI_HIDDEN bool kumi_at_once_begin(struct kumi_at_once *of, struct kumi_coll_step *step);

/* Completes a step that was begun. */
static inline void kumi_at_once_complete(struct kumi_at_once *of)
{
    of->open--;
}

/* Returns whether all steps are complete. */
static inline bool kumi_at_once_is_complete(const struct kumi_at_once *of)
{
    return of->is_sending && of->place == of->size - 1 && of->open == 0;
}

#endif
