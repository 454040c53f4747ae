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
 * waits for. If the send completes, the receiver is past the call and has sent all its messages.
 * So a rank that still waits for it some time later would wait for ever (stall.c).
 *
 * The receiver may be many calls ahead, but keeps few receives: on level n, that of its latest call
 * whose number is a multiple of 2^n. The question on level n is about the next multiple of 2^n. If
 * the receiver is past call c and now in call d, there is a level on which exactly one multiple is
 * in c <= m < d, and its question is answered, unless that of another rank took the receive. That
 * holds up to KUMI_TAG_CALLS calls ahead.
 */
#ifndef KUMI_MPI_PAST_H
#define KUMI_MPI_PAST_H

#include "abi.h"
#include "tags.h"

struct kumi_past {
    /* Number of calls that this rank is past, which is the number of the next call. */
    uint64_t calls;
    uint64_t requests[KUMI_TAG_LEVELS];
    bool is_posted[KUMI_TAG_LEVELS];
};

/*
 * Returns the MPI tag of the question about the first call from `call` on that is a multiple of
 * 2^level. `number` is that of the rank that receives the question.
 */
KUMI_HIDDEN int kumi_past_tag(int number, int level, uint64_t call);

/*
 * Records that this rank is past another call. `number` is its own, or negative before it has one.
 */
KUMI_HIDDEN void kumi_past_note(struct kumi_past *past, const struct kumi_abi *abi, int number,
                                kumi_handle inside);

/* Cancels all receives. */
KUMI_HIDDEN void kumi_past_end(struct kumi_past *past, const struct kumi_abi *abi);

#endif
