/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Scopes of kumi.h, without MPI. `scopes claims` checks them, `scopes quiet` only opens one, and
 * `scopes names N` opens N scopes with different names.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"
#include "kumi.h"

/*
 * SWITCH_NS_MAX is the specification's target, in nanoseconds. The median of the rounds excludes a
 * round that was preempted.
 */
enum { SWITCH_NS_MAX = 50, ROUNDS = 21, SWITCHES = 200000, THREADS = 4 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static void by_handle(kumi_phase_t phase)
{
    kumi_phase_enter(phase);
    kumi_phase_leave();
}

static void by_name(kumi_phase_t phase)
{
    (void)phase;
    kumi_phase_begin("exchange");
    kumi_phase_end();
}

/* Returns the median time of a switch, in nanoseconds. A scope is two switches. */
static double switch_ns(void (*scope)(kumi_phase_t), kumi_phase_t phase)
{
    double rounds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double begin = now_ns();
        for (int i = 0; i < SWITCHES / 2; i++)
            scope(phase);
        rounds[round] = (now_ns() - begin) / SWITCHES;
    }
    qsort(rounds, ROUNDS, sizeof(rounds[0]), by_value);
    return rounds[ROUNDS / 2];
}

static void measure(void)
{
    kumi_phase_t phase = kumi_phase("exchange");
    double handle_ns = switch_ns(by_handle, phase), name_ns = switch_ns(by_name, phase);
    char claim[128];
    snprintf(claim, sizeof(claim), "a switch costs at most %d ns: %.1f by handle, %.1f by name",
             SWITCH_NS_MAX, handle_ns, name_ns);
    expect_true(claim, handle_ns <= SWITCH_NS_MAX && name_ns <= SWITCH_NS_MAX);
}

static void *open_and_close(void *number)
{
    char name[32];
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof(name), "thread %d", (int)(intptr_t)number + i % 2);
        kumi_phase_begin(name);
        kumi_phase_end();
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&all[i], NULL, open_and_close, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    expect_phase("4 threads at once leave point-to-point behind", "point-to-point");
    bool distinct = true;
    for (int i = 0; i <= THREADS; i++) {
        for (int j = 0; j < i; j++) {
            char one[32], two[32];
            snprintf(one, sizeof(one), "thread %d", i);
            snprintf(two, sizeof(two), "thread %d", j);
            distinct = distinct && kumi_phase(one) != kumi_phase(two) && kumi_phase(one) < 16;
        }
    }
    expect_true("and each name once", distinct);
}

static void forked(void)
{
    kumi_phase_begin("parent");
    pid_t child = fork();
    if (child == 0) {
        kumi_phase_begin("child");
        kumi_phase_end();
        kumi_phase_begin("child, killed");
        _exit(0);
    }
    waitpid(child, NULL, 0);
    kumi_phase_begin("after");
    expect_phase("a child that dies in a scope does not keep the phase", "after");
    kumi_phase_end();
    kumi_phase_end();
    expect_phase("nor what comes after it", "point-to-point");
}

static void claims(void)
{
    expect_true("an end without a begin is EINVAL", kumi_phase_end() == EINVAL);
    kumi_phase_begin("outer");
    kumi_phase_begin("inner");
    expect_phase("the innermost scope holds", "inner");
    kumi_phase_end();
    expect_phase("after it the outer one", "outer");
    char name[KUMI_SCOPES_MAX + 16];
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    expect_true("a name too long is EINVAL", kumi_phase_begin(name) == EINVAL);
    expect_phase("and has no effect", "outer");
    kumi_phase_end();
    expect_true("so is an empty one, and none",
                kumi_phase_begin("") == EINVAL && kumi_phase_begin(NULL) == EINVAL);
    kumi_phase_end();
    kumi_phase_end();
    expect_phase("after its end the outer scope is still open", "outer");
    strcpy(name, "first");
    kumi_phase_begin(name);
    strcpy(name, "second");
    kumi_phase_begin(name);
    expect_phase("a name in a reused buffer is the new name", "second");
    kumi_phase_end();
    kumi_phase_end();
    kumi_phase_end();
    expect_phase("after the outermost it is point-to-point", "point-to-point");

    int error = 0, opened = 0;
    for (; opened < 2 * KUMI_SCOPES_MAX && error == 0; opened++)
        error = kumi_phase_begin("deep");
    expect_true("scope 65 is EOVERFLOW", error == EOVERFLOW && opened == KUMI_SCOPES_MAX + 1);
    for (; opened > 1; opened--)
        kumi_phase_end();
    expect_phase("and counted", "deep");
    kumi_phase_end();
    expect_phase("so that all can be closed", "point-to-point");
    threads();
    forked();
    measure();
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "claims") == 0) {
        claims();
    } else if (argc == 2 && strcmp(argv[1], "quiet") == 0) {
        return kumi_phase_begin("quiet") | kumi_phase_end();
    } else if (argc == 3 && strcmp(argv[1], "names") == 0) {
        for (int i = 0; i < atoi(argv[2]); i++) {
            char name[32];
            snprintf(name, sizeof(name), "phase %d", i);
            if (kumi_phase_begin(name) != 0 || (i < 30 && kumi_phase_end() != 0))
                return 1;
        }
        expect_phase("the 31st name stands for \"other\"", "other");
    } else {
        return 2;
    }
    return expect_result();
}
