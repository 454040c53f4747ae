/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The symmetric heap. */
#include "shmem.h"

enum { BLOCKS = 40 };

/* Returns a value that is the same on all PEs if the block is at the same offset on all of them. */
static bool is_symmetric(char *at, size_t bytes)
{
    at[0] = (char)me;
    at[bytes - 1] = (char)me;
    shmem_barrier_all();
    bool holds = shmem_char_g(at, next) == (char)next && shmem_char_g(at + bytes - 1, before) == (char)before;
    shmem_barrier_all();
    return holds;
}

void test_memory(void)
{
    /* Blocks that come and go in an order from a fixed sequence, and never overlap. */
    char *blocks[BLOCKS] = {NULL};
    size_t sizes[BLOCKS];
    unsigned random = 1;
    for (int round = 0; round < 400; round++) {
        random = random * 1103515245 + 12345;
        int at = (int)(random >> 16) % BLOCKS;
        size_t size = 1 + (random >> 8) % 30000;
        if (blocks[at] == NULL) {
            blocks[at] = shmem_malloc(size);
            HOLDS(blocks[at] != NULL && (uintptr_t)blocks[at] % 16 == 0);
            sizes[at] = size;
        } else if (round % 3 == 0) {
            size_t kept = size < sizes[at] ? size : sizes[at];
            blocks[at] = shmem_realloc(blocks[at], size);
            HOLDS(blocks[at] != NULL && blocks[at][kept / 2] == (char)at);
            sizes[at] = size;
        } else {
            for (size_t byte = 0; byte < sizes[at]; byte++)
                HOLDS(blocks[at][byte] == (char)at);
            shmem_free(blocks[at]);
            blocks[at] = NULL;
            continue;
        }
        memset(blocks[at], at, sizes[at]);
    }
    for (int at = 0; at < BLOCKS; at++)
        if (blocks[at] != NULL) {
            HOLDS(is_symmetric(blocks[at], sizes[at]));
            shmem_free(blocks[at]);
        }
    claim("blocks of the heap are symmetric and do not overlap");

    size_t half = 24 << 20;
    char *large = shmem_malloc(half), *second = shmem_malloc(half);
    HOLDS(large != NULL && second != NULL && shmem_malloc(half) == NULL && shmem_malloc(SIZE_MAX) == NULL);
    shmem_free(large);
    shmem_free(second);
    large = shmem_malloc(2 * half);
    HOLDS(large != NULL);
    shmem_free(large);
    claim("a heap that is full says so, and free blocks are joined");

    for (size_t alignment = 8; alignment <= 4096; alignment *= 2) {
        char *at = shmem_align(alignment, 100);
        HOLDS(at != NULL && (uintptr_t)at % alignment == 0);
        HOLDS(is_symmetric(at, 100));
        shmem_free(at);
    }
    HOLDS(shmem_align(24, 100) == NULL && shmem_align(0, 100) == NULL);
    char *zeros = shmem_calloc(1000, 3);
    for (int at = 0; at < 3000; at++)
        HOLDS(zeros[at] == 0);
    shmem_free(zeros);
    HOLDS(shmem_malloc(0) == NULL && shmem_calloc(0, 8) == NULL && shmem_calloc(SIZE_MAX, 8) == NULL);
    char *at = shmem_malloc_with_hints(100, SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE);
    HOLDS(at != NULL);
    at = shmem_realloc(at, 0);
    HOLDS(at == NULL);
    at = shmem_realloc(NULL, 50);
    HOLDS(at != NULL);
    shmem_free(at);
    shmem_free(NULL);
    claim("aligned, zeroed and empty blocks");
}
