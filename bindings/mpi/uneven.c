/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Collectives in which each rank knows only its own lengths: alltoallv, gatherv, scatterv.
 * They follow the plan for blocks of one length, so ranks need not exchange lengths. That length is
 * the power of two above the longest block of an earlier call.
 */

#include "judge.h"
#include "moves.h"

/*
 * An alltoallv is planned if each rank sends at least 1/DENSE_PART of the bytes that blocks of full
 * length would have. With fewer, most control messages would concern empty blocks.
 */
enum { DENSE_PART = 4 };

/*
 * Limits of an alltoallv with a plan of its own, for which all lengths are exchanged: at most this
 * many ranks, and blocks of at least this many bytes. 32 ranks exchange 8 KiB and plan for 3 ms.
 * The transfer of blocks of 64 KiB takes 17 ms at 1 Gb/s.
 */
enum { EXACT_RANKS_MAX = 32, EXACT_BLOCK_BYTES_MIN = 64 << 10 };

/*
 * Returns whether the call is planned, as an earlier call of this history was long. Records this
 * call's lengths for later ones. On an error, returns true with the error in the call's result.
 */
static bool is_planned(struct call *call, struct kumi_history *history, uint64_t block_max, uint64_t total)
{
    struct kumi_communicator *of = call->of;
    int error = kumi_history_look(history, of->abi);
    if (error == 0)
        error = kumi_history_note(history, of->abi, of->comm, block_max, total);
    if (error != 0) {
        kumi_failed(call, "ranks cannot compare their block lengths", error);
        return true;
    }
    /* The longest block was at least half of `block_bytes`. */
    uint64_t bytes = history->block_bytes / 2;
    return bytes > 1 && kumi_is_long(call, bytes, KUMI_BLOCK_BYTES_MIN) && kumi_is_chosen(call, bytes);
}

/*
 * Returns the longest block of a buffer, and sets `total` to the sum of its blocks, both in
 * elements.
 */
static uint64_t longest(const struct kumi_buffer *buffer, uint64_t *total)
{
    uint64_t most = 0;
    *total = 0;
    for (int i = 0; i < buffer->blocks; i++) {
        uint64_t count = (uint64_t)(buffer->counts == NULL ? buffer->count : buffer->counts[i]);
        *total += count;
        most = count > most ? count : most;
    }
    return most;
}

/* Executes an all-to-all by a plan for the actual lengths, which the ranks exchange. */
static void exchange_exactly(struct call *call, struct kumi_exchange *both, uint64_t element_bytes)
{
    const struct kumi_communicator *of = call->of;
    const struct kumi_buffer *sent = both->in_place ? &both->to : &both->from;
    size_t ranks = (size_t)of->size;
    uint64_t row[EXACT_RANKS_MAX] = {0}, all[EXACT_RANKS_MAX * EXACT_RANKS_MAX];
    for (size_t i = 0; i < ranks; i++)
        row[i] = (uint64_t)sent->counts[i] * element_bytes;
    int bytes = (int)(ranks * sizeof(*row));
    int error = of->abi->Allgather(row, bytes, of->abi->byte, all, bytes, of->abi->byte, of->comm);
    if (error != 0) {
        kumi_failed(call, "ranks cannot exchange their block lengths", error);
        return;
    }
    kumi_exchange(call, both,
                  (struct kumi_carried){.request = {.operation = KUMI_COLL_ALL_TO_ALL,
                                                    .bytes = all,
                                                    .blocks = ranks * ranks,
                                                    .element_bytes = 1}});
}

bool kumi_alltoallv(struct call *call)
{
    struct kumi_communicator *of = call->of;
    struct kumi_exchange both = {.from = buffers(call, 0, of->size),
                                 .to = buffers(call, 4, of->size),
                                 .in_place = is_in_place(call, 0)};
    bool is_plain;
    if (!may_exchange(call))
        return false;
    if (!kumi_is_valid(of->abi, &both.to) || (!both.in_place && !kumi_is_valid(of->abi, &both.from)))
        return false;
    /* In place, a rank sends to each rank as much as it receives from it. */
    const struct kumi_buffer *sent = both.in_place ? &both.to : &both.from;
    uint64_t element_bytes = kumi_element_bytes(of->abi, sent->type, &is_plain), total;
    uint64_t most = longest(sent, &total);
    struct kumi_history *history = &of->histories[KUMI_HISTORY_ALLTOALLV];
    if (!is_planned(call, history, most * element_bytes, total * element_bytes))
        return false;
    uint64_t full = history->block_bytes / 2 * (uint64_t)(of->size - 1);
    if (call->result == 0 && call->way == KUMI_BY_PLAN && history->total_bytes_min < full / DENSE_PART)
        return false;
    if (!kumi_open(call))
        return false;
    if (call->result == 0 && !both.in_place)
        call->result = kumi_judge_buffers(call, &both.from, &both.to);
    if (call->result != 0)
        return true;
    /* All ranks have compared the same lengths, so they decide alike. */
    if (call->way == KUMI_BY_PLAN && of->size <= EXACT_RANKS_MAX &&
        history->block_bytes / 2 >= EXACT_BLOCK_BYTES_MIN)
        exchange_exactly(call, &both, element_bytes);
    else
        kumi_exchange(call, &both,
                      (struct kumi_carried){
                          .equal = {.operation = KUMI_COLL_ALL_TO_ALL, .block_bytes = history->block_bytes},
                          .is_at_once = call->way == KUMI_AT_ONCE});
    return true;
}

static bool rooted_uneven(struct call *call, struct kumi_history *history, bool is_gather, int many_at,
                          int one_at)
{
    struct kumi_communicator *of = call->of;
    struct kumi_rooted rooted = {.root = integer(call, 7), .is_gather = is_gather};
    if (!is_root_right(call, rooted.root))
        return false;
    bool is_root = of->rank == rooted.root, is_plain;
    rooted.one = buffer(call, one_at, 1);
    rooted.in_place = is_root && is_in_place(call, one_at);
    if (is_root)
        rooted.many = buffers(call, many_at, of->size);
    if ((!rooted.in_place && !kumi_is_valid(of->abi, &rooted.one)) ||
        (is_root && !kumi_is_valid(of->abi, &rooted.many)))
        return false;
    const struct kumi_buffer *known = is_root ? &rooted.many : &rooted.one;
    uint64_t element_bytes = kumi_element_bytes(of->abi, known->type, &is_plain), total;
    uint64_t most = longest(known, &total);
    if (!is_planned(call, history, most * element_bytes, total * element_bytes) || !kumi_open(call))
        return false;
    if (call->result == 0 && is_root && !rooted.in_place)
        call->result = kumi_judge_buffers(call, &rooted.many, &rooted.one);
    if (call->result == 0)
        kumi_rooted(call, &rooted, (struct kumi_carried){.equal = {.block_bytes = history->block_bytes}});
    return true;
}

bool kumi_gatherv(struct call *call)
{
    return rooted_uneven(call, &call->of->histories[KUMI_HISTORY_GATHERV], true, 3, 0);
}

bool kumi_scatterv(struct call *call)
{
    return rooted_uneven(call, &call->of->histories[KUMI_HISTORY_SCATTERV], false, 0, 4);
}
