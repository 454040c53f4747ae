/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The processing elements (PEs) of a job, and their symmetric memory. README.md has a picture of
 * the files.
 */
#ifndef KUMI_SHMEM_JOB_H
#define KUMI_SHMEM_JOB_H

#include <kumi_ranks.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <shmem.h>

#define PUBLIC __attribute__((visibility("default")))

/* Symmetric memory of all PEs: the heap, or the static variables of the program. */
struct segment {
    char *base;
    size_t bytes;
    struct kumi_wind_region *region;
    /* Place of each PE's memory. */
    struct kumi_wind_place *places;
};

struct job {
    int me;
    int count;
    int thread_level;
    /* NULL if there is one PE. */
    struct kumi_ranks *ranks;
    struct kumi_wind_node *node;
    uint32_t *peers;
    /* The kernel executes operations of other PEs here. */
    bool has_kernel;
    struct segment heap, statics;
    /* The program's part of the heap begins after the library's own. */
    size_t own_bytes;
    /* From the last barrier on, PEs that have passed it leave; after shmem_global_exit, all end. */
    bool is_started, is_leaving, is_ending;
};

extern struct job job;

/* Ends the program on all PEs, with a message that begins with the name of this PE and `call`. */
__attribute__((noreturn, format(printf, 2, 3))) void fail(const char *call, const char *format, ...);
__attribute__((noreturn)) void end_all(int status);

/* Fails for a PE that is lost, and otherwise does nothing. */
void check(const char *call, int pe, int outcome, const char *error);

void check_started(const char *call);

/* bootstrap.c: returns NULL for a job of one PE. */
struct kumi_ranks *find_ranks(void);
void leave_launcher(void);

/* symmetric.c */
void create_segments(size_t own_bytes, size_t heap_bytes);
void free_segments(void);
bool is_symmetric(const void *at, size_t bytes);
/* Returns the place of a symmetric object at a PE. Fails if the object is not symmetric. */
struct kumi_wind_place place_of(const char *call, const void *at, size_t bytes, int pe);
/* Returns the place of bytes of the library's own memory. */
struct kumi_wind_place own_place(size_t offset, int pe);

/* heap.c */
void heap_start(char *base, size_t bytes);

/* watch.c */
enum { EXIT_WORD_OFFSET = 0, CONTROL_BYTES = 4096 };
void watch_start(void);
void watch_stop(void);
/* Ends the program if another PE has called shmem_global_exit. */
void obey_exit(void);

/* A thread that waits for memory to change calls wait_turn until it has. */
struct waiting {
    const char *call;
    /* PE that is to change the memory, if it is known, as a number from 1 on. */
    int from;
    /* It has left, but what it wrote before may have come after the last look at the memory. */
    bool has_left;
    unsigned turns;
    int64_t looked_ns;
};
void wait_turn(struct waiting *waiting);
int64_t now_ns(void);
/* Receives what has arrived. */
void progress(void);

#endif
