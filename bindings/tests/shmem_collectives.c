/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Collectives that move data, of every type and over teams, at lengths of both ways that they take.
 */
#include "shmem.h"

/* Bytes that one PE contributes: by letters, and by puts. */
enum { SHORT = 16, LONG = 16384 };

#define MIX(pe, at) ((pe)*31 + (int)(at))

#define BODY(TYPE, CALL, WHO, LENGTH)                                                          \
    {                                                                                          \
        size_t per = LENGTH, all = per * (size_t)members;                                      \
        TYPE *from = shmem_malloc(3 * all * sizeof(TYPE) + 64),                                \
             *to = shmem_malloc(3 * all * sizeof(TYPE) + 64);                                  \
        /* Broadcast, from each root. */                                                       \
        for (int root = 0; root<members; root += members> 2 ? members - 1 : 1) {               \
            for (size_t at = 0; at < per; at++) {                                              \
                from[at] = (TYPE)MIX(mine, at);                                                \
                to[at] = 0;                                                                    \
            }                                                                                  \
            shmem_team_sync(team);                                                             \
            HOLDS(CALL(WHO, broadcast, team, to, from, per *SCALE, root) == 0);                \
            for (size_t at = 0; at < per; at++)                                                \
                HOLDS(to[at] == (TYPE)MIX(root, at));                                          \
            shmem_team_sync(team);                                                             \
        }                                                                                      \
        /* Collect: each member has another length. */                                         \
        HOLDS(CALL(WHO, fcollect, team, to, from, per *SCALE) == 0);                           \
        for (size_t at = 0; at < all; at++)                                                    \
            HOLDS(to[at] == (TYPE)MIX(at / per, at % per));                                    \
        shmem_team_sync(team);                                                                 \
        HOLDS(CALL(WHO, collect, team, to, from, (per - (size_t)mine % 3) * SCALE) == 0);      \
        size_t place = 0;                                                                      \
        for (int member = 0; member < members; member++)                                       \
            for (size_t at = 0; at < per - (size_t)member % 3; at++)                           \
                HOLDS(to[place++] == (TYPE)MIX(member, at));                                   \
        /* All to all, also with strides. */                                                   \
        for (size_t at = 0; at < 3 * all; at++)                                                \
            from[at] = (TYPE)MIX(mine, at);                                                    \
        shmem_team_sync(team);                                                                 \
        HOLDS(CALL(WHO, alltoall, team, to, from, per *SCALE) == 0);                           \
        for (size_t at = 0; at < all; at++)                                                    \
            HOLDS(to[at] == (TYPE)MIX(at / per, (size_t)mine * per + at % per));               \
        shmem_team_sync(team);                                                                 \
        if (SCALE == 1 && per <= SHORT + 3) {                                                  \
            memset(to, 0, 3 * all * sizeof(TYPE));                                             \
            shmem_team_sync(team);                                                             \
            HOLDS(CALL(WHO, alltoalls, team, to, from, 2, 3, per) == 0);                       \
            for (size_t at = 0; at < all; at++) {                                              \
                HOLDS(to[2 * at] == (TYPE)MIX(at / per, 3 * ((size_t)mine * per + at % per))); \
                HOLDS(to[2 * at + 1] == 0);                                                    \
            }                                                                                  \
        }                                                                                      \
        shmem_team_sync(team);                                                                 \
        shmem_free(to);                                                                        \
        shmem_free(from);                                                                      \
    }

#define SCALE 1
#define TYPED(WHO, NAME, ...) shmem_##WHO##_##NAME(__VA_ARGS__)
#define DEFINE(NAME, TYPE)                                            \
    static void test_##NAME(shmem_team_t team, int mine, int members) \
    {                                                                 \
        BODY(TYPE, TYPED, NAME, SHORT / sizeof(TYPE) + 3)             \
    }
STANDARD_RMA(DEFINE)

#define GENERIC(WHO, NAME, ...) shmem_##NAME(__VA_ARGS__)
static void test_long_blocks(shmem_team_t team, int mine, int members)
{
    BODY(int, GENERIC, , LONG / sizeof(int))
}

#undef SCALE
#define SCALE sizeof(int)
#define MEMORY(WHO, NAME, ...) shmem_##NAME##mem(__VA_ARGS__)
static void test_mem(shmem_team_t team, int mine, int members)
{
    BODY(int, MEMORY, , LONG / sizeof(int) + 1)
    BODY(int, MEMORY, , SHORT / sizeof(int))
}

static void test_alltoallsmem(void)
{
    size_t all = (size_t)count * 5;
    unsigned char *from = shmem_malloc(3 * all), *to = shmem_calloc(2 * all, 1);
    for (size_t at = 0; at < 3 * all; at++)
        from[at] = (unsigned char)MIX(me, at);
    shmem_barrier_all();
    HOLDS(shmem_alltoallsmem(SHMEM_TEAM_WORLD, to, from, 2, 3, 5) == 0);
    for (size_t at = 0; at < all; at++)
        HOLDS(to[2 * at] == (unsigned char)MIX(at / 5, 3 * ((size_t)me * 5 + at % 5)));
    shmem_free(to);
    shmem_free(from);
}

/* A PE that is late is not overtaken by more than the others may send. */
static void test_flood(void)
{
    static long sent, got;
    for (long round = 0; round < 300; round++) {
        sent = round;
        int root = (int)(round % count);
        HOLDS(shmem_long_broadcast(SHMEM_TEAM_WORLD, &got, &sent, 1, 0) == 0 && got == round);
        if (root == me)
            for (volatile int spin = 0; spin < 20000; spin++)
                ;
    }
    shmem_barrier_all();
}

void test_collectives(void)
{
#define TEST(NAME, TYPE) test_##NAME(SHMEM_TEAM_WORLD, me, count);
    STANDARD_RMA(TEST)
    claim("collectives of every type");
    test_long_blocks(SHMEM_TEAM_WORLD, me, count);
    test_mem(SHMEM_TEAM_WORLD, me, count);
    test_alltoallsmem();
    claim("collectives of bytes, long and short");
    test_flood();
    claim("broadcasts that follow one another");
}
