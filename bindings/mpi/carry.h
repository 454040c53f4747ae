/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Executes a collective with the MPI library's own point-to-point messages (ADR 018). */
#ifndef KUMI_MPI_CARRY_H
#define KUMI_MPI_CARRY_H

#include "communicator.h"

struct kumi_carried {
    /* The collective: `equal` if its `block_bytes` is not 0, otherwise `request`. */
    struct kumi_coll_request request;
    struct kumi_coll_equal equal;
    /*
     * True for an all-to-all that sends all blocks at once (at_once.h). The operation of `equal`
     * names it.
     */
    bool is_at_once;
    /*
     * Addresses from which blocks are sent and at which they are received, by rank. For an
     * operation on one vector, a single address each.
     */
    char **out, **in;
    /* Sizes of these blocks in bytes. For `equal` and `is_at_once` only. */
    const uint64_t *out_bytes, *in_bytes;
    /* Datatype and operation. For collectives that combine blocks only. */
    kumi_handle type, operation;
};

/*
 * Marks a communicator as broken. Notifies the other ranks, which would wait for this rank for
 * ever, unless such a notification has been received from one of them.
 */
KUMI_HIDDEN void kumi_break(struct kumi_communicator *of);

/*
 * Executes the collective. Returns an MPI error code, 0 for success. `name` is the collective's,
 * for messages.
 */
KUMI_HIDDEN int kumi_carry(struct kumi_communicator *of, const struct kumi_carried *carried,
                           const char *name);

#endif
