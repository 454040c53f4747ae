/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Detects a plan that makes no progress, and asks the ranks that it waits for (past.h). */
#ifndef KUMI_MPI_STALL_H
#define KUMI_MPI_STALL_H

#include "communicator.h"

struct kumi_stall {
    struct kumi_communicator *of;
    /*
     * Polls without a completed step since the last completed one, and the time at the first of
     * them, in seconds.
     */
    unsigned looks;
    double since_s;
    /* Questions by rank; NULL before the first question. */
    struct kumi_question *questions;
};

/* Records the time without progress that ends now. */
KUMI_HIDDEN void kumi_stall_learn(const struct kumi_stall *stall);

/* Records that a step completed. */
static inline void kumi_stall_reset(struct kumi_stall *stall)
{
    if (stall->questions != NULL)
        kumi_stall_learn(stall);
    stall->looks = 0;
}

/*
 * Records that no step completed. `is_awaited(context, peer)` returns whether a step with a rank is
 * in flight. Returns a rank that is past this call although it is awaited, or -1.
 */
KUMI_HIDDEN int kumi_stall_look(struct kumi_stall *stall, bool (*is_awaited)(const void *, int),
                                const void *context);

/* Frees the questions at the end of the call. */
KUMI_HIDDEN void kumi_stall_end(struct kumi_stall *stall);

#endif
