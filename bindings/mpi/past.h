/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Finds ranks that wait for each other for ever because their lengths differ.
 *
 * Whether a call is planned rests on its length, which all ranks of a right program know alike. If the
 * lengths differ, one rank may leave a call to the library that another plans, or their plans differ:
 * the second then waits for messages that the first never sends.
 *
 * Calls on a communicator are numbered. A rank that leaves call n to the library, or has done its part
 * of it, is past call n and posts a receive for the question "are you past call n?". A rank whose plan
 * stands still sends that question, synchronously, to the ranks it waits for. If the send completes, the
 * receiver is past the call. What it had sent before has arrived by then, so a rank that still waits
 * for it later waits for ever.
 */
#ifndef KUMI_MPI_PAST_H
#define KUMI_MPI_PAST_H

#include "abi.h"

/* Receives that stay posted. A rank that sent what the library wanted of it may be in its next
 * collective, or the ones after that, when it is asked. */
enum { KUMI_PAST_KEPT = 8 };

struct kumi_past {
    /* Calls that this rank is past: the number of the next call. */
    uint64_t calls;
    uint64_t requests[KUMI_PAST_KEPT];
    bool is_posted[KUMI_PAST_KEPT];
};

/* The MPI tag of the question about a call, to the rank that receives under `number`. */
KUMI_HIDDEN int kumi_past_tag(int number, uint64_t call);

/* This rank is past another call. `number` is its own, or negative before it has one. */
KUMI_HIDDEN void kumi_past_note(struct kumi_past *past, const struct kumi_abi *abi, int number,
                                kumi_handle inside);

/* Takes all receives back. */
KUMI_HIDDEN void kumi_past_end(struct kumi_past *past, const struct kumi_abi *abi);

#endif
