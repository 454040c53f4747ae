/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Argument checks. A call that is not valid goes to the library, whose check raises its own error,
 * or is judged by the library on a communicator of one rank. So a planned collective has the checks
 * of the library beneath it.
 */
#ifndef KUMI_MPI_JUDGE_H
#define KUMI_MPI_JUDGE_H

#include "call.h"

/* Whether counts are not negative and the datatype is not MPI_DATATYPE_NULL: else the library is
 * to say so. */
KUMI_HIDDEN bool kumi_is_valid(const struct kumi_abi *abi, const struct kumi_buffer *buffer);

/* What the library says of moving `sent` to `received`: an MPI error code, for buffers that are
 * the same memory. */
KUMI_HIDDEN int kumi_judge_buffers(const struct call *call, const struct kumi_buffer *sent,
                                   const struct kumi_buffer *received);

/* What the library says of a reduction with this datatype and operation, from `sent` to
 * `received`. */
KUMI_HIDDEN int kumi_judge_reduction(const struct call *call, const char *sent, char *received,
                                     kumi_handle type, kumi_handle operation);

#endif
