/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* State of the job, on which its ranks agree in MPI_Init. */
#ifndef KUMI_MPI_JOB_H
#define KUMI_MPI_JOB_H

#include "abi.h"
#include "agreement.h"
#include "planner.h"

struct kumi_job {
    const struct kumi_abi *abi;
    const struct kumi_planner *planner;
    /*
     * Duplicate of MPI_COMM_WORLD with MPI_ERRORS_RETURN, for the messages of all plans. Tags
     * distinguish the communicators of the program (tags.h).
     */
    kumi_handle inside;
    /*
     * Duplicate of MPI_COMM_SELF with MPI_ERRORS_RETURN, on which the library checks arguments
     * (judge.h).
     */
    kumi_handle alone;
    int rank, size;
    /* Host names by rank, KUMI_HOST_BYTES each; lowest rank on the same host, by rank. */
    const char *hosts;
    const int *host_of;
    /* True if some hosts are on different sites. */
    bool is_multi_site;
    /* True if KUMI_COLL is `auto`. */
    bool is_automatic;
    /* True if the connections of all ranks send short bursts. */
    bool has_short_bursts;
};

/*
 * Returns the job. Returns NULL if nothing is planned in it: `--coll off`, one host under `auto`,
 * or ranks that differ.
 */
KUMI_HIDDEN const struct kumi_job *kumi_job(void);

#endif
