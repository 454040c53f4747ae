/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collectives that are done by a plan instead of by the MPI library. */
#ifndef KUMI_MPI_COLLECTIVES_H
#define KUMI_MPI_COLLECTIVES_H

#include "marking.h"

/*
 * Does the call, with the arguments of C or of Fortran as `call` says, if KUMI_COLL asks for it and
 * a plan is thought the better way. True if it was done: `result` is what the function returns.
 */
KUMI_HIDDEN bool kumi_collective(struct kumi_mpi_call *call, const uintptr_t *arguments,
                                 int *result);

#endif
