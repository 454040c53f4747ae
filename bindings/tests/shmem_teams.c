/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Teams, contexts of teams, and locks. */
#include <pthread.h>

#include "shmem.h"

/* Every second PE, and every second one of these. */
static void test_strided(void)
{
    shmem_team_t team = (shmem_team_t)&team, inner;
    int half = (count + 1) / 2;
    shmem_team_config_t config = {.num_contexts = 2}, found = {0};
    HOLDS(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, half, &config, SHMEM_TEAM_NUM_CONTEXTS, &team) ==
          0);
    HOLDS((team != SHMEM_TEAM_INVALID) == (me % 2 == 0));
    if (team != SHMEM_TEAM_INVALID) {
        HOLDS(shmem_team_my_pe(team) == me / 2 && shmem_team_n_pes(team) == half);
        HOLDS(shmem_team_get_config(team, SHMEM_TEAM_NUM_CONTEXTS, &found) == 0 && found.num_contexts == 2);
        HOLDS(shmem_team_translate_pe(team, half - 1, SHMEM_TEAM_WORLD) == 2 * (half - 1));
        HOLDS(shmem_team_translate_pe(SHMEM_TEAM_WORLD, 1, team) == -1);
        static long sum, mine;
        mine = me + 1;
        HOLDS(shmem_long_sum_reduce(team, &sum, &mine, 1) == 0);
        HOLDS(sum == (long)half * (half - 1) + half);
        /* A team of a team, in reverse. */
        HOLDS(shmem_team_split_strided(team, half - 1, -1, half, NULL, 0, &inner) == 0);
        HOLDS(shmem_team_my_pe(inner) == half - 1 - me / 2);
        static int from[64], to[64];
        from[0] = me;
        HOLDS(shmem_int_fcollect(inner, to, from, 1) == 0);
        for (int member = 0; member < half; member++)
            HOLDS(to[member] == 2 * (half - 1 - member));
        shmem_team_destroy(inner);
        /* PE numbers of a context are those of its team. */
        shmem_ctx_t context;
        shmem_team_t of_context;
        static int value;
        HOLDS(shmem_team_create_ctx(team, 0, &context) == 0);
        HOLDS(shmem_ctx_get_team(context, &of_context) == 0 && of_context == team);
        shmem_ctx_int_p(context, &value, me, (me / 2 + 1) % half);
        shmem_ctx_quiet(context);
        shmem_team_sync(team);
        HOLDS(value == (me / 2 + half - 1) % half * 2);
        shmem_ctx_destroy(context);
    }
    shmem_team_destroy(team);
}

/* Rows and columns, many times: more than there are teams at a time. */
static void test_2d(void)
{
    for (int round = 0; round < 100; round++) {
        int width = round % 3 + 1;
        shmem_team_t row, column;
        HOLDS(shmem_team_split_2d(SHMEM_TEAM_WORLD, width, NULL, 0, &row, NULL, 0, &column) == 0);
        int columns = width < count ? width : count;
        HOLDS(shmem_team_my_pe(row) == me % columns && shmem_team_my_pe(column) == me / columns);
        static int from, sum;
        from = me;
        HOLDS(shmem_int_sum_reduce(row, &sum, &from, 1) == 0);
        int wanted = 0;
        for (int pe = me - me % columns; pe < count && pe < me - me % columns + columns; pe++)
            wanted += pe;
        HOLDS(sum == wanted);
        HOLDS(shmem_int_max_reduce(column, &sum, &from, 1) == 0);
        HOLDS(sum == me % columns + (count - 1 - me % columns) / columns * columns);
        shmem_team_destroy(row);
        shmem_team_destroy(column);
    }
}

/* As many teams as there can be; then none; and again after one is destroyed. */
static void test_many(void)
{
    enum { MANY = 100 };
    shmem_team_t teams[MANY];
    int made = 0;
    while (made < MANY && shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, count, NULL, 0, &teams[made]) == 0)
        made++;
    HOLDS(made >= 32 && made < MANY && teams[made] == SHMEM_TEAM_INVALID);
    for (int at = 0; at < made; at++)
        HOLDS(shmem_sync(teams[at]) == 0);
    shmem_team_destroy(teams[0]);
    HOLDS(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, count, NULL, 0, &teams[0]) == 0);
    for (int at = 0; at < made; at++)
        shmem_team_destroy(teams[at]);
}

