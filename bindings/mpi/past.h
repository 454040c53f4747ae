/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Finds ranks that would wait for each other for ever because their lengths differ.
 *
 * The decision to plan a call depends on its length, which is equal on all ranks of a correct
 * program. If the lengths differ, one rank may leave a call to the library while another plans it,
 * or their plans differ. The second rank then waits for messages that the first never sends.
 *
 * Calls on a communicator are numbered. A rank is past call n when it has left the call to the
 * library or has done its part of it. It then posts a receive for the question "are you past call
 * n?". A rank whose plan makes no progress sends that question, synchronously, to the ranks that it
 * waits for. If the send completes, the receiver is past the call. Its earlier messages have
 * arrived by then. So a rank that still waits for it later would wait for ever.
 */
#ifndef KUMI_MPI_PAST_H
#define KUMI_MPI_PAST_H

#include "abi.h"

/*
 * Number of receives that stay posted. A rank that has sent its part of a call may be in one of the
 * following collectives when the question arrives. Chosen by judgement. For ranks that are further
 * ahead, stall.c asks about later calls.
 */
enum { KUMI_PAST_KEPT = 8 };

struct kumi_past {
    /* Number of calls that this rank is past, which is the number of the next call. */
    uint64_t calls;
    uint64_t requests[KUMI_PAST_KEPT];
    bool is_posted[KUMI_PAST_KEPT];
};

/*
 * Returns the MPI tag of the question about a call. `number` is that of the rank that receives the
 * question.
 */
KUMI_HIDDEN int kumi_past_tag(int number, uint64_t call);

/*
 * Records that this rank is past another call. `number` is its own, or negative before it has one.
 */
KUMI_HIDDEN void kumi_past_note(struct kumi_past *past, const struct kumi_abi *abi, int number,
                                kumi_handle inside);

/* Cancels all receives. */
KUMI_HIDDEN void kumi_past_end(struct kumi_past *past, const struct kumi_abi *abi);

#endif
