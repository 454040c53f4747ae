/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Asks the ranks that a plan waits for whether they are past the call. */

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "stall.h"
#include "tags.h"

/* Polls between two readings of the clock, about 0.1 ms. */
enum { LOOKS_PER_READING = 256 };

/*
 * Polls before the processor is yielded. They take longer than a chunk between hosts. With a
 * processor for each rank, yielding at once made gathers of 64 KiB under MPICH take 40 to 110 µs
 * instead of 10 (docs/perf-log.md, 2026-11-24).
 */
enum { LOOKS_BEFORE_YIELD = 2000 };

/*
 * Time without progress after which a plan asks, in seconds. After the same time without an answer
 * it asks about later calls. A rank that is past the call counts as such after the same time again,
 * because its messages may use another connection than its answer.
 */
static const double PATIENCE_S = 1.0;

/*
 * Questions to one rank. A rank keeps the receives of its last KUMI_PAST_KEPT calls, so it may be
 * too far ahead to answer the question about this call. It answers one of those about every
 * KUMI_PAST_KEPT-th later call. The last one is as many calls ahead as their tags differ, also from
 * the tags that a rank before this call keeps.
 */
enum { QUESTIONS_MAX = KUMI_TAG_CALLS / KUMI_PAST_KEPT - 1 };

struct kumi_question {
    uint64_t requests[QUESTIONS_MAX];
    bool is_open[QUESTIONS_MAX];
    int asked;
    bool is_past;
    /* Time of the first question, and then of the answer, in seconds. */
    double at_s;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Asks a rank whether it is past the call that is `ahead` calls after this one. */
static void ask(const struct kumi_communicator *of, int peer, struct kumi_question *question, int ahead)
{
    int tag = kumi_past_tag(of->numbers[peer], of->past.calls + (uint64_t)ahead);
    question->is_open[question->asked] =
        of->abi->Issend(NULL, 0, of->abi->byte, of->job_ranks[peer], tag, of->job->inside,
                        &question->requests[question->asked]) == 0;
    question->asked++;
}

static bool has_answer(const struct kumi_abi *abi, struct kumi_question *question)
{
    for (int i = 0; i < question->asked; i++) {
        int is_complete = 0;
        if (question->is_open[i] &&
            abi->Test(&question->requests[i], &is_complete, abi->status_ignore) == 0 && is_complete) {
            question->is_open[i] = false;
            return true;
        }
    }
    return false;
}

/*
 * Asks a rank, or checks for its answer. Returns whether it has been past the call for PATIENCE_S.
 */
static bool is_past(struct kumi_stall *stall, int peer, double now)
{
    struct kumi_question *question = &stall->questions[peer];
    if (question->is_past)
        return now - question->at_s > PATIENCE_S;
    if (question->asked == 0) {
        ask(stall->of, peer, question, 0);
        question->at_s = now;
    } else if (has_answer(stall->of->abi, question)) {
        question->is_past = true;
        question->at_s = now;
    } else if (question->asked == 1 && now - question->at_s > PATIENCE_S) {
        while (question->asked < QUESTIONS_MAX)
            ask(stall->of, peer, question, question->asked * KUMI_PAST_KEPT);
    }
    return false;
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
    for (int peer = 0; stall->questions != NULL && peer < stall->of->size; peer++) {
        struct kumi_question *question = &stall->questions[peer];
        for (int i = 0; i < question->asked; i++)
            if (question->is_open[i])
                stall->of->abi->Request_free(&question->requests[i]);
    }
    free(stall->questions);
}
