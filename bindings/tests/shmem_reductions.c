/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reductions of every type and operation, against their results by hand. */
#include <complex.h>

#include "shmem.h"

/*
 * Values of the PEs. Products and sums stay small, and have exact values also as floating-point
 * numbers.
 */
#define VALUE(pe, at) ((pe) % 3 + (int)((at) % 4) + 1)

#define BITWISE_REDUCE(X)            \
    X(uchar, unsigned char)          \
    X(ushort, unsigned short)        \
    X(uint, unsigned int)            \
    X(ulong, unsigned long)          \
    X(ulonglong, unsigned long long) \
    X(int8, int8_t)                  \
    X(int16, int16_t)                \
    X(int32, int32_t)                \
    X(int64, int64_t)                \
    X(uint8, uint8_t)                \
    X(uint16, uint16_t)              \
    X(uint32, uint32_t)              \
    X(uint64, uint64_t)              \
    X(size, size_t)
#define ORDERED_REDUCE(X)  \
    BITWISE_REDUCE(X)      \
    X(char, char)          \
    X(schar, signed char)  \
    X(short, short)        \
    X(int, int)            \
    X(long, long)          \
    X(longlong, long long) \
    X(ptrdiff, ptrdiff_t)  \
    X(float, float)        \
    X(double, double)      \
    X(longdouble, long double)
#define ARITHMETIC_REDUCE(X)    \
    ORDERED_REDUCE(X)           \
    X(complexf, float _Complex) \
    X(complexd, double _Complex)

/* The result by hand: the values of all PEs, one after the other. */
#define BY_HAND(TYPE, at, COMBINE)        \
    TYPE wanted = (TYPE)VALUE(0, at);     \
    for (int pe = 1; pe < count; pe++) {  \
        TYPE other = (TYPE)VALUE(pe, at); \
        wanted = (TYPE)(COMBINE);         \
    }

#define TEST_ONE(NAME, TYPE, OPERATION, COMBINE, CALL) \
    for (size_t at = 0; at < length; at++) {           \
        from[at] = (TYPE)VALUE(me, at);                \
        to[at] = 0;                                    \
    }                                                  \
    shmem_barrier_all();                               \
    CALL(NAME, OPERATION, to, from, length);           \
    for (size_t at = 0; at < length; at++) {           \
        BY_HAND(TYPE, at, COMBINE)                     \
        HOLDS(to[at] == wanted);                       \
    }                                                  \
    /* The vector is its own result. */                \
    shmem_barrier_all();                               \
    CALL(NAME, OPERATION, from, from, length);         \
    for (size_t at = 0; at < length; at++)             \
        HOLDS(from[at] == to[at]);                     \
    shmem_barrier_all();

