/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Puts, gets, their strided forms, and puts with a signal. */
#include "shmem.h"

enum { LENGTH = 50 };

static uint64_t signal_word;

/*
 * Each function fills memory of the next PE with values that depend on this one, and the next one
 * looks.
 */
#define ROUND(TYPE, CLEAR, ACTION, EXPECTED) \
    for (int at = 0; at < 2 * LENGTH; at++)  \
        to[at] = (TYPE)(CLEAR);              \
    shmem_barrier_all();                     \
    ACTION;                                  \
    shmem_ctx_quiet(context);                \
    shmem_barrier_all();                     \
    for (int at = 0; at < LENGTH; at++)      \
        HOLDS(to[at] == (TYPE)(EXPECTED));   \
    shmem_barrier_all();

#define AWAIT_SIGNAL(TYPE, VALUE)                                                 \
    HOLDS(shmem_signal_wait_until(&signal_word, SHMEM_CMP_EQ, VALUE) == (VALUE)); \
    HOLDS(shmem_signal_fetch(&signal_word) == (VALUE));                           \
    for (int at = 0; at < LENGTH; at++)                                           \
        HOLDS(to[at] == (TYPE)(at + before));

/* The function with the default context, and the one with another. */
#define PLAIN(NAME, ...) shmem_##NAME(__VA_ARGS__)
#define IN_CONTEXT(NAME, ...) shmem_ctx_##NAME(context, __VA_ARGS__)

