/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Numbers that distinguish the program's communicators, whose messages share one communicator of
 * this library. A rank chooses the number under which it receives, so it needs no agreement with
 * other ranks.
 */
#ifndef KUMI_MPI_TAGS_H
#define KUMI_MPI_TAGS_H

#include "kumi_page_access.h"

/*
 * A wrong answer to a question (past.h) is possible if a rank is more than KUMI_TAG_CALLS calls
 * behind another on one communicator, and all of them are left to the library. A question on level
 * n is about a multiple of 2^n. On the last level, that is KUMI_TAG_CALLS. An MPI library with the
 * least tag limit of the standard, 32767, has tags for 15 communicators at once. Further ones are
 * left to the library.
 */
enum { KUMI_TAG_CALLS = 1024, KUMI_TAG_LEVELS = 11 };

/*
 * Kinds of messages: chunks of data, control messages, the notification that a rank's plan has
 * failed, and questions about calls.
 */
enum {
    KUMI_TAG_CHUNK,
    KUMI_TAG_CONTROL,
    KUMI_TAG_FAILURE,
    KUMI_TAG_PAST,
    /* With the 2 * KUMI_TAG_CALLS - 1 + 2 * KUMI_TAG_LEVELS tags of kumi_past_tag(). */
    KUMI_TAG_KINDS = KUMI_TAG_PAST + 2 * KUMI_TAG_CALLS - 1 + 2 * KUMI_TAG_LEVELS
};

/* Sets the limit of numbers from the library's MPI_TAG_UB. Called once. */
KUMI_HIDDEN void kumi_tags_begin(int tag_max);

/* Returns a number that no other communicator of this rank has, or -1 if all are in use. */
KUMI_HIDDEN int kumi_tag_take(void);

KUMI_HIDDEN void kumi_tag_give_back(int number);

/* Returns the MPI tag of a kind of message under a number. */
static inline int kumi_tag(int number, int kind)
{
    return number * KUMI_TAG_KINDS + kind;
}

#endif
