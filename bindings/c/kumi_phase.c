/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Phases of a program: names and scopes in the phase page. kumi.h documents the interface. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kumi.h"
#include "kumi_page_access.h"

/* The preload library exports the interface with any compiler flags, so that Python finds it. */
#define KUMI_EXPORT __attribute__((visibility("default")))

/*
 * Maximum number of scheduler turns to wait for the lock. An insertion only copies 64 bytes, so a
 * longer wait means that the holder no longer exists (an exec during an insertion). The caller
 * then continues without the name.
 */
enum { LOCK_TURNS_MAX = 10000 };

/*
 * Size of a thread's cache of names, which is indexed by address. A power of two. A loop over
 * phases uses two to four names.
 */
enum { NAME_CACHE_SLOTS = 8 };

static struct kumi_phase_page *mapped;
static pthread_once_t mapped_once = PTHREAD_ONCE_INIT;
/* Cached, because getpid() is a system call and a switch must not make one. */
static uint32_t own_pid;

static _Thread_local struct {
    uint32_t depth;
    /* Value of the page's `scope` before each scope was opened. */
    uint32_t saved[KUMI_SCOPES_MAX];
} scopes;

static _Thread_local struct {
    const char *name;
    uint32_t index;
} name_cache[NAME_CACHE_SLOTS];

static void after_fork_in_child(void)
{
    own_pid = (uint32_t)getpid();
}