#define TEAM_CALL(NAME, OPERATION, to, from, length) \
    HOLDS(shmem_##NAME##_##OPERATION##_reduce(SHMEM_TEAM_WORLD, to, from, length) == 0)
#define TO_ALL_CALL(NAME, OPERATION, to, from, length) \
    shmem_##NAME##_##OPERATION##_to_all(to, from, (int)length, 0, 0, count, work, sync_words)

static long sync_words[SHMEM_REDUCE_SYNC_SIZE];

#define DEFINE(GROUP, NAME, TYPE, CALL, TESTS)                                                       \
    static void GROUP##_##NAME(size_t length)                                                        \
    {                                                                                                \
        static TYPE work[SHMEM_REDUCE_MIN_WRKDATA_SIZE];                                             \
        (void)work;                                                                                  \
        TYPE *from = shmem_malloc(length * sizeof(TYPE)), *to = shmem_malloc(length * sizeof(TYPE)); \
        TESTS(NAME, TYPE, CALL)                                                                      \
        shmem_free(to);                                                                              \
        shmem_free(from);                                                                            \
    }
#define BITWISE_TESTS(NAME, TYPE, CALL)            \
    TEST_ONE(NAME, TYPE, and, wanted &other, CALL) \
    TEST_ONE(NAME, TYPE, or, wanted | other, CALL) \
    TEST_ONE(NAME, TYPE, xor, wanted ^ other, CALL)
#define ORDERED_TESTS(NAME, TYPE, CALL)                              \
    TEST_ONE(NAME, TYPE, min, other < wanted ? other : wanted, CALL) \
    TEST_ONE(NAME, TYPE, max, other > wanted ? other : wanted, CALL)
#define ARITHMETIC_TESTS(NAME, TYPE, CALL)          \
    TEST_ONE(NAME, TYPE, sum, wanted + other, CALL) \
    TEST_ONE(NAME, TYPE, prod, wanted *other, CALL)
#define DEFINE_BITWISE(NAME, TYPE) DEFINE(bitwise, NAME, TYPE, TEAM_CALL, BITWISE_TESTS)
#define DEFINE_ORDERED(NAME, TYPE) DEFINE(ordered, NAME, TYPE, TEAM_CALL, ORDERED_TESTS)
#define DEFINE_ARITHMETIC(NAME, TYPE) DEFINE(arithmetic, NAME, TYPE, TEAM_CALL, ARITHMETIC_TESTS)
BITWISE_REDUCE(DEFINE_BITWISE)
ORDERED_REDUCE(DEFINE_ORDERED)
ARITHMETIC_REDUCE(DEFINE_ARITHMETIC)

#define TO_ALL_INTEGERS(X) \
    X(short, short)        \
    X(int, int)            \
    X(long, long)          \
    X(longlong, long long)
#define TO_ALL_ORDERED(X) \
    TO_ALL_INTEGERS(X)    \
    X(float, float)       \
    X(double, double)     \
    X(longdouble, long double)
#define TO_ALL_ARITHMETIC(X)    \
    TO_ALL_ORDERED(X)           \
    X(complexf, float _Complex) \
    X(complexd, double _Complex)
#define DEFINE_OLD_BITWISE(NAME, TYPE) DEFINE(old_bitwise, NAME, TYPE, TO_ALL_CALL, BITWISE_TESTS)
#define DEFINE_OLD_ORDERED(NAME, TYPE) DEFINE(old_ordered, NAME, TYPE, TO_ALL_CALL, ORDERED_TESTS)
#define DEFINE_OLD_ARITHMETIC(NAME, TYPE) DEFINE(old_arithmetic, NAME, TYPE, TO_ALL_CALL, ARITHMETIC_TESTS)
TO_ALL_INTEGERS(DEFINE_OLD_BITWISE)
TO_ALL_ORDERED(DEFINE_OLD_ORDERED)
TO_ALL_ARITHMETIC(DEFINE_OLD_ARITHMETIC)

void test_reductions(void)
{
#define BITWISE(NAME, TYPE) bitwise_##NAME(3);
    BITWISE_REDUCE(BITWISE)
    claim("bitwise reductions of every type");
#define ORDERED(NAME, TYPE) ordered_##NAME(3);
    ORDERED_REDUCE(ORDERED)
    claim("minima and maxima of every type");
#define ARITHMETIC(NAME, TYPE) arithmetic_##NAME(3);
    ARITHMETIC_REDUCE(ARITHMETIC)
    claim("sums and products of every type");
    arithmetic_double(20001);
    ordered_int(300000);
    bitwise_uchar(9001);
    arithmetic_longdouble(1200000);
    claim("reductions of long vectors");
#define OLD_BITWISE(NAME, TYPE) old_bitwise_##NAME(3);
#define OLD_ORDERED(NAME, TYPE) old_ordered_##NAME(3);
#define OLD_ARITHMETIC(NAME, TYPE) old_arithmetic_##NAME(3);
    TO_ALL_INTEGERS(OLD_BITWISE)
    TO_ALL_ORDERED(OLD_ORDERED)
    TO_ALL_ARITHMETIC(OLD_ARITHMETIC)
    old_arithmetic_double(20001);
    claim("reductions over active sets, of every type");
}
