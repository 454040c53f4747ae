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
 * Least time without progress after which a plan asks, in seconds. After the same time without an
 * answer it asks about later calls. By judgement.
 */
static const double PATIENCE_S = 1.0;

/*
 * A plan asks only after this multiple of the longest stall so far, up to PATIENCE_MAX_S. A block
 * may take longer than PATIENCE_S, and a question that is not answered stays in the memory of the
 * rank that was asked. So a job has few of them, however long it runs. By judgement.
 */
static const double PATIENCE_FACTOR = 2.0, PATIENCE_MAX_S = 600.0;

/*
 * Time after which a rank that is past the call counts as such, in seconds. Its messages may use
 * another connection than its answer, and wait in a buffer. By judgement: in this time, 1 MB leaves
 * at 2.8 Mb/s. On one connection, messages and answer keep their order.
 */
static const double SETTLED_S = 3.0;

/* Longest time without a completed step after which one completed, among those asked about. */
static _Atomic double longest_stall_s;

struct kumi_question {
    uint64_t requests[KUMI_TAG_LEVELS];
    bool is_open[KUMI_TAG_LEVELS];
    /* Levels that were asked (past.h). */
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

static double patience_s(void)
{
    double patience = PATIENCE_FACTOR * longest_stall_s;
    if (patience < PATIENCE_S)
        return PATIENCE_S;
    return patience < PATIENCE_MAX_S ? patience : PATIENCE_MAX_S;
}

/* Asks a rank on the next level whether it is past the call. */
static void ask(const struct kumi_communicator *of, int peer, struct kumi_question *question)
{
    int tag = kumi_past_tag(of->numbers[peer], question->asked, of->past.calls);
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
 * Asks a rank, or checks for its answer. Returns whether it has been past the call long enough.
 */
static bool is_past(struct kumi_stall *stall, int peer, double now)
{
    struct kumi_question *question = &stall->questions[peer];
    if (question->is_past)
        return now - question->at_s > SETTLED_S;
    if (question->asked == 0) {
        ask(stall->of, peer, question);
        question->at_s = now;
    } else if (has_answer(stall->of->abi, question)) {
        question->is_past = true;
        question->at_s = now;
    } else if (question->asked == 1 && now - question->at_s > PATIENCE_S) {
        while (question->asked < KUMI_TAG_LEVELS)
            ask(stall->of, peer, question);
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
    if (now - stall->since_s < patience_s())
        return -1;
    if (stall->questions == NULL)
        stall->questions = calloc((size_t)stall->of->size, sizeof(*stall->questions));
    for (int peer = 0; stall->questions != NULL && peer < stall->of->size; peer++)
        if (is_awaited(context, peer) && is_past(stall, peer, now))
            return peer;
    return -1;
}

void kumi_stall_learn(const struct kumi_stall *stall)
{
    double stall_s = now_s() - stall->since_s;
    if (stall->looks > 0 && stall_s > longest_stall_s)
        longest_stall_s = stall_s;
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
