/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Deprecated functions: active sets, and old names. */
#include "shmem.h"

static long sync_words[SHMEM_SYNC_SIZE];

/* All PEs but the first, if there are three; and every second one. */
static void test_set(int start, int log_stride, int size)
{
    int stride = 1 << log_stride;
    if (me < start || (me - start) % stride != 0 || (me - start) / stride >= size)
        return;
    int mine = (me - start) / stride;
    static uint32_t from32[64 * 300], to32[64 * 300];
    static uint64_t from64[64 * 2000], to64[64 * 2000];
    static uint64_t many[2000], got[2000];
#define PE(member) (start + (member)*stride)
#define FILL(from, to)                                           \
    for (size_t at = 0; at < sizeof from / sizeof *from; at++) { \
        from[at] = (unsigned)me * 1000 + (unsigned)at;           \
        to[at] = 77;                                             \
    }                                                            \
    shmem_barrier(start, log_stride, size, sync_words);
#define TEST_BITS(BITS, LENGTH)                                                                             \
    FILL(from##BITS, to##BITS)                                                                              \
    shmem_broadcast##BITS(to##BITS, from##BITS, LENGTH, size - 1, start, log_stride, size, sync_words);     \
    for (int at = 0; at < LENGTH; at++)                                                                     \
        HOLDS(to##BITS[at] == (mine == size - 1 ? 77 : (unsigned)PE(size - 1) * 1000 + (unsigned)at));      \
    FILL(from##BITS, to##BITS)                                                                              \
    shmem_fcollect##BITS(to##BITS, from##BITS, LENGTH, start, log_stride, size, sync_words);                \
    for (int at = 0; at < LENGTH * size; at++)                                                              \
        HOLDS(to##BITS[at] == (unsigned)PE(at / LENGTH) * 1000 + (unsigned)(at % LENGTH));                  \
    FILL(from##BITS, to##BITS)                                                                              \
    shmem_collect##BITS(to##BITS, from##BITS, mine == 0 ? LENGTH : 1, start, log_stride, size, sync_words); \
    for (int member = 1; member < size; member++)                                                           \
        HOLDS(to##BITS[LENGTH + member - 1] == (unsigned)PE(member) * 1000);                                \
    FILL(from##BITS, to##BITS)                                                                              \
    shmem_alltoall##BITS(to##BITS, from##BITS, LENGTH, start, log_stride, size, sync_words);                \
    for (int at = 0; at < LENGTH * size; at++)                                                              \
        HOLDS(to##BITS[at] == (unsigned)PE(at / LENGTH) * 1000 + (unsigned)(mine * LENGTH + at % LENGTH));  \
    FILL(from##BITS, to##BITS)                                                                              \
    shmem_alltoalls##BITS(to##BITS, from##BITS, 2, 3, 2, start, log_stride, size, sync_words);              \
    for (int at = 0; at < 2 * size; at++)                                                                   \
        HOLDS(to##BITS[2 * at] == (unsigned)PE(at / 2) * 1000 + 3 * (unsigned)(mine * 2 + at % 2));
    TEST_BITS(32, 20)
    /* Many letters in a round. */
    TEST_BITS(32, 300)
    TEST_BITS(64, 2000)
    FILL(many, got)
    shmem_broadcast64(got, many, 2000, 0, start, log_stride, size, sync_words);
    for (int at = 0; at < 2000 && mine > 0; at++)
        HOLDS(got[at] == (unsigned)start * 1000 + (unsigned)at);
    (shmem_sync)(start, log_stride, size, sync_words);
    shmem_sync(start, log_stride, size, sync_words);
}

#define TEST_FETCH_SET(NAME, TYPE)                       \
    {                                                    \
        static TYPE word;                                \
        word = 5;                                        \
        shmem_barrier_all();                             \
        HOLDS(shmem_##NAME##_fetch(&word, next) == 5);   \
        HOLDS(shmem_##NAME##_swap(&word, 6, next) == 5); \
        shmem_##NAME##_set(&word, 7, next);              \
        shmem_barrier_all();                             \
        HOLDS(word == 7);                                \
        shmem_barrier_all();                             \
    }
#define TEST_ARITHMETIC(NAME, TYPE)                             \
    {                                                           \
        static TYPE word;                                       \
        word = 5;                                               \
        shmem_barrier_all();                                    \
        HOLDS(shmem_##NAME##_finc(&word, next) == 5);           \
        HOLDS(shmem_##NAME##_fadd(&word, 4, next) == 6);        \
        HOLDS(shmem_##NAME##_cswap(&word, 10, 20, next) == 10); \
        shmem_barrier_all();                                    \
        shmem_##NAME##_inc(&word, next);                        \
        shmem_##NAME##_add(&word, 2, next);                     \
        shmem_barrier_all();                                    \
        HOLDS(word == 23);                                      \
        shmem_barrier_all();                                    \
    }
#define TEST_WAIT(NAME, TYPE)             \
    {                                     \
        static TYPE word;                 \
        shmem_##NAME##_p(&word, 3, next); \
        shmem_##NAME##_wait(&word, 0);    \
        HOLDS(word == 3);                 \
    }

void test_old(void)
{
    test_set(0, 0, count);
    if (count > 2)
        test_set(1, 0, count - 1);
    test_set(0, 1, (count + 1) / 2);
    claim("collectives over active sets");

    TEST_FETCH_SET(int, int)
    TEST_FETCH_SET(long, long)
    TEST_FETCH_SET(longlong, long long)
    TEST_FETCH_SET(float, float)
    TEST_FETCH_SET(double, double)
    TEST_ARITHMETIC(int, int)
    TEST_ARITHMETIC(long, long)
    TEST_ARITHMETIC(longlong, long long)
    TEST_WAIT(short, short)
    TEST_WAIT(int, int)
    TEST_WAIT(long, long)
    TEST_WAIT(longlong, long long)
    static long word;
    shmem_long_p(&word, 3, next);
    shmem_wait(&word, 0);
    start_pes(0);
    HOLDS(_my_pe() == me && _num_pes() == count);
    char *at = shmalloc(100);
    at = shrealloc(at, 200);
    HOLDS(at != NULL);
    shfree(at);
    at = shmemalign(64, 100);
    HOLDS(at != NULL);
    shfree(at);
    shmem_clear_cache_inv();
    shmem_set_cache_inv();
    shmem_clear_cache_line_inv(&word);
    shmem_set_cache_line_inv(&word);
    shmem_udcflush();
    shmem_udcflush_line(&word);
    claim("old names");
}
