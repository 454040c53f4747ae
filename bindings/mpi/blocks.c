/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds, packs and unpacks the blocks of a collective. */

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"

uint64_t kumi_element_bytes(const struct kumi_abi *abi, kumi_handle type, bool *is_plain)
{
    int bytes = 0, integers, addresses, types, combiner = -1;
    intptr_t lower = 0, extent = 0;
    if (abi->Type_size(type, &bytes) != 0 || bytes < 0 || abi->Type_get_extent(type, &lower, &extent) != 0 ||
        abi->Type_get_envelope(type, &integers, &addresses, &types, &combiner) != 0)
        return 0;
    /*
     * A named type with a hole, such as MPI_DOUBLE_INT, is not one run. In a derived type without
     * holes the elements may have another order than in memory.
     */
    *is_plain = combiner == abi->combiner_named && lower == 0 && extent == bytes;
    return (uint64_t)bytes;
}

static int count_of(const struct kumi_buffer *buffer, int block)
{
    return buffer->counts == NULL ? buffer->count : buffer->counts[block];
}

static char *address_of(const struct kumi_buffer *buffer, int block, intptr_t extent)
{
    intptr_t place = buffer->places == NULL ? (intptr_t)block * buffer->count : buffer->places[block];
    return buffer->at + place * extent;
}

/*
 * Packs or unpacks at MPI_BOTTOM, which MPICH's MPI_Pack refuses. The rank sends the data to itself
 * instead. A lock keeps threads apart, because their messages have the same tag.
 */
static bool pack_at_bottom(const struct kumi_communicator *of, kumi_handle type, int count, void *packed,
                           int bytes, bool is_read)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    const struct kumi_abi *abi = of->abi;
    kumi_handle alone = of->job->alone;
    pthread_mutex_lock(&turn);
    int error = is_read ? abi->Sendrecv(NULL, count, type, 0, 0, packed, bytes, abi->byte, 0, 0, alone,
                                        abi->status_ignore)
                        : abi->Sendrecv(packed, bytes, abi->byte, 0, 0, NULL, count, type, 0, 0, alone,
                                        abi->status_ignore);
    pthread_mutex_unlock(&turn);
    return error == 0;
}

static bool pack_part(const struct kumi_communicator *of, kumi_handle type, char *at, int count, char *packed,
                      int bytes, bool is_read)
{
    const struct kumi_abi *abi = of->abi;
    int position = 0;
    if (at == NULL)
        return pack_at_bottom(of, type, count, packed, bytes, is_read);
    int error = is_read ? abi->Pack(at, count, type, packed, bytes, &position, of->job->inside)
                        : abi->Unpack(packed, bytes, &position, at, count, type, of->job->inside);
    return error == 0 && position == bytes;
}

/* Packs or unpacks a block in parts, because positions in MPI are ints. */
static bool pack(const struct kumi_blocks *blocks, const struct kumi_communicator *of,
                 const struct kumi_buffer *buffer, int block, intptr_t extent, bool is_read)
{
    int count = count_of(buffer, block);
    if (count == 0 || blocks->bytes[block] == 0)
        return true;
    uint64_t element_bytes = blocks->bytes[block] / (uint64_t)count;
    int part_max = (int)(INT_MAX / element_bytes > 0 ? INT_MAX / element_bytes : 1);
    char *packed = blocks->at[block];
    char *at = address_of(buffer, block, extent);
    for (int done = 0; done < count;) {
        int part = count - done < part_max ? count - done : part_max;
        int bytes = (int)((uint64_t)part * element_bytes);
        if (!pack_part(of, buffer->type, at, part, packed, bytes, is_read))
            return false;
        done += part;
        at += part * extent;
        packed += bytes;
    }
    return true;
}

bool kumi_blocks_open(struct kumi_blocks *blocks, const struct kumi_communicator *of,
                      const struct kumi_buffer *buffer, bool is_read)
{
    bool is_plain = false;
    uint64_t element_bytes = kumi_element_bytes(of->abi, buffer->type, &is_plain);
    intptr_t lower = 0, extent = 0;
    *blocks = (struct kumi_blocks){.count = buffer->blocks};
    blocks->at = calloc((size_t)buffer->blocks, sizeof(*blocks->at));
    blocks->bytes = calloc((size_t)buffer->blocks, sizeof(*blocks->bytes));
    if (blocks->at == NULL || blocks->bytes == NULL ||
        of->abi->Type_get_extent(buffer->type, &lower, &extent) != 0)
        return false;
    uint64_t all = 0;
    for (int i = 0; i < buffer->blocks; i++) {
        int count = count_of(buffer, i);
        if (count < 0)
            return false;
        blocks->bytes[i] = (uint64_t)count * element_bytes;
        blocks->at[i] = address_of(buffer, i, extent);
        all += blocks->bytes[i];
    }
    if (is_plain)
        return true;
    blocks->packed = malloc(all + 1);
    if (blocks->packed == NULL)
        return false;
    char *next = blocks->packed;
    for (int i = 0; i < buffer->blocks; i++) {
        blocks->at[i] = next;
        next += blocks->bytes[i];
        if (is_read && !pack(blocks, of, buffer, i, extent, true))
            return false;
    }
    return true;
}

bool kumi_blocks_write_back(struct kumi_blocks *blocks, const struct kumi_communicator *of,
                            const struct kumi_buffer *buffer)
{
    intptr_t lower = 0, extent = 0;
    if (blocks->packed == NULL)
        return true;
    if (of->abi->Type_get_extent(buffer->type, &lower, &extent) != 0)
        return false;
    for (int i = 0; i < buffer->blocks; i++)
        if (!pack(blocks, of, buffer, i, extent, false))
            return false;
    return true;
}

char *kumi_blocks_copy(struct kumi_blocks *blocks)
{
    uint64_t all = 0;
    for (int i = 0; i < blocks->count; i++)
        all += blocks->bytes[i];
    char *copy = malloc(all + 1), *next = copy;
    for (int i = 0; copy != NULL && i < blocks->count; i++) {
        memcpy(next, blocks->at[i], blocks->bytes[i]);
        blocks->at[i] = next;
        next += blocks->bytes[i];
    }
    return copy;
}

void kumi_blocks_close(struct kumi_blocks *blocks, const struct kumi_communicator *of)
{
    free(blocks->at);
    free(blocks->bytes);
    if (!of->is_broken)
        free(blocks->packed);
    *blocks = (struct kumi_blocks){0};
}