static void test_invalid(void)
{
    shmem_team_t team;
    shmem_ctx_t context;
    HOLDS(shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1 && shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1);
    HOLDS(shmem_team_split_strided(SHMEM_TEAM_INVALID, 0, 1, 1, NULL, 0, &team) != 0 &&
          team == SHMEM_TEAM_INVALID);
    HOLDS(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, count + 1, NULL, 0, &team) != 0);
    HOLDS(team == SHMEM_TEAM_INVALID);
    HOLDS(shmem_team_translate_pe(SHMEM_TEAM_WORLD, count, SHMEM_TEAM_WORLD) == -1);
    HOLDS(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &context) != 0 && context == SHMEM_CTX_INVALID);
    HOLDS(shmem_ctx_create(1 << 20, &context) != 0 && context == SHMEM_CTX_INVALID);
    HOLDS(shmem_ctx_get_team(SHMEM_CTX_INVALID, &team) != 0 && team == SHMEM_TEAM_INVALID);
    HOLDS(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &team) == 0 && team == SHMEM_TEAM_WORLD);
    HOLDS(shmem_team_n_pes(SHMEM_TEAM_SHARED) >= 1);
    HOLDS(shmem_team_sync(SHMEM_TEAM_INVALID) != 0);
    shmem_ctx_quiet(SHMEM_CTX_INVALID);
    shmem_ctx_fence(SHMEM_CTX_INVALID);
    shmem_ctx_destroy(SHMEM_CTX_INVALID);
    shmem_team_destroy(SHMEM_TEAM_INVALID);
}

/* All PEs count under a lock, without atomic operations. */
static void test_locks(void)
{
    enum { ROUNDS = 25, LOCKS = 3 };
    static long locks[LOCKS], counters[LOCKS], tries;
    for (int round = 0; round < ROUNDS * LOCKS; round++) {
        int at = round % LOCKS;
        if (round % 2 == 0)
            shmem_set_lock(&locks[at]);
        else
            while (shmem_test_lock(&locks[at]) != 0)
                tries++;
        long value = shmem_long_g(&counters[at], 0);
        shmem_long_p(&counters[at], value + 1, 0);
        shmem_clear_lock(&locks[at]);
    }
    shmem_barrier_all();
    for (int at = 0; at < LOCKS && me == 0; at++)
        HOLDS(counters[at] == (long)ROUNDS * count);
    shmem_barrier_all();
}

static long thread_sums[4];

/* Adds to a word of each PE, in a context of its own. */
static void *add(void *argument)
{
    int thread = (int)(intptr_t)argument;
    shmem_ctx_t context;
    if (shmem_ctx_create(0, &context) != 0)
        return (void *)1;
    for (int round = 0; round < 50; round++) {
        for (int pe = 0; pe < count; pe++)
            shmem_ctx_long_atomic_add(context, &thread_sums[thread], 1, pe);
        shmem_ctx_quiet(context);
    }
    shmem_ctx_destroy(context);
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[4];
    for (int thread = 0; thread < 4; thread++)
        HOLDS(pthread_create(&threads[thread], NULL, add, (void *)(intptr_t)thread) == 0);
    for (int thread = 0; thread < 4; thread++) {
        void *result;
        HOLDS(pthread_join(threads[thread], &result) == 0 && result == NULL);
    }
    shmem_barrier_all();
    for (int thread = 0; thread < 4; thread++)
        HOLDS(thread_sums[thread] == 50l * count);
}

void test_teams(void)
{
    test_strided();
    test_2d();
    test_many();
    claim("teams");
    test_invalid();
    claim("invalid teams and contexts are errors");
    test_locks();
    claim("locks");
    test_threads();
    claim("threads with contexts of their own");
}
