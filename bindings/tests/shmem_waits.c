/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waits and tests of every type. */
#include "shmem.h"

enum { LENGTH = 6 };

/*
 * The PE before this one writes 10, 11, ... to all elements but one, which the status array
 * excludes.
 */
#define DEFINE(NAME, TYPE)                                                                                  \
    static void test_##NAME(void)                                                                           \
    {                                                                                                       \
        static TYPE values[LENGTH];                                                                         \
        int status[LENGTH] = {0, 0, 1, 0, 0, 0}, none[LENGTH] = {1, 1, 1, 1, 1, 1};                         \
        TYPE wanted[LENGTH];                                                                                \
        size_t indices[LENGTH], found = 0;                                                                  \
        for (int at = 0; at < LENGTH; at++) {                                                               \
            values[at] = 0;                                                                                 \
            wanted[at] = (TYPE)(10 + at);                                                                   \
        }                                                                                                   \
        shmem_barrier_all();                                                                                \
        HOLDS(!shmem_##NAME##_test(&values[0], SHMEM_CMP_NE, 0));                                           \
        HOLDS(shmem_##NAME##_test(&values[0], SHMEM_CMP_LE, 0));                                            \
        HOLDS(!shmem_##NAME##_test_all(values, LENGTH, NULL, SHMEM_CMP_GT, 0));                             \
        HOLDS(shmem_##NAME##_test_any(values, LENGTH, NULL, SHMEM_CMP_GT, 0) == SIZE_MAX);                  \
        HOLDS(shmem_##NAME##_test_some(values, LENGTH, indices, NULL, SHMEM_CMP_GT, 0) == 0);               \
        HOLDS(!shmem_##NAME##_test_all_vector(values, LENGTH, NULL, SHMEM_CMP_EQ, wanted));                 \
        HOLDS(shmem_##NAME##_test_any_vector(values, LENGTH, NULL, SHMEM_CMP_EQ, wanted) == SIZE_MAX);      \
        HOLDS(shmem_##NAME##_test_some_vector(values, LENGTH, indices, NULL, SHMEM_CMP_EQ, wanted) == 0);   \
        shmem_barrier_all();                                                                                \
        for (int at = 0; at < LENGTH; at++)                                                                 \
            if (at != 2)                                                                                    \
                shmem_##NAME##_p(&values[at], wanted[at], next);                                            \
        shmem_##NAME##_wait_until(&values[5], SHMEM_CMP_EQ, 15);                                            \
        HOLDS(shmem_##NAME##_wait_until_any(values, LENGTH, status, SHMEM_CMP_GE, 13) >= 3);                \
        HOLDS(shmem_##NAME##_wait_until_any_vector(values, LENGTH, status, SHMEM_CMP_EQ, wanted) != 2);     \
        found = shmem_##NAME##_wait_until_some(values, LENGTH, indices, status, SHMEM_CMP_GT, 12);          \
        HOLDS(found >= 1 && found <= 3 && indices[0] >= 3);                                                 \
        found =                                                                                             \
            shmem_##NAME##_wait_until_some_vector(values, LENGTH, indices, status, SHMEM_CMP_EQ, wanted);   \
        HOLDS(found >= 1 && found <= 5 && indices[0] != 2);                                                 \
        shmem_##NAME##_wait_until_all(values, LENGTH, status, SHMEM_CMP_NE, 0);                             \
        shmem_##NAME##_wait_until_all_vector(values, LENGTH, status, SHMEM_CMP_EQ, wanted);                 \
        HOLDS(shmem_##NAME##_test_all(values, LENGTH, status, SHMEM_CMP_GE, 10));                           \
        HOLDS(!shmem_##NAME##_test_all(values, LENGTH, NULL, SHMEM_CMP_GE, 10));                            \
        HOLDS(shmem_##NAME##_test_any(values, LENGTH, status, SHMEM_CMP_LT, 11) == 0);                      \
        HOLDS(shmem_##NAME##_test_some(values, LENGTH, indices, status, SHMEM_CMP_GE, 10) == 5);            \
        HOLDS(shmem_##NAME##_test_all_vector(values, LENGTH, status, SHMEM_CMP_EQ, wanted));                \
        HOLDS(shmem_##NAME##_test_any_vector(values, LENGTH, status, SHMEM_CMP_EQ, wanted) != 2);           \
        HOLDS(shmem_##NAME##_test_some_vector(values, LENGTH, indices, status, SHMEM_CMP_EQ, wanted) == 5); \
        /* Nothing to wait for. */                                                                          \
        shmem_##NAME##_wait_until_all(values, LENGTH, none, SHMEM_CMP_EQ, 1);                               \
        HOLDS(shmem_##NAME##_wait_until_any(values, LENGTH, none, SHMEM_CMP_EQ, 1) == SIZE_MAX);            \
        HOLDS(shmem_##NAME##_wait_until_some(values, 0, indices, NULL, SHMEM_CMP_EQ, 1) == 0);              \
        shmem_barrier_all();                                                                                \
    }
WAITS(DEFINE)

void test_waits(void)
{
#define TEST(NAME, TYPE) test_##NAME();
    WAITS(TEST)
    claim("waits and tests of every type");
}
