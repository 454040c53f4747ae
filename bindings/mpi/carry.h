/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Carries a planned collective out, by the MPI library's own point-to-point messages. */
#ifndef KUMI_MPI_CARRY_H
#define KUMI_MPI_CARRY_H

#include "communicator.h"

struct kumi_carried {
    struct kumi_coll_asked asked;
    /* Of each rank, or of a vector alone, where its block is sent from, and where it is received. */
    char **out, **in;
    /* Only where blocks are combined: what with, and bytes of an element. */
    kumi_handle type, operation;
};

/* An MPI error code; 0 is success. */
KUMI_HIDDEN int kumi_carry(const struct kumi_communicator *of, const struct kumi_carried *carried);

#endif
