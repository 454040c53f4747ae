/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Compares the lengths of calls between ranks in the background. */

#include "history.h"

/* Returns the complement of the bit of a value's class. 0 is in the class of 1. */
static uint64_t class_of(uint64_t value)
{
    return value == 0 ? ~(uint64_t)1 : ~((uint64_t)1 << (63 - __builtin_clzll(value)));
}

int kumi_history_look(struct kumi_history *history, const struct kumi_abi *abi)
{
    if (!history->is_pending)
        return 0;
    history->is_pending = false;
    int error = abi->Wait(history->request, abi->status_ignore);
    if (error != 0)
        return error;
    uint64_t blocks = ~history->all.block_max, totals = ~history->all.total;
    uint64_t block_bytes = (uint64_t)2 << (63 - __builtin_clzll(blocks | 1));
    bool is_news = block_bytes != history->block_bytes;
    history->block_bytes = block_bytes;
    history->total_bytes_min = totals & (~totals + 1);
    if (is_news)
        history->distance = 1;
    else if (history->distance < KUMI_HISTORY_DISTANCE_MAX)
        history->distance *= 2;
    history->wait = history->distance - 1;
    return 0;
}

int kumi_history_note(struct kumi_history *history, const struct kumi_abi *abi, kumi_handle comm,
                      uint64_t block_max, uint64_t total)
{
    if (history->wait > 0) {
        history->wait--;
        return 0;
    }
    history->own = (struct kumi_lengths){class_of(block_max), class_of(total)};
    int error = abi->Iallreduce(&history->own, &history->all, sizeof(history->own), abi->byte, abi->bit_and,
                                comm, history->request);
    history->is_pending = error == 0;
    return error;
}

void kumi_history_end(struct kumi_history *history, const struct kumi_abi *abi)
{
    if (history->is_pending)
        abi->Wait(history->request, abi->status_ignore);
    history->is_pending = false;
}
