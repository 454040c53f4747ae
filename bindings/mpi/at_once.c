/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counts through the blocks of an all-to-all. */

#include "at_once.h"

/* Longest message in bytes, because MPI counts are ints. */
enum { MESSAGE_BYTES_MAX = 1 << 30 };

/* Returns the size of the block of the next step, and its peer. */
static uint64_t block(const struct kumi_at_once *of, int *peer)
{
    *peer = of->order[of->place];
    return (of->is_sending ? of->out_bytes : of->in_bytes)[*peer];
}

/* Goes to the next block if this one has no more steps. Returns false after the last one. */
static bool find(struct kumi_at_once *of)
{
    int peer, others = of->size - 1;
    if (of->place < others && of->has_begun && of->offset == block(of, &peer)) {
        of->offset = 0;
        of->has_begun = false;
        of->place++;
        if (of->place == others && !of->is_sending) {
            of->is_sending = true;
            of->place = 0;
        }
    }
    return of->place < others;
}

bool kumi_at_once_begin(struct kumi_at_once *of, struct kumi_coll_step *step)
{
    int peer;
    if (!find(of))
        return false;
    uint64_t left = block(of, &peer) - of->offset, size = (uint64_t)of->size;
    uint64_t from = (uint64_t)(of->is_sending ? of->rank : peer);
    uint64_t to = (uint64_t)(of->is_sending ? peer : of->rank);
    *step = (struct kumi_coll_step){.action = of->is_sending ? KUMI_COLL_POST : KUMI_COLL_RECEIVE,
                                    .peer = peer,
                                    .block = from * size + to,
                                    .offset = of->offset,
                                    .bytes = left < MESSAGE_BYTES_MAX ? left : MESSAGE_BYTES_MAX};
    of->offset += step->bytes;
    of->has_begun = true;
    of->open++;
    return true;
}
