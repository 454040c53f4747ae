/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Conversion of the arguments of a Fortran call to those of the C function. */
#ifndef KUMI_MPI_FORTRAN_H
#define KUMI_MPI_FORTRAN_H

#include "abi.h"

/*
 * Converts Fortran's arguments, which are all addresses, to C's. `kinds` has a letter for each
 * argument: b for a buffer, i for an integer, a for an array of integers, t for a datatype, o for
 * an operation, c for a communicator.
 */
KUMI_HIDDEN void kumi_from_fortran(const struct kumi_abi *abi, const char *kinds, const uintptr_t *fortran,
                                   uintptr_t *arguments);

#endif