static void lock_names(struct kumi_phase_page *page, bool *held)
{
    for (int turn = 0; turn < LOCK_TURNS_MAX; turn++) {
        uint32_t holder = 0;
        if (__atomic_compare_exchange_n(&page->lock, &holder, own_pid, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            *held = true;
            return;
        }
        /* A process that was killed while it held the lock must not stop its siblings. */
        if (holder != own_pid && kill((pid_t)holder, 0) != 0 && errno == ESRCH &&
            __atomic_compare_exchange_n(&page->lock, &holder, own_pid, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            *held = true;
            return;
        }
        sched_yield();
    }
    *held = false;
}

static void unlock_names(struct kumi_phase_page *page)
{
    __atomic_store_n(&page->lock, 0, __ATOMIC_RELEASE);
}

static void write_name(struct kumi_phase_page *page, uint32_t index, const char *name)
{
    memset(page->names[index], 0, KUMI_PHASE_NAME_BYTES);
    memcpy(page->names[index], name, strnlen(name, KUMI_PHASE_NAME_BYTES - 1));
    __atomic_store_n(&page->named, index + 1, __ATOMIC_RELEASE);
}

/*
 * Returns whether the mapped memory is a phase page. Many programs close inherited descriptors, and
 * the number may now belong to a file of the program. So the layout is checked before any write.
 */
static bool is_phase_page(const struct kumi_phase_page *page)
{
    if (page->abi != KUMI_PHASE_ABI || page->named > KUMI_PHASES_MAX)
        return false;
    for (size_t i = 0; i < sizeof(page->reserved) / sizeof(page->reserved[0]); i++) {
        if (page->reserved[i] != 0)
            return false;
    }
    if (page->named == 0 && page->phase == 0 && page->names[0][0] == '\0')
        return true;
    return strncmp(page->names[0], KUMI_PHASE_POINT_TO_POINT_NAME, KUMI_PHASE_NAME_BYTES) == 0;
}

static int inherited_descriptor(void)
{
    const char *text = getenv(KUMI_PHASE_FD_ENV);
    if (text == NULL || *text == '\0')
        return -1;
    char *end = NULL;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || number < 0 || number > INT_MAX) {
        fprintf(stderr,
                "kumi: %s=\"%.40s\" is not the number of a file descriptor; "
                "phases are not marked\n",
                KUMI_PHASE_FD_ENV, text);
        return -1;
    }
    return (int)number;
}

static void map_page(void)
{
    int fd = inherited_descriptor();
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0)
        return;
    /* A read beyond the end of a file raises SIGBUS. A BPF map is not a regular file. */
    if (S_ISREG(about.st_mode) && about.st_size < KUMI_PHASE_PAGE_BYTES)
        return;
    void *at = mmap(NULL, KUMI_PHASE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return;
    struct kumi_phase_page *page = at;
    if (!is_phase_page(page)) {
        munmap(at, KUMI_PHASE_PAGE_BYTES);
        return;
    }
    own_pid = (uint32_t)getpid();
    pthread_atfork(NULL, NULL, after_fork_in_child);
    if (__atomic_load_n(&page->named, __ATOMIC_ACQUIRE) == 0) {
        bool held;
        lock_names(page, &held);
        if (held && page->named == 0)
            write_name(page, KUMI_PHASE_POINT_TO_POINT, KUMI_PHASE_POINT_TO_POINT_NAME);
        if (held)
            unlock_names(page);
    }
    __atomic_store_n(&mapped, page, __ATOMIC_RELEASE);
}

struct kumi_phase_page *kumi_page(void)
{
    struct kumi_phase_page *page = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    if (page != NULL)
        return page;
    /* The caller may be inside an MPI or libc call whose errno the program checks. */
    int saved_errno = errno;
    pthread_once(&mapped_once, map_page);
    errno = saved_errno;
    return mapped;
}

static bool find_name(const struct kumi_phase_page *page, const char *name, uint32_t *index)
{
    uint32_t named = __atomic_load_n(&page->named, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < named && i < KUMI_PHASES_MAX; i++) {
        if (strncmp(page->names[i], name, KUMI_PHASE_NAME_BYTES) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

static void say_other_once(const char *name)
{
    static bool said;
    if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        return;
    fprintf(stderr, "kumi: more than %d phases: \"%s\" and all further phases share the phase \"%s\"\n",
            KUMI_PHASE_OTHER - 1, name, KUMI_PHASE_OTHER_NAME);
}

uint32_t kumi_page_index(struct kumi_phase_page *page, const char *name)
{
    uint32_t index;
    if (find_name(page, name, &index))
        return index;
    bool held;
    lock_names(page, &held);
    if (!held)
        return KUMI_PHASE_POINT_TO_POINT;
    if (!find_name(page, name, &index)) {
        index = page->named;
        if (index >= KUMI_PHASE_OTHER) {
            if (index == KUMI_PHASE_OTHER)
                write_name(page, KUMI_PHASE_OTHER, KUMI_PHASE_OTHER_NAME);
            index = KUMI_PHASE_OTHER;
            say_other_once(name);
        } else {
            write_name(page, index, name);
        }
    }
    unlock_names(page);
    return index;
}

static uint64_t holder_of(uint32_t pid, uint32_t open)
{
    return (uint64_t)open << 32 | pid;
}

bool kumi_page_scope(struct kumi_phase_page *page, uint32_t *phase)
{
    uint64_t holder = __atomic_load_n(&page->scope_holder, __ATOMIC_ACQUIRE);
    uint32_t scope = __atomic_load_n(&page->scope, __ATOMIC_RELAXED);
    if ((uint32_t)holder != own_pid || holder >> 32 == 0 || scope == 0)
        return false;
    *phase = scope - 1;
    return true;
}

/*
 * Counts one more open scope of this process, and returns the page's `scope` before it. Scopes of
 * another process are discarded. That process has ended without closing them, or a fork shares the
 * page.
 */
static uint32_t open_scope(struct kumi_phase_page *page)
{
    uint64_t old = __atomic_load_n(&page->scope_holder, __ATOMIC_RELAXED);
    uint64_t new;
    bool ours;
    do {
        ours = (uint32_t)old == own_pid;
        new = holder_of(own_pid, ours ? (uint32_t)(old >> 32) + 1 : 1);
    } while (!__atomic_compare_exchange_n(&page->scope_holder, &old, new, true, __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED));
    return ours ? __atomic_load_n(&page->scope, __ATOMIC_RELAXED) : 0;
}

static void close_scope(struct kumi_phase_page *page, uint32_t saved)
{
    uint64_t old = __atomic_load_n(&page->scope_holder, __ATOMIC_RELAXED);
    uint32_t left;
    do {
        /* Another process that shares the page has opened a scope since, and keeps the phase. */
        if ((uint32_t)old != own_pid || old >> 32 == 0)
            return;
        left = (uint32_t)(old >> 32) - 1;
    } while (!__atomic_compare_exchange_n(&page->scope_holder, &old, left == 0 ? 0 : holder_of(own_pid, left),
                                          true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    if (left == 0)
        saved = 0;
    else if (saved == 0)
        return; /* Another thread has an open scope, which began later and stays in effect. */
    __atomic_store_n(&page->scope, saved, __ATOMIC_RELAXED);
    kumi_page_switch(page, saved == 0 ? KUMI_PHASE_POINT_TO_POINT : saved - 1);
}

KUMI_EXPORT kumi_phase_t kumi_phase(const char *name)
{
    if (name == NULL || *name == '\0' || strnlen(name, KUMI_PHASE_NAME_BYTES) >= KUMI_PHASE_NAME_BYTES)
        return -1;
    struct kumi_phase_page *page = kumi_page();
    if (page == NULL)
        return KUMI_PHASE_POINT_TO_POINT;
    /* The address selects the slot. The text is compared, because the buffer may be reused. */
    size_t slot = ((uintptr_t)name >> 3) % NAME_CACHE_SLOTS;
    uint32_t index = name_cache[slot].index;
    if (name_cache[slot].name == name && strncmp(page->names[index], name, KUMI_PHASE_NAME_BYTES) == 0)
        return (kumi_phase_t)index;
    index = kumi_page_index(page, name);
    name_cache[slot].name = name;
    name_cache[slot].index = index;
    return (kumi_phase_t)index;
}

KUMI_EXPORT int kumi_phase_enter(kumi_phase_t phase)
{
    struct kumi_phase_page *page = kumi_page();
    if (page == NULL)
        return 0;
    uint32_t depth = scopes.depth++;
    if (depth >= KUMI_SCOPES_MAX)
        return EOVERFLOW;
    scopes.saved[depth] = open_scope(page);
    if (phase < 0 || (uint32_t)phase >= __atomic_load_n(&page->named, __ATOMIC_RELAXED)) {
        __atomic_store_n(&page->scope, scopes.saved[depth], __ATOMIC_RELAXED);
        return EINVAL;
    }
    __atomic_store_n(&page->scope, (uint32_t)phase + 1, __ATOMIC_RELAXED);
    kumi_page_switch(page, (uint32_t)phase);
    return 0;
}

KUMI_EXPORT int kumi_phase_leave(void)
{
    struct kumi_phase_page *page = kumi_page();
    if (page == NULL)
        return 0;
    if (scopes.depth == 0)
        return EINVAL;
    if (--scopes.depth < KUMI_SCOPES_MAX)
        close_scope(page, scopes.saved[scopes.depth]);
    return 0;
}

KUMI_EXPORT int kumi_phase_begin(const char *name)
{
    return kumi_phase_enter(kumi_phase(name));
}

KUMI_EXPORT int kumi_phase_end(void)
{
    return kumi_phase_leave();
}
