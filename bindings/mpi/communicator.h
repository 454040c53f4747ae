/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* State that is kept for each communicator of the program. */
#ifndef KUMI_MPI_COMMUNICATOR_H
#define KUMI_MPI_COMMUNICATOR_H

#include "history.h"
#include "job.h"
#include "past.h"
#include "trial.h"

struct kumi_communicator {
    const struct kumi_job *job;
    const struct kumi_abi *abi;
    /* The program's communicator. */
    kumi_handle comm;
    int rank, size;
    /* Rank in the job, by rank in the communicator. */
    int *job_ranks;
    /* True if all ranks are on one host; true if any host has several of them. */
    bool is_one_host, shares_hosts;
    /* Network of the ranks. NULL until the first call that is long enough to be planned on it. */
    struct kumi_coll_ranks *ranks;
    /*
     * True if all ranks are on one switch, each with a link of its own. Valid once `ranks` is set.
     */
    bool is_single_switch;
    /*
     * True if ranks may be on different sites, where hops cost more than bytes. Short collectives
     * are then planned too. Exact once `ranks` is set.
     */
    bool is_multi_site;
    /* The other ranks in the order in which blocks for them begin. Valid once `ranks` is set. */
    int *sending_order;
    /* Number under which each rank receives (tags.h), by rank. NULL until the first collective. */
    int *numbers;
    /* Receive that completes when another rank's plan fails. Posted once `numbers` is set. */
    uint64_t failure[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)];
    /*
     * True if a plan failed before its end. Its messages may still be in flight, so no further plan
     * may be executed.
     */
    bool is_broken;
    /* True if `failure` has completed. */
    bool is_told;
    /* Calls that this rank is past. */
    struct kumi_past past;
    /* Lengths in earlier calls of the collectives in which each rank knows only its own lengths. */
    struct kumi_history histories[KUMI_HISTORIES];
    /* Comparisons of plans with the library, under `auto`. */
    struct kumi_trials trials;
};

/*
 * Returns the state of `comm`, which is created at its first collective, without communication.
 * Returns NULL if its collectives are left to the library: it has one rank, two groups or a rank
 * outside the job, or all its ranks are on one host under `auto`. The result is the same on all
 * ranks.
 */
KUMI_HIDDEN struct kumi_communicator *kumi_communicator(const struct kumi_job *job, kumi_handle comm);

/* Completes pending operations on `comm` before it is freed. */
KUMI_HIDDEN void kumi_communicator_settle(const struct kumi_job *job, kumi_handle comm);

/* Exchanges `numbers`. All ranks call it at their first collective. Returns an MPI error code. */
KUMI_HIDDEN int kumi_communicator_number(struct kumi_communicator *of);

/* Records that this rank has done its part of a call, or leaves the call to the library. */
KUMI_HIDDEN void kumi_communicator_pass(struct kumi_communicator *of);

/* Creates `ranks`, without communication, unless it exists. Returns false if that fails. */
KUMI_HIDDEN bool kumi_communicator_network(struct kumi_communicator *of);

/*
 * Prepares planned calls. `numbers` must be set. Writes an MPI error code to `error`. Returns
 * false, on all ranks alike, if the communicator is left to the library.
 */
KUMI_HIDDEN bool kumi_communicator_open(struct kumi_communicator *of, int *error);

#endif
