/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reductions (9.9.5). All members combine in the order of the members, so that they have equal
 * results also with floating-point numbers. For a long vector each member gets one piece of it from
 * all others, combines it, and puts the result to all: every byte crosses a link twice, as few
 * times as is possible.
 */
#include <complex.h>
#include <stdlib.h>
#include <string.h>

#include "collectives.h"

/* Longest part of a vector that is combined at a time, in bytes: a member needs as much memory. */
enum { PART_BYTES_MAX = 8 << 20 };

static void reduce_short(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
                         size_t count, size_t value_bytes, combine_t *combine)
{
    size_t bytes = count * value_bytes;
    char *all = malloc(bytes * (size_t)team->count);
    gather_all(call, team, all, source, bytes);
    for (int member = 1; member < team->count; member++)
        combine(all, all + (size_t)member * bytes, count);
    memcpy(dest, all, bytes);
    free(all);
}

/* Reduces a part of a vector, at most PART_BYTES_MAX. */
static void reduce_part(const char *call, const struct kumi_shmem_team *team, char *dest, const char *source,
                        size_t count, size_t value_bytes, combine_t *combine)
{
    size_t members = (size_t)team->count, me = (size_t)team->me;
    size_t piece = (count + members - 1) / members;
    size_t begin = piece * me < count ? piece * me : count;
    size_t mine = count - begin < piece ? count - begin : piece;
    size_t offset = begin * value_bytes, bytes = mine * value_bytes;
    char *all = malloc(bytes * members + 1);
    for (size_t next = 0; next < members; next++) {
        size_t member = (me + next) % members;
        get_nbi(call, &collective_context, all + member * bytes, source + offset, bytes,
                team_pe(team, (int)member));
    }
    quiet(call, &collective_context);
    for (size_t member = 1; member < members; member++)
        combine(all, all + member * bytes, mine);
    /* The vector may be its own result: nobody writes before all have read. */
    team_sync(call, team);
    for (size_t next = 0; next < members; next++)
        put_to(call, team, dest + offset, all, bytes, (int)((me + next) % members));
    complete_puts(call);
    free(all);
}

void reduce(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
            size_t count, size_t value_bytes, combine_t *combine)
{
    if (count == 0)
        return;
    if (team->count == 1) {
        memmove(dest, source, count * value_bytes);
        return;
    }
    if (count * value_bytes * (size_t)team->count <= LETTERS_BYTES_MAX) {
        reduce_short(call, team, dest, source, count, value_bytes, combine);
        return;
    }
    team_sync(call, team);
    size_t at_once = PART_BYTES_MAX / value_bytes;
    for (size_t at = 0; at < count; at += at_once)
        reduce_part(call, team, (char *)dest + at * value_bytes, (const char *)source + at * value_bytes,
                    count - at < at_once ? count - at : at_once, value_bytes, combine);
    team_sync(call, team);
}

#define COMBINE(NAME, TYPE, OPERATION, EXPRESSION)                             \
    static void NAME##_##OPERATION(void *into, const void *from, size_t count) \
    {                                                                          \
        TYPE *values = into;                                                   \
        const TYPE *others = from;                                             \
        for (size_t at = 0; at < count; at++) {                                \
            TYPE one = values[at], other = others[at];                         \
            values[at] = (TYPE)(EXPRESSION);                                   \
        }                                                                      \
    }
#define COMBINE_and(NAME, TYPE) COMBINE(NAME, TYPE, and, one &other)
#define COMBINE_or(NAME, TYPE) COMBINE(NAME, TYPE, or, one | other)
#define COMBINE_xor(NAME, TYPE) COMBINE(NAME, TYPE, xor, one ^ other)
#define COMBINE_min(NAME, TYPE) COMBINE(NAME, TYPE, min, other < one ? other : one)
#define COMBINE_max(NAME, TYPE) COMBINE(NAME, TYPE, max, other > one ? other : one)
#define COMBINE_sum(NAME, TYPE) COMBINE(NAME, TYPE, sum, one + other)
#define COMBINE_prod(NAME, TYPE) COMBINE(NAME, TYPE, prod, one *other)

#define DEFINE_REDUCE(NAME, TYPE, OPERATION)                                                        \
    COMBINE_##OPERATION(NAME, TYPE) PUBLIC int shmem_##NAME##_##OPERATION##_reduce(                 \
        shmem_team_t team, TYPE *dest, const TYPE *source, size_t nreduce)                          \
    {                                                                                               \
        static const char *call = "shmem_" #NAME "_" #OPERATION "_reduce";                          \
        reduce(call, team_of(call, team), dest, source, nreduce, sizeof(TYPE), NAME##_##OPERATION); \
        return 0;                                                                                   \
    }
KUMI_SHMEM_BITWISE_REDUCTIONS(DEFINE_REDUCE)
KUMI_SHMEM_ORDERED_REDUCTIONS(DEFINE_REDUCE)
KUMI_SHMEM_ARITHMETIC_REDUCTIONS(DEFINE_REDUCE)

/* Bitwise reductions of signed types exist for active sets only. */
#define COMBINE_SIGNED(NAME, TYPE, OPERATION) COMBINE_##OPERATION(NAME, TYPE)
KUMI_SHMEM_TO_ALL_INTEGERS(COMBINE_SIGNED, and)
KUMI_SHMEM_TO_ALL_INTEGERS(COMBINE_SIGNED, or)
KUMI_SHMEM_TO_ALL_INTEGERS(COMBINE_SIGNED, xor)

#define DEFINE_TO_ALL(NAME, TYPE, OPERATION)                                                                 \
    PUBLIC void shmem_##NAME##_##OPERATION##_to_all(TYPE *dest, const TYPE *source, int nreduce,             \
                                                    int PE_start, int logPE_stride, int PE_size, TYPE *pWrk, \
                                                    long *pSync)                                             \
    {                                                                                                        \
        static const char *call = "shmem_" #NAME "_" #OPERATION "_to_all";                                   \
        (void)pWrk;                                                                                          \
        (void)pSync;                                                                                         \
        struct kumi_shmem_team team = active_set(call, PE_start, logPE_stride, PE_size);                     \
        reduce(call, &team, dest, source, nreduce < 0 ? 0 : (size_t)nreduce, sizeof(TYPE),                   \
               NAME##_##OPERATION);                                                                          \
    }
KUMI_SHMEM_TO_ALL_REDUCTIONS(DEFINE_TO_ALL)
