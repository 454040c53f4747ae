/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Lengths in earlier calls of one collective on one communicator, where each rank knows only its
 * own lengths.
 *
 * All ranks must decide alike whether a call is planned, but no rank knows all lengths. An exchange
 * of lengths before each call would cost every call, long or short, a round of messages. So the
 * decision depends on an earlier call. Its lengths are compared in a nonblocking all-reduce while
 * the program continues. Calls are compared at distances of 1, 2, 4 … KUMI_HISTORY_DISTANCE_MAX.
 */
#ifndef KUMI_MPI_HISTORY_H
#define KUMI_MPI_HISTORY_H

#include "abi.h"

/* Collectives with a history. */
enum { KUMI_HISTORY_ALLTOALLV, KUMI_HISTORY_GATHERV, KUMI_HISTORY_SCATTERV, KUMI_HISTORIES };

/*
 * Maximum number of calls until a change of lengths is noticed. Until then, longer blocks follow
 * the plan for shorter ones, so two senders may use one port at a time. From an experiment with 64
 * and 8 calls (docs/perf-log.md, 2026-11-24).
 */
enum { KUMI_HISTORY_DISTANCE_MAX = 8 };

/*
 * Length classes of all ranks. Bit n represents values of 2^n to 2^(n+1)-1, bit 0 also the value 0.
 * The bits are complemented, because the library combines them by AND.
 */
struct kumi_lengths {
    uint64_t block_max, total;
};

struct kumi_history {
    /*
     * Result of the last comparison, 0 before the first. `block_bytes` is the power of two above
     * the longest block of any rank. `total_bytes_min` is the power of two at or below the least
     * total of any rank.
     */
    uint64_t block_bytes, total_bytes_min;
    /* Calls until the next comparison, and the distance between comparisons, in calls. */
    unsigned wait, distance;
    bool is_pending;
    uint64_t request[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)];
    struct kumi_lengths own, all;
};

/* Completes a comparison that an earlier call began. Returns an MPI error code. */
KUMI_HIDDEN int kumi_history_look(struct kumi_history *history, const struct kumi_abi *abi);

/*
 * Begins a comparison if one is due. `block_max` is this rank's longest block and `total` the sum
 * of its blocks, in bytes. Returns an MPI error code.
 */
KUMI_HIDDEN int kumi_history_note(struct kumi_history *history, const struct kumi_abi *abi, kumi_handle comm,
                                  uint64_t block_max, uint64_t total);

/* Completes a pending comparison when the communicator is freed. */
KUMI_HIDDEN void kumi_history_end(struct kumi_history *history, const struct kumi_abi *abi);

#endif
