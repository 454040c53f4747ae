/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Contexts: which operations are not complete yet. */
#ifndef KUMI_SHMEM_CONTEXT_H
#define KUMI_SHMEM_CONTEXT_H

#include "job.h"
#include "team.h"

/* A get or an atomic operation without a wait. */
struct pending {
    struct kumi_wind_transfer *transfer;
    int pe;
    struct pending *next;
};

struct kumi_shmem_context {
    struct kumi_shmem_team *team;
    long options;
    pthread_mutex_t lock;
    /* PEs to which operations may be in flight. */
    atomic_uchar *is_dirty;
    atomic_bool has_dirty;
    struct pending *pending;
};

void contexts_start(void);

/* Returns the context that a program means. */
struct kumi_shmem_context *context_of(const char *call, shmem_ctx_t handle);

/* Returns the number in the job of a PE that has number `pe` in the context's team. */
int world_pe(const char *call, const struct kumi_shmem_context *context, int pe);

/* The context of the library's own collectives. */
extern struct kumi_shmem_context collective_context;

/* Completes all operations of a context, or those to one PE. */
void quiet(const char *call, struct kumi_shmem_context *context);
void quiet_pe(const char *call, struct kumi_shmem_context *context, int pe);

/* Moves of bytes; `pe` is a number in the job. */
void put(const char *call, struct kumi_shmem_context *context, void *dest, const void *source, size_t bytes,
         int pe);
void get(const char *call, void *dest, const void *source, size_t bytes, int pe);
void get_nbi(const char *call, struct kumi_shmem_context *context, void *dest, const void *source,
             size_t bytes, int pe);

/* Adds a started transfer to those that quiet completes. */
void add_pending(const char *call, struct kumi_shmem_context *context, struct kumi_wind_transfer *transfer,
                 int pe);

static inline void mark_dirty(struct kumi_shmem_context *context, int pe)
{
    atomic_store_explicit(&context->is_dirty[pe], 1, memory_order_relaxed);
    atomic_store_explicit(&context->has_dirty, true, memory_order_relaxed);
}

/* Operations on a word of 4 or 8 bytes. */
enum word_operation { WORD_FETCH, WORD_SET, WORD_COMPARE_SWAP, WORD_ADD, WORD_AND, WORD_OR, WORD_XOR };
/* Returns the word of before. */
uint64_t word_fetch(const char *call, enum word_operation operation, void *dest, size_t bytes, uint64_t value,
                    uint64_t condition, int pe);
/* As above, and does not wait where that is possible. */
void word_post(const char *call, struct kumi_shmem_context *context, enum word_operation operation,
               void *dest, size_t bytes, uint64_t value, int pe);

#endif
