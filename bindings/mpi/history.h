/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How long the calls of one collective are on one communicator, where each rank knows only its own
 * part.
 *
 * All ranks must decide alike whether a call is planned, and no rank knows enough. Exchanging
 * lengths first would cost every call, long or short, a round of messages. So a call is decided by
 * what an earlier one was like: its lengths are compared in a nonblocking all-reduce, while the
 * program goes on. Calls are compared at distances of 1, 2, 4 … KUMI_HISTORY_DISTANCE_MAX.
 */
#ifndef KUMI_MPI_HISTORY_H
#define KUMI_MPI_HISTORY_H

#include "abi.h"

/* Collectives with a history. */
enum { KUMI_HISTORY_ALLTOALLV, KUMI_HISTORY_GATHERV, KUMI_HISTORY_SCATTERV, KUMI_HISTORIES };

/* A program whose lengths change is noticed after this many calls at most: until then longer
 * blocks go by the plan of shorter ones, which lets two senders into one port. */
enum { KUMI_HISTORY_DISTANCE_MAX = 8 };

/* Bit n is set if some rank's value is in 2^n … 2^(n+1)-1; complemented, for the library ANDs
 * them. */
struct kumi_lengths {
    uint64_t block_max, total;
};

struct kumi_history {
    /* What the last comparison found: the power of two above the longest block of any rank, and
     * one at most the least total of a rank. 0 before the first. */
    uint64_t block_bytes, total_bytes_min;
    /* Calls until the next comparison, and until the one after that. */
    unsigned wait, distance;
    bool is_pending;
    uint64_t request[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)];
    struct kumi_lengths own, all;
};

/* Completes a comparison that an earlier call began. Returns an MPI error code. */
KUMI_HIDDEN int kumi_history_look(struct kumi_history *history, const struct kumi_abi *abi);

/* Begins a comparison, if it is time: this rank's longest block, and the sum of its blocks.
 * Returns an MPI error code. */
KUMI_HIDDEN int kumi_history_note(struct kumi_history *history, const struct kumi_abi *abi,
                                  kumi_handle comm, uint64_t block_max, uint64_t total);

/* Completes what is pending, when the communicator is freed. */
KUMI_HIDDEN void kumi_history_end(struct kumi_history *history, const struct kumi_abi *abi);

#endif
