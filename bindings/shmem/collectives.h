/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collectives of bytes, for teams and active sets. */
#ifndef KUMI_SHMEM_COLLECTIVES_H
#define KUMI_SHMEM_COLLECTIVES_H

#include "context.h"
#include "team.h"

/* Most bytes of all members together that go by letters. More are put to their places. */
enum { LETTERS_BYTES_MAX = 8 << 10 };

/* Puts bytes to a member. complete_puts waits for all of them. */
void put_to(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
            size_t bytes, int member);
void complete_puts(const char *call);

/* Combines `count` values into others. */
typedef void combine_t(void *into, const void *from, size_t count);
void reduce(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
            size_t count, size_t value_bytes, combine_t *combine);

#endif