/* All functions whose names have BEFORE and AFTER around the operation. */
#define TEST_ALL(TYPE, CALL, BEFORE, AFTER)                                                                 \
    ROUND(TYPE, 0, CALL(BEFORE##put##AFTER, to, from, LENGTH, next), at + before)                           \
    ROUND(TYPE, 0, CALL(BEFORE##put##AFTER##_nbi, to, from, LENGTH, next), at + before)                     \
    ROUND(TYPE, 0, CALL(BEFORE##get##AFTER, to, from, LENGTH, next), at + next)                             \
    ROUND(TYPE, 0, CALL(BEFORE##get##AFTER##_nbi, to, from, LENGTH, next), at + next)                       \
    signal_word = 0;                                                                                        \
    ROUND(TYPE, 0,                                                                                          \
          CALL(BEFORE##put##AFTER##_signal, to, from, LENGTH, &signal_word, 7, SHMEM_SIGNAL_SET, next);     \
          AWAIT_SIGNAL(TYPE, 7), at + before)                                                               \
    ROUND(TYPE, 0,                                                                                          \
          CALL(BEFORE##put##AFTER##_signal_nbi, to, from, LENGTH, &signal_word, 5, SHMEM_SIGNAL_ADD, next); \
          AWAIT_SIGNAL(TYPE, 12), at + before)

#define TEST_STRIDED(TYPE, CALL, BEFORE, AFTER)                                          \
    ROUND(TYPE, 9, CALL(BEFORE##iput##AFTER, to, from, 2, 3, LENGTH / 3, next),          \
          at % 2 == 0 && at / 2 < LENGTH / 3 ? at / 2 * 3 + before : 9)                  \
    ROUND(TYPE, 9, CALL(BEFORE##iput##AFTER, to, from, 1, 1, LENGTH, next), at + before) \
    ROUND(TYPE, 9, CALL(BEFORE##iget##AFTER, to, from, 2, 3, LENGTH / 3, next),          \
          at % 2 == 0 && at / 2 < LENGTH / 3 ? at / 2 * 3 + next : 9)

#define TEST_SINGLE(TYPE, CALL, BEFORE)                                                          \
    ROUND(TYPE, 0, for (int at = 0; at < LENGTH; at++) CALL(BEFORE##p, &to[at], from[at], next), \
          at + before)                                                                           \
    HOLDS(CALL(BEFORE##g, &from[3], next) == (TYPE)(3 + next));                                  \
    shmem_barrier_all();

#define BEGIN(TYPE)                           \
    static TYPE to[2 * LENGTH], from[LENGTH]; \
    for (int at = 0; at < LENGTH; at++)       \
        from[at] = (TYPE)(at + me);           \
    shmem_barrier_all();

#define DEFINE(NAME, TYPE)                        \
    static void test_##NAME(shmem_ctx_t context)  \
    {                                             \
        BEGIN(TYPE)                               \
        TEST_ALL(TYPE, PLAIN, NAME##_, )          \
        TEST_ALL(TYPE, IN_CONTEXT, NAME##_, )     \
        TEST_STRIDED(TYPE, PLAIN, NAME##_, )      \
        TEST_STRIDED(TYPE, IN_CONTEXT, NAME##_, ) \
        TEST_SINGLE(TYPE, PLAIN, NAME##_)         \
        TEST_SINGLE(TYPE, IN_CONTEXT, NAME##_)    \
    }
STANDARD_RMA(DEFINE)

#define DEFINE_SIZED(BITS, TYPE)                 \
    static void test_##BITS(shmem_ctx_t context) \
    {                                            \
        BEGIN(TYPE)                              \
        TEST_ALL(TYPE, PLAIN, , BITS)            \
        TEST_ALL(TYPE, IN_CONTEXT, , BITS)       \
        TEST_STRIDED(TYPE, PLAIN, , BITS)        \
        TEST_STRIDED(TYPE, IN_CONTEXT, , BITS)   \
    }
__extension__ typedef unsigned __int128 uint128;
#define SIZES(X) X(8, uint8_t) X(16, uint16_t) X(32, uint32_t) X(64, uint64_t) X(128, uint128)
SIZES(DEFINE_SIZED)

static void test_mem(shmem_ctx_t context)
{
    BEGIN(unsigned char)
    TEST_ALL(unsigned char, PLAIN, , mem)
    TEST_ALL(unsigned char, IN_CONTEXT, , mem)
}

/* Sizes up to megabytes, at odd offsets, between heap and static memory. */
static void test_long_moves(void)
{
    static char in_program[300001];
    size_t bytes = 5 << 20;
    char *heap = shmem_malloc(bytes), *own = malloc(bytes);
    for (size_t at = 0; at < bytes; at++)
        own[at] = (char)(at * 7 + (size_t)me);
    shmem_putmem(heap + 1, own, bytes - 1, next);
    shmem_putmem(in_program + 3, own, sizeof in_program - 3, next);
    shmem_barrier_all();
    for (size_t at = 0; at < bytes - 1; at++)
        HOLDS(heap[at + 1] == (char)(at * 7 + (size_t)before));
    for (size_t at = 0; at < sizeof in_program - 3; at++)
        HOLDS(in_program[at + 3] == (char)(at * 7 + (size_t)before));
    memset(own, 0, bytes);
    shmem_getmem_nbi(own, heap + 1, bytes - 1, next);
    shmem_quiet();
    for (size_t at = 0; at < bytes - 1; at++)
        HOLDS(own[at] == (char)(at * 7 + (size_t)me));
    shmem_getmem(own, heap + 1, bytes - 1, before);
    HOLDS(own[0] == (char)((before + count - 1) % count));
    free(own);
    shmem_free(heap);
}

/* The receiver of the last of many puts has all that were before a fence. */
static void test_order(void)
{
    enum { ROUNDS = 200 };
    static long values[64], flag;
    for (long round = 1; round <= ROUNDS; round++) {
        for (int at = 0; at < 64; at++)
            shmem_long_p(&values[at], round, next);
        shmem_fence();
        shmem_long_p(&flag, round, next);
        shmem_long_wait_until(&flag, SHMEM_CMP_GE, round);
        for (int at = 0; at < 64; at++)
            HOLDS(values[at] >= round);
        shmem_sync_all();
    }
}

void test_moves(void)
{
    shmem_ctx_t context;
    HOLDS(shmem_ctx_create(SHMEM_CTX_PRIVATE, &context) == 0);
#define TEST(NAME, TYPE) test_##NAME(context);
    STANDARD_RMA(TEST)
    claim("puts and gets of every type");
    SIZES(TEST)
    test_mem(context);
    claim("puts and gets of every size");
    test_long_moves();
    claim("puts and gets of megabytes");
    test_order();
    shmem_ctx_fence(context);
    claim("puts before a fence are there before those after it");
    shmem_ctx_destroy(context);

    static int value;
    shmem_put(&value, &me, 1, next);
    shmem_barrier_all();
    HOLDS(value == before && shmem_g(&value, next) == me);
    shmem_barrier_all();
    shmem_p(SHMEM_CTX_DEFAULT, &value, me + 1, next);
    shmem_barrier_all();
    HOLDS(value == before + 1);
    claim("type-generic names select the function");
}
