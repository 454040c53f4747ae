/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Addresses of a collective's blocks in memory. Blocks of derived datatypes are packed before the
 * collective and unpacked after it.
 */
#ifndef KUMI_MPI_BLOCKS_H
#define KUMI_MPI_BLOCKS_H

#include "communicator.h"

/* One buffer argument of a collective, with its counts. */
struct kumi_buffer {
    char *at;
    kumi_handle type;
    /* Elements of each block: `counts[i]`, or `count` if `counts` is NULL. */
    int count;
    const int *counts;
    /*
     * Start of each block, in extents of the type: `places[i]`, or i * count if `places` is NULL.
     */
    const int *places;
    int blocks;
};

struct kumi_blocks {
    /* Address of each block, and its size in bytes. */
    char **at;
    uint64_t *bytes;
    int count;
    /* Memory of all packed blocks, one after another. NULL if they are not packed. */
    char *packed;
};

/*
 * Finds a buffer's blocks. If the datatype must be packed and `is_read` is true, also packs their
 * content. Returns false if there is no memory, a count is negative, or the datatype cannot be
 * packed.
 */
KUMI_HIDDEN bool kumi_blocks_open(struct kumi_blocks *blocks, const struct kumi_communicator *of,
                                  const struct kumi_buffer *buffer, bool is_read);

/* Unpacks blocks that were written. Returns false if the library cannot unpack them. */
KUMI_HIDDEN bool kumi_blocks_write_back(struct kumi_blocks *blocks, const struct kumi_communicator *of,
                                        const struct kumi_buffer *buffer);

/*
 * Copies the blocks, for an in-place collective, and makes `blocks` refer to the copy. The caller
 * frees the returned memory. Returns NULL if there is no memory.
 */
KUMI_HIDDEN char *kumi_blocks_copy(struct kumi_blocks *blocks);

/*
 * Frees the blocks. Packed blocks of a broken communicator are not freed, because its sends may
 * still read them.
 */
KUMI_HIDDEN void kumi_blocks_close(struct kumi_blocks *blocks, const struct kumi_communicator *of);

/*
 * Returns the size of one element in bytes, or 0 for an unknown datatype. Sets `is_plain` if an
 * element is one contiguous run of memory.
 */
KUMI_HIDDEN uint64_t kumi_element_bytes(const struct kumi_abi *abi, kumi_handle type, bool *is_plain);

#endif
