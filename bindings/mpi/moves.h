/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Moves blocks by a plan, once it is decided that a call is planned. */
#ifndef KUMI_MPI_MOVES_H
#define KUMI_MPI_MOVES_H

#include "call.h"

/* An all-to-all: `size` blocks go out of one buffer, `size` come into another. */
struct kumi_exchange {
    struct kumi_buffer from, to;
    struct kumi_blocks out, in;
    /* Blocks go out of `to`. */
    bool in_place;
};

/* A gather or scatter. `many` is the root's buffer of all blocks, `one` the buffer of each
 * rank's own. */
struct kumi_rooted {
    struct kumi_buffer many, one;
    int root;
    bool is_gather;
    /* The root's own block is in `many`. */
    bool in_place;
};

KUMI_HIDDEN void kumi_exchange(struct call *call, struct kumi_exchange *both,
                               struct kumi_carried carried);
KUMI_HIDDEN void kumi_rooted(struct call *call, const struct kumi_rooted *rooted,
                             struct kumi_carried carried);

#endif
