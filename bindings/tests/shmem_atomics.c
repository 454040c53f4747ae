/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Atomic operations of every type, alone and of all PEs on one word. */
#include "shmem.h"

/*
 * Three neighbours: the operations change the middle one only, in either half of a word of 8 bytes.
 */
#define PREPARE(TYPE, VALUE)                            \
    shmem_barrier_all();                                \
    for (int at = 0; at < 5; at++)                      \
        words[at] = (TYPE)(at == place ? (VALUE) : 77); \
    shmem_barrier_all();

#define LOOK(TYPE, VALUE)          \
    shmem_quiet();                 \
    shmem_ctx_quiet(context);      \
    shmem_barrier_all();           \
    for (int at = 0; at < 5; at++) \
        HOLDS(words[at] == (TYPE)(at == place ? (VALUE) : 77));

/* The function with the default context, and the one with another. */
#define PLAIN(NAME, ...) shmem_##NAME(__VA_ARGS__)
#define IN_CONTEXT(NAME, ...) shmem_ctx_##NAME(context, __VA_ARGS__)

/* A function that fetches, and the one that does not wait. */
#define FETCH(TYPE, CALL, NAME, START, END, ...)     \
    PREPARE(TYPE, START)                             \
    HOLDS(CALL(NAME, __VA_ARGS__) == (TYPE)(START)); \
    LOOK(TYPE, END)                                  \
    PREPARE(TYPE, START)                             \
    fetched = 99;                                    \
    CALL(NAME##_nbi, &fetched, __VA_ARGS__);         \
    LOOK(TYPE, END)                                  \
    HOLDS(fetched == (TYPE)(START));
#define POST(TYPE, CALL, NAME, START, END, ...) \
    PREPARE(TYPE, START)                        \
    CALL(NAME, __VA_ARGS__);                    \
    LOOK(TYPE, END)

#define TEST_EXTENDED(TYPE, CALL, NAME)                                 \
    FETCH(TYPE, CALL, NAME##_atomic_fetch, 5, 5, &words[place], next)   \
    FETCH(TYPE, CALL, NAME##_atomic_swap, 5, 9, &words[place], 9, next) \
    POST(TYPE, CALL, NAME##_atomic_set, 5, 9, &words[place], 9, next)
#define TEST_STANDARD(TYPE, CALL, NAME)                                            \
    FETCH(TYPE, CALL, NAME##_atomic_compare_swap, 5, 9, &words[place], 5, 9, next) \
    FETCH(TYPE, CALL, NAME##_atomic_compare_swap, 5, 5, &words[place], 6, 9, next) \
    FETCH(TYPE, CALL, NAME##_atomic_fetch_inc, 5, 6, &words[place], next)          \
    FETCH(TYPE, CALL, NAME##_atomic_fetch_add, 5, 25, &words[place], 20, next)     \
    FETCH(TYPE, CALL, NAME##_atomic_fetch_add, -1, 1, &words[place], 2, next)      \
    POST(TYPE, CALL, NAME##_atomic_inc, -1, 0, &words[place], next)                \
    POST(TYPE, CALL, NAME##_atomic_add, 5, 25, &words[place], 20, next)
#define TEST_BITWISE(TYPE, CALL, NAME)                                         \
    FETCH(TYPE, CALL, NAME##_atomic_fetch_and, 12, 8, &words[place], 10, next) \
    FETCH(TYPE, CALL, NAME##_atomic_fetch_or, 12, 14, &words[place], 10, next) \
    FETCH(TYPE, CALL, NAME##_atomic_fetch_xor, 12, 6, &words[place], 10, next) \
    POST(TYPE, CALL, NAME##_atomic_and, 12, 8, &words[place], 10, next)        \
    POST(TYPE, CALL, NAME##_atomic_or, 12, 14, &words[place], 10, next)        \
    POST(TYPE, CALL, NAME##_atomic_xor, 12, 6, &words[place], 10, next)

#define DEFINE(GROUP, NAME, TYPE, TEST)                        \
    static void GROUP##_##NAME(shmem_ctx_t context, int place) \
    {                                                          \
        static TYPE words[5];                                  \
        static TYPE fetched;                                   \
        TEST(TYPE, PLAIN, NAME)                                \
        TEST(TYPE, IN_CONTEXT, NAME)                           \
    }
#define DEFINE_EXTENDED(NAME, TYPE) DEFINE(extended, NAME, TYPE, TEST_EXTENDED)
#define DEFINE_STANDARD(NAME, TYPE) DEFINE(standard, NAME, TYPE, TEST_STANDARD)
#define DEFINE_BITWISE(NAME, TYPE) DEFINE(bitwise, NAME, TYPE, TEST_BITWISE)
EXTENDED_AMO(DEFINE_EXTENDED)
STANDARD_AMO(DEFINE_STANDARD)
BITWISE_AMO(DEFINE_BITWISE)

/* All PEs change one word of PE 0 at once. */
#define DEFINE_CROWD(NAME, TYPE)                                                                         \
    static void crowd_##NAME(void)                                                                       \
    {                                                                                                    \
        static TYPE words[3];                                                                            \
        enum { ROUNDS = 20 };                                                                            \
        words[0] = words[1] = words[2] = 0;                                                              \
        shmem_barrier_all();                                                                             \
        for (int round = 0; round < ROUNDS; round++) {                                                   \
            (void)shmem_##NAME##_atomic_fetch_inc(&words[0], 0);                                         \
            shmem_##NAME##_atomic_add(&words[1], 3, 0);                                                  \
            TYPE seen = shmem_##NAME##_atomic_fetch(&words[2], 0), found;                                \
            while ((found = shmem_##NAME##_atomic_compare_swap(&words[2], seen, (TYPE)(seen + 1), 0)) != \
                   seen)                                                                                 \
                seen = found;                                                                            \
        }                                                                                                \
        shmem_barrier_all();                                                                             \
        if (me == 0) {                                                                                   \
            HOLDS(words[0] == (TYPE)(ROUNDS * count));                                                   \
            HOLDS(words[1] == (TYPE)(3 * ROUNDS * count));                                               \
            HOLDS(words[2] == (TYPE)(ROUNDS * count));                                                   \
        }                                                                                                \
        shmem_barrier_all();                                                                             \
    }
STANDARD_AMO(DEFINE_CROWD)

void test_atomics(void)
{
    shmem_ctx_t context;
    HOLDS(shmem_ctx_create(0, &context) == 0);
#define EXTENDED(NAME, TYPE) extended_##NAME(context, 2), extended_##NAME(context, 3);
    EXTENDED_AMO(EXTENDED)
    claim("atomic fetch, set and swap of every type");
#define STANDARD(NAME, TYPE) standard_##NAME(context, 2), standard_##NAME(context, 3);
    STANDARD_AMO(STANDARD)
    claim("atomic addition and compare-and-swap of every type");
#define BITWISE(NAME, TYPE) bitwise_##NAME(context, 2), bitwise_##NAME(context, 3);
    BITWISE_AMO(BITWISE)
    claim("bitwise atomic operations of every type");
#define CROWD(NAME, TYPE) crowd_##NAME();
    STANDARD_AMO(CROWD)
    claim("atomic operations of all PEs on one word");
    shmem_ctx_destroy(context);
}
