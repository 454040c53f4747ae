/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Carries a planned collective out, by the MPI library's own point-to-point messages. */
#ifndef KUMI_MPI_CARRY_H
#define KUMI_MPI_CARRY_H

#include "communicator.h"

struct kumi_carried {
    /* The collective: `like` if its `block_bytes` is not 0, else `asked`. */
    struct kumi_coll_asked asked;
    struct kumi_coll_like like;
    /* By rank, or of a vector alone, the address its block is sent from, and the one it is
     * received at. */
    char **out, **in;
    /* Only of `like`: bytes of these blocks. */
    const uint64_t *out_bytes, *in_bytes;
    /* Only where blocks are combined. */
    kumi_handle type, operation;
};

/* Marks a communicator as broken, and tells the other ranks, who would wait for this one for
 * ever. */
KUMI_HIDDEN void kumi_break(struct kumi_communicator *of);

/* Returns an MPI error code; 0 is success. `name` is the collective's, for messages. */
KUMI_HIDDEN int kumi_carry(struct kumi_communicator *of, const struct kumi_carried *carried,
                           const char *name);

#endif
