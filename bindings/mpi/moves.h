/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Executes collectives that move blocks, after it has been decided that they are planned. */
#ifndef KUMI_MPI_MOVES_H
#define KUMI_MPI_MOVES_H

#include "call.h"

/*
 * An all-to-all. `size` blocks are sent from one buffer, and `size` blocks are received into
 * another.
 */
struct kumi_exchange {
    struct kumi_buffer from, to;
    struct kumi_blocks out, in;
    /* True if blocks are sent from `to`. */
    bool in_place;
};

/*
 * A gather or scatter. `many` is the root's buffer of all blocks, `one` is each rank's buffer of
 * its own block.
 */
struct kumi_rooted {
    struct kumi_buffer many, one;
    int root;
    bool is_gather;
    /* True if the root's own block is in `many`. */
    bool in_place;
};

KUMI_HIDDEN void kumi_exchange(struct call *call, struct kumi_exchange *both, struct kumi_carried carried);
KUMI_HIDDEN void kumi_rooted(struct call *call, const struct kumi_rooted *rooted,
                             struct kumi_carried carried);

#endif
