/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Asks the ranks that a plan waits for whether they are past the call. */

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "stall.h"

/* Polls between two readings of the clock, about 0.1 ms. */
enum { LOOKS_PER_READING = 256 };

/*
 * Polls before the processor is yielded. They take longer than a chunk between hosts. With a
 * processor for each rank, yielding at once made gathers of 64 KiB under MPICH take 40 to 110 µs
 * instead of 10 (docs/perf-log.md, 2026-11-24).
 */
enum { LOOKS_BEFORE_YIELD = 2000 };

/*
 * Time without progress after which a plan asks, in seconds. A rank that is past the call counts as
 * such after the same time again, because its messages may use another connection than its answer.
 */
static const double PATIENCE_S = 1.0;

struct kumi_question {
    uint64_t request;
    enum { UNASKED, ASKED, PAST } state;
    /* Time at which the answer was seen, in seconds. */
    double past_s;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/*
 * Asks a rank, or checks for its answer. Returns whether it has been past the call for PATIENCE_S.
 */
static bool is_past(struct kumi_stall *stall, int peer, double now)
{
    struct kumi_communicator *of = stall->of;
    struct kumi_question *question = &stall->questions[peer];
    int is_complete = 0;
    if (question->state == UNASKED) {
        int tag = kumi_past_tag(of->numbers[peer], of->past.calls);
        if (of->abi->Issend(NULL, 0, of->abi->byte, of->job_ranks[peer], tag, of->job->inside,
                            &question->request) == 0)
            question->state = ASKED;
    } else if (question->state == ASKED &&
               of->abi->Test(&question->request, &is_complete, of->abi->status_ignore) == 0 && is_complete) {
        question->state = PAST;
        question->past_s = now;
    }
    return question->state == PAST && now - question->past_s > PATIENCE_S;
}

int kumi_stall_look(struct kumi_stall *stall, bool (*is_awaited)(const void *, int), const void *context)
{
    /* Ranks may share a processor, so another one gets a turn. */
    if (!stall->of->abi->yields && stall->looks > LOOKS_BEFORE_YIELD)
        sched_yield();
    if (stall->looks++ % LOOKS_PER_READING != 0)
        return -1;
    double now = now_s();
    if (stall->looks == 1)
        stall->since_s = now;
    if (now - stall->since_s < PATIENCE_S)
        return -1;
    if (stall->questions == NULL)
        stall->questions = calloc((size_t)stall->of->size, sizeof(*stall->questions));
    for (int peer = 0; stall->questions != NULL && peer < stall->of->size; peer++)
        if (is_awaited(context, peer) && is_past(stall, peer, now))
            return peer;
    return -1;
}

void kumi_stall_end(struct kumi_stall *stall)
{
    for (int peer = 0; stall->questions != NULL && peer < stall->of->size; peer++)
        if (stall->questions[peer].state == ASKED)
            stall->of->abi->Request_free(&stall->questions[peer].request);
    free(stall->questions);
}
