/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Compares the inputs of planning between the ranks of a job. Ranks with different plans would wait
 * for each other for ever.
 */
#ifndef KUMI_MPI_AGREEMENT_H
#define KUMI_MPI_AGREEMENT_H

#include "abi.h"

/* HOST_NAME_MAX of Linux, with the terminating zero. */
enum { KUMI_HOST_BYTES = 65 };

/* Bits of `plans`. */
enum {
    /* The rank plans collectives. */
    KUMI_PLANS = 1,
    /* Connections of its host send short bursts (ADR 045). This bit may differ. */
    KUMI_SHORT_BURSTS = 2,
    /* It can compute its fair share in an all-to-all (ADR 048). This bit may differ. */
    KUMI_FAIR_SHARE = 4,
    KUMI_MAY_DIFFER = KUMI_SHORT_BURSTS | KUMI_FAIR_SHARE,
};

/*
 * Inputs of planning that must be equal on all ranks. All zero on a rank that does not plan,
 * except those that may differ.
 */
struct kumi_terms {
    uint64_t plans;
    /*
     * Digests of the network file's content, of libkumi.so, of the options (KUMI_COLL and
     * KUMI_REPRODUCIBLE) and of this preload library.
     */
    uint64_t network, library, options, preload;
    /* Digest of the network file for the fair share, also without plans. It may differ. */
    uint64_t shared_network;
};

/*
 * Compares the terms of all ranks in MPI_COMM_WORLD. Every rank of the job must call it. Returns
 * whether all terms are equal. A bit of KUMI_MAY_DIFFER remains in `own` if all ranks have it.
 * KUMI_FAIR_SHARE also requires that `shared_network` is equal on all; otherwise rank 0 says so on
 * stderr. If the terms differ, rank 0 names two ranks, their hosts and the difference there.
 * `why_not` is the reason for which this rank does not plan, or NULL if it does.
 */
KUMI_HIDDEN bool kumi_agree(const struct kumi_abi *abi, const char *host, int rank, int size,
                            struct kumi_terms *own, const char *why_not);

/*
 * Returns the FNV-1a digest of 64 bits. `digest` is that of the preceding bytes, or 0 at the start.
 */
KUMI_HIDDEN uint64_t kumi_digest(uint64_t digest, const void *bytes, size_t count);

#endif
