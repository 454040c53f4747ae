/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Atomic operations on memory of this process. */
#ifndef COMPUTE_H
#define COMPUTE_H

#include "provider.h"

/* Returns the length of a type, or 0 if it is not supported. */
size_t datatype_bytes(enum fi_datatype datatype);

bool is_floating(enum fi_datatype datatype);

/*
 * Changes `count` values from `memory` on, which is aligned to their length. `compares` is NULL for
 * operations that do not compare, and `results` NULL if the former values are not wanted.
 */
void compute(uint8_t *memory, enum fi_datatype datatype, enum fi_op operation, size_t count,
             const uint8_t *operands, const uint8_t *compares, uint8_t *results);

#endif
