/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A call from Fortran as the C function would have it. */
#ifndef KUMI_MPI_FORTRAN_H
#define KUMI_MPI_FORTRAN_H

#include "abi.h"

/*
 * Turns Fortran's arguments, addresses all, into C's. `kinds` has a letter for each: b a buffer, i
 * an integer, a an array of integers, t a datatype, o an operation, c a communicator.
 */
KUMI_HIDDEN void kumi_from_fortran(const struct kumi_abi *abi, const char *kinds,
                                   const uintptr_t *fortran, uintptr_t *arguments);

#endif
