/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Numbers that tell apart the communicators whose messages share one of ours. A rank chooses the
 * number under which it receives, so nobody else has to agree that it is free.
 */
#ifndef KUMI_MPI_TAGS_H
#define KUMI_MPI_TAGS_H

#include "kumi_page_access.h"

/* Calls whose questions (past.h) have tags of their own: a rank that is behind another by this
 * number of calls on one communicator, all of them left to the library, could give a wrong answer. */
enum { KUMI_TAG_CALLS = 1024 };

/* Message kinds: chunks of data, control messages without content, the news that a rank's plan has
 * failed, and questions about each of the last calls. */
enum {
    KUMI_TAG_CHUNK,
    KUMI_TAG_CONTROL,
    KUMI_TAG_FAILURE,
    KUMI_TAG_PAST,
    KUMI_TAG_KINDS = KUMI_TAG_PAST + KUMI_TAG_CALLS
};

/* Once, with the library's MPI_TAG_UB. */
KUMI_HIDDEN void kumi_tags_begin(int tag_max);

/* A number that no other communicator of this rank has; -1 if all are in use. */
KUMI_HIDDEN int kumi_tag_take(void);

KUMI_HIDDEN void kumi_tag_give_back(int number);

/* The MPI tag of a kind of message under a number. */
static inline int kumi_tag(int number, int kind)
{
    return number * KUMI_TAG_KINDS + kind;
}

#endif
