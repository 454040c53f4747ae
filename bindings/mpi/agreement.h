/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Compares what plans depend on between the ranks of a job: ranks with different plans would
 * wait for ever. */
#ifndef KUMI_MPI_AGREEMENT_H
#define KUMI_MPI_AGREEMENT_H

#include "abi.h"

/* HOST_NAME_MAX of Linux, with the terminating zero. */
enum { KUMI_HOST_BYTES = 65 };

/* What must be equal on all ranks. All zero on a rank that plans nothing. */
struct kumi_terms {
    /* 1 if the rank plans collectives. */
    uint64_t plans;
    /* Digests of the network file's content, of libkumi.so, of KUMI_COLL and of this preload
     * library. */
    uint64_t network, library, options, preload;
};

/*
 * Compares the terms of all ranks in MPI_COMM_WORLD; every rank of the job must call it. Returns
 * whether all are equal. If not, rank 0 says on stderr which hosts differ, and in what. `why_not` is
 * why this rank plans nothing; NULL if it does.
 */
KUMI_HIDDEN bool kumi_agree(const struct kumi_abi *abi, const char *host, int rank, int size,
                            const struct kumi_terms *own, const char *why_not);

/* FNV-1a, 64 bits. `digest` continues an earlier one; 0 starts one. */
KUMI_HIDDEN uint64_t kumi_digest(uint64_t digest, const void *bytes, size_t count);

#endif
