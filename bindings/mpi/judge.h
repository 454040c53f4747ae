/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Argument checks, which the MPI library makes. A plainly invalid call is left to the library,
 * whose check raises its own error. Aliased buffers and reductions are tried on a communicator of
 * one rank (ADR 029). So a planned collective has the same checks as the library's own.
 */
#ifndef KUMI_MPI_JUDGE_H
#define KUMI_MPI_JUDGE_H

#include "call.h"

/*
 * Returns whether no count is negative and the datatype is not MPI_DATATYPE_NULL. If false, the
 * library must execute the call, so that it raises its error.
 */
KUMI_HIDDEN bool kumi_is_valid(const struct kumi_abi *abi, const struct kumi_buffer *buffer);

/*
 * Has the library check buffers that are the same memory. Returns the MPI error code that it gives
 * for a move from `sent` to `received`, or 0 for different memory.
 */
KUMI_HIDDEN int kumi_judge_buffers(const struct call *call, const struct kumi_buffer *sent,
                                   const struct kumi_buffer *received);

/*
 * Has the library check a reduction from `sent` to `received` with this datatype and operation.
 * Returns its MPI error code.
 */
KUMI_HIDDEN int kumi_judge_reduction(const struct call *call, const char *sent, char *received,
                                     kumi_handle type, kumi_handle operation);

#endif
