/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is known of a communicator whose collectives are replaced. */
#ifndef KUMI_MPI_COMMUNICATOR_H
#define KUMI_MPI_COMMUNICATOR_H

#include "abi.h"
#include "planner.h"

struct kumi_communicator {
    const struct kumi_abi *abi;
    const struct kumi_planner *planner;
    /* A duplicate: messages of ours never match the program's. */
    kumi_handle inside;
    int rank, size;
    struct kumi_coll_ranks *ranks;
    /* All are on one switch. */
    bool is_flat;
    /* Some are in sites far apart, where hops count more than messages: short collectives are planned too. */
    bool is_far;
};

/*
 * The communicator's own, made at its first collective, which all its ranks are in. NULL if its collectives are the
 * library's: of one rank, between two groups, or where any of its ranks has no plan; then on all.
 */
KUMI_HIDDEN struct kumi_communicator *kumi_communicator(kumi_handle comm, const void *caller);

#endif
