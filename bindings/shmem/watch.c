/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waiting for memory to change, and the end that another PE wants. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "context.h"
#include "job.h"

/*
 * Turns in which a waiting thread yields. Then it sleeps until a datagram arrives. What the kernel
 * writes wakes nobody, so with it a thread yields for longer, and sleeps for a short time.
 */
enum { TURNS_YIELDING = 1000, TURNS_YIELDING_KERNEL = 20000 };
enum { TURNS_PER_RECEIVE = 16 };
enum { SLEEP_MS = 10, SLEEP_NS_KERNEL = 100000 };

/* Time between two looks at the other PEs while this one waits. */
enum { LOOK_NS = 300000000 };

/* Time after which an exit of another PE reaches a PE that calls nothing. */
enum { WATCH_MS = 100 };

static pthread_t watcher;
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t watch_end = PTHREAD_COND_INITIALIZER;
static bool is_watching;

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static uint64_t exit_word(void)
{
    return __atomic_load_n((uint64_t *)(job.heap.base + EXIT_WORD_OFFSET), __ATOMIC_ACQUIRE);
}

void obey_exit(void)
{
    uint64_t word = exit_word();
    if (word == 0 || job.is_ending)
        return;
    job.is_ending = true;
    fflush(stdout);
    _exit((int)(uint32_t)word);
}

static void *watch(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&watch_lock);
    while (is_watching) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_MS * 1000000l;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&watch_end, &watch_lock, &until);
        if (is_watching)
            obey_exit();
    }
    pthread_mutex_unlock(&watch_lock);
    return NULL;
}

void watch_start(void)
{
    /* Before the thread looks at it. */
    is_watching = job.node != NULL;
    if (is_watching && pthread_create(&watcher, NULL, watch, NULL) != 0)
        is_watching = false;
}

void watch_stop(void)
{
    pthread_mutex_lock(&watch_lock);
    bool was_watching = is_watching;
    is_watching = false;
    pthread_cond_signal(&watch_end);
    pthread_mutex_unlock(&watch_lock);
    if (was_watching)
        pthread_join(watcher, NULL);
}

void progress(void)
{
    if (job.node != NULL)
        kumi_wind_message_free(kumi_wind_receive(job.node, 0));
}

/* Sends a sign of life to all PEs. One that is gone does not answer it, and is lost. */
static void look(struct waiting *waiting)
{
    char error[256];
    for (int pe = 0; pe < job.count; pe++) {
        if (pe == job.me)
            continue;
        int outcome = kumi_wind_check(job.node, job.peers[pe], error, sizeof error);
        if (outcome == KUMI_WIND_LOST && (!job.is_leaving || waiting->has_left))
            fail(waiting->call, "PE %d: %s", pe, error);
        waiting->has_left |= outcome == KUMI_WIND_LOST && pe == waiting->from - 1;
        (void)kumi_wind_try_send(job.node, job.peers[pe], KUMI_WIND_UNORDERED, NULL, NULL, 0, NULL, 0, NULL,
                                 error, sizeof error);
    }
}

void wait_turn(struct waiting *waiting)
{
    static _Thread_local uint64_t seen;
    /* Memory that the kernel writes changes also if nobody receives. */
    if (!job.has_kernel || waiting->turns % TURNS_PER_RECEIVE == 0)
        progress();
    obey_exit();
    unsigned yielding = job.has_kernel ? TURNS_YIELDING_KERNEL : TURNS_YIELDING;
    if (job.node == NULL || ++waiting->turns < yielding) {
        sched_yield();
        return;
    }
    int64_t now = now_ns();
    if (waiting->looked_ns == 0)
        waiting->looked_ns = now;
    if (now - waiting->looked_ns > LOOK_NS) {
        look(waiting);
        waiting->looked_ns = now;
    }
    struct timespec sleep = {.tv_nsec = SLEEP_NS_KERNEL};
    if (job.has_kernel)
        nanosleep(&sleep, NULL);
    else
        seen = kumi_wind_wait(job.node, seen, SLEEP_MS);
}
