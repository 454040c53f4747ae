/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The steps of an all-to-all that sends all blocks at once (at_once.h), without MPI. */
#include <stdint.h>

#include "at_once.h"
#include "expect.h"

/* Longest message of a step (at_once.c), and a block that needs two. */
#define MESSAGE_BYTES_MAX (1ULL << 30)
#define LONG_BYTES (MESSAGE_BYTES_MAX + 7)

enum { RANKS = 4, RANK = 1, STEPS_MAX = 16 };

int main(void)
{
    const int order[] = {3, 0, 2};
    const uint64_t out_bytes[RANKS] = {0, 9, LONG_BYTES, 5}, in_bytes[RANKS] = {LONG_BYTES, 9, 0, 6};
    struct kumi_at_once of = {
        .rank = RANK, .size = RANKS, .out_bytes = out_bytes, .in_bytes = in_bytes, .order = order};
    const struct kumi_coll_step expected[] = {
        {.action = KUMI_COLL_RECEIVE, .peer = 3, .block = 3 * RANKS + RANK, .bytes = 6},
        {.action = KUMI_COLL_RECEIVE, .peer = 0, .block = RANK, .bytes = MESSAGE_BYTES_MAX},
        {.action = KUMI_COLL_RECEIVE, .peer = 0, .block = RANK, .offset = MESSAGE_BYTES_MAX, .bytes = 7},
        {.action = KUMI_COLL_RECEIVE, .peer = 2, .block = 2 * RANKS + RANK},
        {.action = KUMI_COLL_POST, .peer = 3, .block = RANK * RANKS + 3, .bytes = 5},
        {.action = KUMI_COLL_POST, .peer = 0, .block = RANK * RANKS},
        {.action = KUMI_COLL_POST, .peer = 2, .block = RANK * RANKS + 2, .bytes = MESSAGE_BYTES_MAX},
        {.action = KUMI_COLL_POST,
         .peer = 2,
         .block = RANK * RANKS + 2,
         .offset = MESSAGE_BYTES_MAX,
         .bytes = 7},
    };
    const int count = sizeof(expected) / sizeof(*expected);
    struct kumi_coll_step step;
    int steps = 0;
    bool are_equal = true, is_early = false;
    while (steps < STEPS_MAX && kumi_at_once_begin(&of, &step)) {
        const struct kumi_coll_step *right = &expected[steps < count ? steps : 0];
        are_equal = are_equal && step.action == right->action && step.peer == right->peer &&
                    step.block == right->block && step.offset == right->offset && step.bytes == right->bytes;
        steps++;
    }
    expect_true("all receives, then all sends, in the order given, and empty blocks too",
                are_equal && steps == count);
    for (int i = 0; i < count; i++) {
        is_early = is_early || kumi_at_once_is_complete(&of);
        kumi_at_once_complete(&of);
    }
    expect_true("the call is complete after its last step, and not before",
                kumi_at_once_is_complete(&of) && !is_early);
    return expect_result();
}
