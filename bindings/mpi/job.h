/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The job: what its ranks agreed on when MPI began. */
#ifndef KUMI_MPI_JOB_H
#define KUMI_MPI_JOB_H

#include "abi.h"
#include "agreement.h"
#include "planner.h"

struct kumi_job {
    const struct kumi_abi *abi;
    const struct kumi_planner *planner;
    /* A duplicate of MPI_COMM_WORLD, with MPI_ERRORS_RETURN, that carries the messages of all
     * plans. Its tags tell communicators apart (tags.h). */
    kumi_handle inside;
    /* A duplicate of MPI_COMM_SELF, with MPI_ERRORS_RETURN, on which the library judges
     * arguments (judge.h). */
    kumi_handle alone;
    int rank, size;
    /* Host names of all ranks, KUMI_HOST_BYTES each; and per rank, the lowest rank on the same
     * host. */
    const char *hosts;
    const int *host_of;
    /* Some hosts are in sites far apart. */
    bool is_far;
    /* KUMI_COLL is `auto`. */
    bool is_automatic;
};

/* The job, or NULL if nothing is planned in it: `--coll off`, one host under `auto`, or ranks
 * that differ. */
KUMI_HIDDEN const struct kumi_job *kumi_job(void);

#endif
