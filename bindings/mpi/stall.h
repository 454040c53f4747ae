/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Watches a plan that stands still, and asks the ranks that it waits for (past.h). */
#ifndef KUMI_MPI_STALL_H
#define KUMI_MPI_STALL_H

#include "communicator.h"

struct kumi_stall {
    struct kumi_communicator *of;
    /* Looks in vain since the last step completed; its clock is read now and then. */
    unsigned looks;
    double since_s;
    /* By rank; NULL while no question was asked. */
    struct kumi_question *questions;
};

/* A step completed. */
static inline void kumi_stall_reset(struct kumi_stall *stall)
{
    stall->looks = 0;
}

/*
 * No step completed. `is_awaited(context, peer)` is whether a step with a rank is in flight. Returns
 * a rank that is past this call although it is awaited, or -1.
 */
KUMI_HIDDEN int kumi_stall_look(struct kumi_stall *stall, bool (*is_awaited)(const void *, int),
                                const void *context);

/* Forgets the questions, when the call is over. */
KUMI_HIDDEN void kumi_stall_end(struct kumi_stall *stall);

#endif
