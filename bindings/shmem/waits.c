/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waits for values in this PE's memory, and tests of them (9.10), and signals (9.8). */
#include "context.h"

#define LOAD(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)

#define COMPARE(RESULT, CALL, VALUE, cmp, WITH)                                                 \
    switch (cmp) {                                                                              \
    case SHMEM_CMP_EQ:                                                                          \
        RESULT = (VALUE) == (WITH);                                                             \
        break;                                                                                  \
    case SHMEM_CMP_NE:                                                                          \
        RESULT = (VALUE) != (WITH);                                                             \
        break;                                                                                  \
    case SHMEM_CMP_GT:                                                                          \
        RESULT = (VALUE) > (WITH);                                                              \
        break;                                                                                  \
    case SHMEM_CMP_GE:                                                                          \
        RESULT = (VALUE) >= (WITH);                                                             \
        break;                                                                                  \
    case SHMEM_CMP_LT:                                                                          \
        RESULT = (VALUE) < (WITH);                                                              \
        break;                                                                                  \
    case SHMEM_CMP_LE:                                                                          \
        RESULT = (VALUE) <= (WITH);                                                             \
        break;                                                                                  \
    default:                                                                                    \
        fail(CALL, "unknown comparison %d: expected one of SHMEM_CMP_EQ to SHMEM_CMP_LE", cmp); \
    }

/* Looks at some values. */
struct looked {
    /* Values that are not excluded by the status array, and those that hold. */
    size_t included, holding;
    /* One that holds; SIZE_MAX if none does. */
    size_t index;
};

/* Index from which the next one that holds is chosen, so that each gets its turn. */
static _Thread_local size_t next_index;

static void note_holding(struct looked *looked, size_t at)
{
    looked->holding++;
    if (looked->index == SIZE_MAX || (looked->index < next_index && at >= next_index))
        looked->index = at;
}

static struct looked finish_look(struct looked looked)
{
    next_index = looked.index == SIZE_MAX ? next_index : looked.index + 1;
    return looked;
}

#define DEFINE_ONE(NAME, TYPE, ...)                                                 \
    static bool NAME##_holds(const char *call, TYPE *ivar, int cmp, TYPE cmp_value) \
    {                                                                               \
        bool holds;                                                                 \
        COMPARE(holds, call, LOAD(ivar), cmp, cmp_value)                            \
        return holds;                                                               \
    }                                                                               \
    PUBLIC void shmem_##NAME##_wait_until(TYPE *ivar, int cmp, TYPE cmp_value)      \
    {                                                                               \
        static const char *call = "shmem_" #NAME "_wait_until";                     \
        check_started(call);                                                        \
        struct waiting waiting = {.call = call};                                    \
        while (!NAME##_holds(call, ivar, cmp, cmp_value))                           \
            wait_turn(&waiting);                                                    \
    }                                                                               \
    PUBLIC int shmem_##NAME##_test(TYPE *ivar, int cmp, TYPE cmp_value)             \
    {                                                                               \
        static const char *call = "shmem_" #NAME "_test";                           \
        check_started(call);                                                        \
        if (NAME##_holds(call, ivar, cmp, cmp_value))                               \
            return 1;                                                               \
        progress();                                                                 \
        obey_exit();                                                                \
        return NAME##_holds(call, ivar, cmp, cmp_value);                            \
    }

/*
 * Each value is compared with cmp_values[index * step]: with one value, or with a vector of them.
 */
#define DEFINE_LOOK(NAME, TYPE, ...)                                                                  \
    static struct looked NAME##_look(const char *call, TYPE *ivars, size_t nelems, size_t *indices,   \
                                     const int *status, int cmp, const TYPE *cmp_values, size_t step) \
    {                                                                                                 \
        struct looked looked = {.index = SIZE_MAX};                                                   \
        for (size_t at = 0; at < nelems; at++) {                                                      \
            if (status != NULL && status[at] != 0)                                                    \
                continue;                                                                             \
            looked.included++;                                                                        \
            if (!NAME##_holds(call, &ivars[at], cmp, cmp_values[at * step]))                          \
                continue;                                                                             \
            if (indices != NULL)                                                                      \
                indices[looked.holding] = at;                                                         \
            note_holding(&looked, at);                                                                \
        }                                                                                             \
        return finish_look(looked);                                                                   \
    }

/* A function that waits, the one that tests, and its result. */
#define WAIT_AND_TEST(NAME, TYPE, WHICH, SUFFIX, WAIT_RESULT, TEST_RESULT, IS_DONE, WAITED, TESTED, INDICES, \
                      VALUE, VALUES, STEP, ...)                                                              \
    PUBLIC WAIT_RESULT shmem_##NAME##_wait_until_##WHICH##SUFFIX(                                            \
        TYPE *ivars, size_t nelems, __VA_ARGS__ const int *status, int cmp, TYPE VALUE)                      \
    {                                                                                                        \
        static const char *call = "shmem_" #NAME "_wait_until_" #WHICH #SUFFIX;                              \
        check_started(call);                                                                                 \
        struct waiting waiting = {.call = call};                                                             \
        struct looked looked = NAME##_look(call, ivars, nelems, INDICES, status, cmp, VALUES, STEP);         \
        while (looked.included > 0 && !(IS_DONE)) {                                                          \
            wait_turn(&waiting);                                                                             \
            looked = NAME##_look(call, ivars, nelems, INDICES, status, cmp, VALUES, STEP);                   \
        }                                                                                                    \
        return WAITED;                                                                                       \
    }                                                                                                        \
    PUBLIC TEST_RESULT shmem_##NAME##_test_##WHICH##SUFFIX(                                                  \
        TYPE *ivars, size_t nelems, __VA_ARGS__ const int *status, int cmp, TYPE VALUE)                      \
    {                                                                                                        \
        static const char *call = "shmem_" #NAME "_test_" #WHICH #SUFFIX;                                    \
        check_started(call);                                                                                 \
        struct looked looked = NAME##_look(call, ivars, nelems, INDICES, status, cmp, VALUES, STEP);         \
        if (looked.included > 0 && !(IS_DONE)) {                                                             \
            progress();                                                                                      \
            obey_exit();                                                                                     \
            looked = NAME##_look(call, ivars, nelems, INDICES, status, cmp, VALUES, STEP);                   \
        }                                                                                                    \
        return TESTED;                                                                                       \
    }
