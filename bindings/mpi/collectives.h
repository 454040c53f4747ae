/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collectives that are executed by a plan instead of by the MPI library. */
#ifndef KUMI_MPI_COLLECTIVES_H
#define KUMI_MPI_COLLECTIVES_H

#include "marking.h"

/*
 * Executes a call by a plan, if KUMI_COLL allows it and a plan is expected to be faster. The
 * arguments are those of C or of Fortran, as `call` says. Returns true if the call is done. Then
 * `result` is the return value of the function.
 */
KUMI_HIDDEN bool kumi_collective(struct kumi_mpi_call *call, const uintptr_t *arguments, int *result);

/* Ends a call for which kumi_collective() returned false, after the MPI library has executed it. */
KUMI_HIDDEN void kumi_collective_left(void);

#endif
