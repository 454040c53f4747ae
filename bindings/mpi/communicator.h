/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is known of a communicator of the program. */
#ifndef KUMI_MPI_COMMUNICATOR_H
#define KUMI_MPI_COMMUNICATOR_H

#include "history.h"
#include "job.h"
#include "past.h"

struct kumi_communicator {
    const struct kumi_job *job;
    const struct kumi_abi *abi;
    /* The program's communicator. */
    kumi_handle comm;
    int rank, size;
    /* By rank, its rank in the job. */
    int *job_ranks;
    /* All ranks are on one host; some host has several of them. */
    bool is_one_host, shares_hosts;
    /* The network of its ranks, made when a call is long enough to be planned on it; NULL until
     * then. */
    struct kumi_coll_ranks *ranks;
    /* All ranks are on one switch. Valid once `ranks` is made. */
    bool is_flat;
    /* Some ranks may be in sites far apart, where hops cost more than bytes: short collectives
     * are planned too. */
    bool is_far;
    /* By rank, the number (tags.h) under which it receives; NULL until the first collective. */
    int *numbers;
    /* A receive that completes when another rank's plan fails; posted while `numbers` are known. */
    uint64_t failure[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)];
    /* A plan failed midway: its messages may still be about, so no other may follow it. */
    bool is_broken;
    /* `failure` has completed. */
    bool is_told;
    /* Calls that this rank is past. */
    struct kumi_past past;
    /* Lengths seen by calls in which each rank knows only its own. */
    struct kumi_history histories[KUMI_HISTORIES];
};

/*
 * What is known of `comm`, found out at its first collective without a message. NULL if its
 * collectives are the library's: one rank, two groups, a rank outside the job, or one host under
 * `auto`. All its ranks come to the same answer.
 */
KUMI_HIDDEN struct kumi_communicator *kumi_communicator(const struct kumi_job *job,
                                                        kumi_handle comm);

/* Completes what is pending on `comm`, before it is freed. */
KUMI_HIDDEN void kumi_communicator_settle(const struct kumi_job *job, kumi_handle comm);

/* Makes `numbers`; all ranks call it at their first collective. Returns an MPI error code. */
KUMI_HIDDEN int kumi_communicator_number(struct kumi_communicator *of);

/* This rank has done its part of a call, or leaves it to the library. */
KUMI_HIDDEN void kumi_communicator_pass(struct kumi_communicator *of);

/* Makes `ranks`; without a message. Whether it stands. */
KUMI_HIDDEN bool kumi_communicator_network(struct kumi_communicator *of);

/*
 * Makes what a planned call needs besides `numbers`, which stand. Writes an MPI error code to
 * `error`. False if the communicator stays the library's; then on all ranks.
 */
KUMI_HIDDEN bool kumi_communicator_open(struct kumi_communicator *of, int *error);

#endif