#define DEFINE_SEVERAL(NAME, TYPE, SUFFIX, VALUE, VALUES, STEP)                                            \
    WAIT_AND_TEST(NAME, TYPE, all, SUFFIX, void, int, looked.holding == looked.included, ,                 \
                  looked.holding == looked.included, NULL, VALUE, VALUES, STEP, )                          \
    WAIT_AND_TEST(NAME, TYPE, any, SUFFIX, size_t, size_t, looked.holding > 0, looked.index, looked.index, \
                  NULL, VALUE, VALUES, STEP, )                                                             \
    WAIT_AND_TEST(NAME, TYPE, some, SUFFIX, size_t, size_t, looked.holding > 0, looked.holding,            \
                  looked.holding, indices, VALUE, VALUES, STEP, size_t * indices, )

#define DEFINE_WAITS(NAME, TYPE, ...)                      \
    DEFINE_ONE(NAME, TYPE)                                 \
    DEFINE_LOOK(NAME, TYPE)                                \
    DEFINE_SEVERAL(NAME, TYPE, , cmp_value, &cmp_value, 0) \
    DEFINE_SEVERAL(NAME, TYPE, _vector, *cmp_values, cmp_values, 1)
KUMI_SHMEM_WAIT_TYPES(DEFINE_WAITS, )

/* Deprecated. */
#define DEFINE_OLD_WAIT(NAME, TYPE)                               \
    PUBLIC void shmem_##NAME##_wait(TYPE *ivar, TYPE cmp_value)   \
    {                                                             \
        shmem_##NAME##_wait_until(ivar, SHMEM_CMP_NE, cmp_value); \
    }
DEFINE_OLD_WAIT(short, short)
DEFINE_OLD_WAIT(int, int)
DEFINE_OLD_WAIT(long, long)
DEFINE_OLD_WAIT(longlong, long long)

PUBLIC void shmem_wait(long *ivar, long cmp_value)
{
    shmem_long_wait(ivar, cmp_value);
}

PUBLIC uint64_t shmem_signal_fetch(const uint64_t *sig_addr)
{
    check_started("shmem_signal_fetch");
    progress();
    return LOAD(sig_addr);
}

PUBLIC uint64_t shmem_signal_wait_until(uint64_t *sig_addr, int cmp, uint64_t cmp_value)
{
    static const char *call = "shmem_signal_wait_until";
    check_started(call);
    struct waiting waiting = {.call = call};
    for (;;) {
        uint64_t value = LOAD(sig_addr);
        bool holds;
        COMPARE(holds, call, value, cmp, cmp_value)
        if (holds)
            return value;
        wait_turn(&waiting);
    }
}
