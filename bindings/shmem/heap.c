/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The symmetric heap (9.3). All PEs make the same calls, and the choice of a block depends on
 * nothing else, so a block is at the same offset on all PEs. What describes the blocks is outside
 * the heap, where no other PE can write.
 */
#define _GNU_SOURCE
#include <search.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "job.h"
#include "team.h"

/* Blocks begin and end at cache lines. */
enum { UNIT_BYTES = 64, ALIGNMENT_MAX = 4096 };

struct block {
    char *at;
    size_t bytes;
    /* Neighbours in memory. */
    struct block *before, *after;
    /* Others in the list of free blocks. */
    struct block *next_free, **link;
};

/* Used blocks, by address. */
static void *used;
static struct block *free_blocks;

static int compare(const void *one, const void *other)
{
    const struct block *a = one, *b = other;
    return a->at < b->at ? -1 : a->at > b->at;
}

static void add_free(struct block *block)
{
    block->next_free = free_blocks;
    block->link = &free_blocks;
    if (free_blocks != NULL)
        free_blocks->link = &block->next_free;
    free_blocks = block;
}

static void take_free(struct block *block)
{
    *block->link = block->next_free;
    if (block->next_free != NULL)
        block->next_free->link = block->link;
    block->link = NULL;
}

static void forget(void *block)
{
    free(block);
}

void heap_start(char *base, size_t bytes)
{
    tdestroy(used, forget);
    used = NULL;
    free_blocks = NULL;
    struct block *all = calloc(1, sizeof *all);
    all->at = base;
    all->bytes = bytes / UNIT_BYTES * UNIT_BYTES;
    if (all->bytes > 0)
        add_free(all);
    else
        free(all);
}

/* Makes the part of a block from `bytes` on a block of its own, which is free. */
static void split(struct block *block, size_t bytes)
{
    if (block->bytes == bytes)
        return;
    struct block *rest = calloc(1, sizeof *rest);
    *rest = (struct block){
        .at = block->at + bytes, .bytes = block->bytes - bytes, .before = block, .after = block->after};
    if (rest->after != NULL)
        rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
    add_free(rest);
}

/* Joins a free block with a free one after it. */
static void join(struct block *block)
{
    struct block *after = block->after;
    if (after == NULL || after->link == NULL)
        return;
    take_free(after);
    block->bytes += after->bytes;
    block->after = after->after;
    if (block->after != NULL)
        block->after->before = block;
    free(after);
}

static void *take(size_t alignment, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    size_t bytes = (size + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    for (struct block *block = free_blocks; block != NULL; block = block->next_free) {
        /* Offsets, and not addresses, are equal on all PEs. The heap begins at a page. */
        size_t offset = (size_t)(block->at - job.heap.base);
        size_t gap = (alignment - offset % alignment) % alignment;
        if (block->bytes < gap || block->bytes - gap < bytes)
            continue;
        if (gap > 0) {
            split(block, gap);
            block = block->after;
        }
        take_free(block);
        split(block, bytes);
        tsearch(block, &used, compare);
        return block->at;
    }
    return NULL;
}

static struct block *find(const char *call, void *at)
{
    struct block wanted = {.at = at};
    struct block **found = tfind(&wanted, &used, compare);
    if (found == NULL)
        fail(call, "%p is not the address of a block of the symmetric heap", at);
    return *found;
}

static void give_back(struct block *block)
{
    tdelete(block, &used, compare);
    add_free(block);
    join(block);
    if (block->before != NULL && block->before->link != NULL)
        join(block->before);
}

/* A barrier, which fails if PEs make different calls. */
static void agree(const char *call, uint64_t argument)
{
    struct kumi_shmem_team *world = team_of(call, SHMEM_TEAM_WORLD);
    quiet(call, context_of(call, SHMEM_CTX_DEFAULT));
    uint64_t *arguments = malloc(sizeof *arguments * (size_t)job.count);
    gather_all(call, world, arguments, &argument, sizeof argument);
    for (int pe = 0; pe < job.count; pe++)
        if (arguments[pe] != argument)
            fail(call, "PE %d has the argument %llu and this one %llu: expected the same on all PEs", pe,
                 (unsigned long long)arguments[pe], (unsigned long long)argument);
    free(arguments);
}

static size_t offset_of(void *at)
{
    return at == NULL ? 0 : (size_t)((char *)at - job.heap.base);
}

static void *allocate(const char *call, size_t alignment, size_t size)
{
    check_started(call);
    if (size == 0)
        return NULL;
    void *at = take(alignment < UNIT_BYTES ? UNIT_BYTES : alignment, size);
    agree(call, size);
    return at;
}

PUBLIC void *shmem_malloc(size_t size)
{
    return allocate("shmem_malloc", UNIT_BYTES, size);
}

PUBLIC void *shmem_malloc_with_hints(size_t size, long hints)
{
    /* All memory is as good for atomic operations and signals. */
    (void)hints;
    return allocate("shmem_malloc_with_hints", UNIT_BYTES, size);
}

PUBLIC void *shmem_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        bytes = SIZE_MAX;
    check_started("shmem_calloc");
    if (bytes == 0)
        return NULL;
    /* No PE may write before the block is zero everywhere. */
    void *at = take(UNIT_BYTES, bytes);
    if (at != NULL)
        memset(at, 0, bytes);
    agree("shmem_calloc", bytes);
    return at;
}

PUBLIC void *shmem_align(size_t alignment, size_t size)
{
    /* The heaps of the PEs begin at different addresses, which are equal within a page only. */
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > ALIGNMENT_MAX)
        return NULL;
    return allocate("shmem_align", alignment, size);
}

PUBLIC void shmem_free(void *ptr)
{
    static const char *call = "shmem_free";
    check_started(call);
    if (ptr == NULL)
        return;
    struct block *block = find(call, ptr);
    agree(call, offset_of(ptr));
    give_back(block);
}

PUBLIC void *shmem_realloc(void *ptr, size_t size)
{
    static const char *call = "shmem_realloc";
    if (ptr == NULL)
        return allocate(call, UNIT_BYTES, size);
    if (size == 0) {
        shmem_free(ptr);
        return NULL;
    }
    check_started(call);
    struct block *block = find(call, ptr);
    agree(call, offset_of(ptr) ^ (uint64_t)size << 20);
    void *at = size <= block->bytes ? ptr : take(UNIT_BYTES, size);
    if (at != NULL && at != ptr) {
        memcpy(at, ptr, block->bytes);
        give_back(block);
    }
    /* No PE may write to the new block before all have copied. */
    agree(call, offset_of(at));
    return at;
}

PUBLIC void *shmalloc(size_t size)
{
    return shmem_malloc(size);
}
PUBLIC void shfree(void *ptr)
{
    shmem_free(ptr);
}
PUBLIC void *shrealloc(void *ptr, size_t size)
{
    return shmem_realloc(ptr, size);
}
PUBLIC void *shmemalign(size_t alignment, size_t size)
{
    return shmem_align(alignment, size);
}
