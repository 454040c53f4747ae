/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Measures whether the MPI library is faster than a plan or than all blocks at once (ADR 046).
 *
 * The calls of one collective on one communicator with lengths of one class have a trial. Most of
 * them are executed in the usual way, which is at first that of ADR 030. Sometimes the other way is
 * tried:
 *
 *   calls    4      4         4        1          1, with the faster way, which is the usual one
 *            usual  other     usual    compare    from now on; the next distance is longer
 *            ▲      └── series of four ──┘
 *            └── distance to the next comparison
 *
 * The time of a call is the longest of any rank, so a rank that leaves early does not count. The
 * ranks compare their times in a nonblocking all-reduce during one call, and all read the result in
 * the next. So all ranks decide alike.
 */
#ifndef KUMI_MPI_TRIAL_H
#define KUMI_MPI_TRIAL_H

#include "abi.h"

/*
 * Ways to execute a call: by the MPI library, by a plan, or with all blocks of an all-to-all at
 * once (at_once.h).
 */
enum kumi_way { KUMI_BY_LIBRARY, KUMI_BY_PLAN, KUMI_AT_ONCE };

/* The way in which a call is usually made, and the one that is compared with it. */
struct kumi_ways {
    enum kumi_way usual, other;
};

/*
 * Number of calls that are made in one way before the other is used, and how many of them count.
 * The first does not: it may create a plan, and the ranks leave the way before it at different
 * times.
 */
enum { KUMI_TRIAL_SERIES = 4, KUMI_TRIAL_COUNTED = KUMI_TRIAL_SERIES - 1 };

/* Series of a comparison. */
enum { KUMI_TRIAL_OTHER, KUMI_TRIAL_USUAL, KUMI_TRIAL_SERIES_COUNT };

/* Number of trials of a communicator. The calls of further classes are made in the usual way. */
enum { KUMI_TRIALS_MAX = 16 };

struct kumi_trial {
    /* Name of the MPI function, NULL for an unused trial; base-2 logarithm of the length. */
    const char *name;
    unsigned length_class;
    struct kumi_ways ways;
    /* Calls since the last comparison, and those of them before the other way is tried. */
    unsigned calls, distance;
    /* Times of this rank by series, and the longest of any rank, in nanoseconds. */
    unsigned long own[KUMI_TRIAL_SERIES_COUNT][KUMI_TRIAL_COUNTED];
    unsigned long longest[KUMI_TRIAL_SERIES_COUNT][KUMI_TRIAL_COUNTED];
    /* Place for the time of the present call, or NULL; when the call began, in nanoseconds. */
    unsigned long *time;
    unsigned long began;
    bool is_pending;
    uint64_t request[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)];
};

struct kumi_trials {
    struct kumi_trial of[KUMI_TRIALS_MAX];
};

/*
 * Returns the trial of a collective for a length, which all ranks know, or NULL if there is no room
 * for it. A new trial begins with `ways`. `name` is a constant.
 */
KUMI_HIDDEN struct kumi_trial *kumi_trial_of(struct kumi_trials *trials, const char *name, uint64_t bytes,
                                             struct kumi_ways ways);

/*
 * Begins a call and returns the way to execute it. All ranks of `comm` call it. Writes an MPI error
 * code to `error`. `is_told` makes a comparison print its result on stderr.
 */
KUMI_HIDDEN enum kumi_way kumi_trial_begin(struct kumi_trial *trial, const struct kumi_abi *abi,
                                           kumi_handle comm, bool is_told, int *error);

/* Ends the call. */
KUMI_HIDDEN void kumi_trial_end(struct kumi_trial *trial);

/* Completes pending comparisons before the communicator is freed. */
KUMI_HIDDEN void kumi_trials_end(struct kumi_trials *trials, const struct kumi_abi *abi);

#endif
