/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Where a collective's blocks are in memory. Blocks of derived datatypes are packed, and
 * unpacked at the end. */
#ifndef KUMI_MPI_BLOCKS_H
#define KUMI_MPI_BLOCKS_H

#include "communicator.h"

/* One buffer argument of a collective, with its counts. */
struct kumi_buffer {
    char *at;
    kumi_handle type;
    /* Elements of each block: `counts[i]`, or `count` where counts is NULL. */
    int count;
    const int *counts;
    /* Where each block begins, in extents: `places[i]`, or i * count where places is NULL. */
    const int *places;
    int blocks;
};

struct kumi_blocks {
    /* Of each block, its address and its bytes. */
    char **at;
    uint64_t *bytes;
    int count;
    /* If packed: all of them, behind each other. */
    char *packed;
};

/* Looks at a buffer's blocks; `is_read` packs what is there. False if memory or the datatype is
 * lacking. */
KUMI_HIDDEN bool kumi_blocks_open(struct kumi_blocks *blocks, const struct kumi_communicator *of,
                                  const struct kumi_buffer *buffer, bool is_read);

/* Unpacks blocks that were written. */
KUMI_HIDDEN bool kumi_blocks_write_back(struct kumi_blocks *blocks,
                                        const struct kumi_communicator *of,
                                        const struct kumi_buffer *buffer);

/* Goes on with a copy of the blocks, for a collective in place: to be freed after, NULL without
 * memory for it. */
KUMI_HIDDEN char *kumi_blocks_copy(struct kumi_blocks *blocks);

/* Packed blocks of a broken communicator are lost: its sends may still read them. */
KUMI_HIDDEN void kumi_blocks_close(struct kumi_blocks *blocks, const struct kumi_communicator *of);

/* Bytes of one element; 0 of an unknown datatype. `is_plain` says that an element is one run of
 * memory. */
KUMI_HIDDEN uint64_t kumi_element_bytes(const struct kumi_abi *abi, kumi_handle type, bool *is_plain);

#endif
