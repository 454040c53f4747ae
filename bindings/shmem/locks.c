/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Locks (9.12): a queue of PEs, so that they get a lock in the order of their requests and each
 * waits on its own memory. A lock is a symmetric long. Its lower half has, at one PE, the last one
 * in the queue; its upper half, at each PE, whether that one waits or has it, and who comes after
 * it.
 */
#include "context.h"

/* Numbers of PEs in the halves begin at 1. */
#define LAST_MASK 0xffffffffull
#define NEXT_SHIFT 32
#define NEXT_MASK (0x3fffffffull << NEXT_SHIFT)
#define HAS (1ull << 62)
#define WAITS (1ull << 63)

static const uint64_t upper_half = NEXT_MASK | HAS | WAITS;

static void set_has(long *lock)
{
    __atomic_fetch_or((uint64_t *)lock, HAS, __ATOMIC_SEQ_CST);
}

/* The PE with the end of the queue. Locks are spread over the PEs. */
static int home(const char *call, const long *lock)
{
    struct kumi_wind_place place = place_of(call, lock, sizeof *lock, job.me);
    return (int)(place.offset / sizeof *lock % (uint64_t)job.count);
}

/* The halves of a lock as objects of 4 bytes. */
static uint32_t *last_of(long *lock)
{
    return (uint32_t *)lock;
}

static uint64_t *whole(long *lock)
{
    return (uint64_t *)lock;
}

/* Stores bits of the upper half of this PE's memory. */
static void set_upper(long *lock, uint64_t bits)
{
    uint64_t before = __atomic_load_n(whole(lock), __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(whole(lock), &before, (before & ~upper_half) | bits, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        ;
}

static uint64_t own_word(long *lock)
{
    return __atomic_load_n(whole(lock), __ATOMIC_ACQUIRE);
}

PUBLIC void shmem_set_lock(long *lock)
{
    static const char *call = "shmem_set_lock";
    check_started(call);
    int home_pe = home(call, lock);
    set_upper(lock, WAITS);
    uint64_t before = word_fetch(call, WORD_SET, last_of(lock), 4, (uint64_t)job.me + 1, 0, home_pe);
    if (before == (uint64_t)job.me + 1)
        fail(call, "this PE has the lock at %p already", (void *)lock);
    if (before == 0) {
        set_has(lock);
        return;
    }
    /* The one before this PE is told who comes after it. */
    (void)word_fetch(call, WORD_OR, whole(lock), 8, ((uint64_t)job.me + 1) << NEXT_SHIFT, 0, (int)before - 1);
    struct waiting waiting = {.call = call};
    while (own_word(lock) & WAITS)
        wait_turn(&waiting);
    set_has(lock);
}

PUBLIC int shmem_test_lock(long *lock)
{
    static const char *call = "shmem_test_lock";
    check_started(call);
    int home_pe = home(call, lock);
    if (word_fetch(call, WORD_FETCH, last_of(lock), 4, 0, 0, home_pe) != 0)
        return 1;
    set_upper(lock, WAITS);
    if (word_fetch(call, WORD_COMPARE_SWAP, last_of(lock), 4, (uint64_t)job.me + 1, 0, home_pe) != 0)
        return 1;
    set_has(lock);
    return 0;
}

PUBLIC void shmem_clear_lock(long *lock)
{
    static const char *call = "shmem_clear_lock";
    check_started(call);
    if (!is_symmetric(lock, sizeof *lock) || !(own_word(lock) & HAS))
        fail(call, "this PE does not have the lock at %p", (void *)lock);
    /* What was written under the lock is complete. */
    quiet(call, context_of(call, SHMEM_CTX_DEFAULT));
    uint64_t next = (own_word(lock) & NEXT_MASK) >> NEXT_SHIFT;
    if (next == 0) {
        uint64_t own = (uint64_t)job.me + 1;
        __atomic_fetch_and(whole(lock), ~HAS, __ATOMIC_SEQ_CST);
        if (word_fetch(call, WORD_COMPARE_SWAP, last_of(lock), 4, 0, own, home(call, lock)) == own)
            return;
        struct waiting waiting = {.call = call};
        while ((next = (own_word(lock) & NEXT_MASK) >> NEXT_SHIFT) == 0)
            wait_turn(&waiting);
    }
    set_upper(lock, 0);
    (void)word_fetch(call, WORD_AND, whole(lock), 8, ~WAITS, 0, (int)next - 1);
}
