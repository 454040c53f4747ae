/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The questions of ranks that wait (past.h), without MPI: functions in its place record the tags of
 * the receives of one rank and of the questions of another.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expect.h"
#include "stall.h"

/* Pairs of calls that are tried, and the most questions of one rank to another. */
enum { PAIRS = 20000, QUESTIONS = KUMI_TAG_LEVELS };

/* Tags of the receives that are posted, by request, and of the questions. */
static int posted[KUMI_TAG_LEVELS], receives, question_tags[QUESTIONS], questions;
/* All questions have an answer. */
static bool is_answered;

static int receive(void *buffer, int count, kumi_handle type, int from, int tag, kumi_handle comm,
                   void *request)
{
    (void)buffer, (void)count, (void)type, (void)from, (void)comm;
    int at = 0;
    while (at < KUMI_TAG_LEVELS && posted[at] != -1)
        at++;
    posted[at] = tag;
    *(uint64_t *)request = (uint64_t)at;
    receives++;
    return 0;
}

static int cancel(void *request)
{
    posted[*(uint64_t *)request] = -1;
    return 0;
}

static int ask(const void *buffer, int count, kumi_handle type, int to, int tag, kumi_handle comm,
               void *request)
{
    (void)buffer, (void)count, (void)type, (void)to, (void)comm, (void)request;
    question_tags[questions++ % QUESTIONS] = tag;
    return 0;
}

static int test(void *request, int *is_complete, void *status)
{
    (void)request, (void)status;
    *is_complete = is_answered;
    return 0;
}

static int no_error(void *request)
{
    (void)request;
    return 0;
}

static int wait_for(void *request, void *status)
{
    (void)status;
    return no_error(request);
}

static const struct kumi_abi ABI = {
    .Irecv = receive,
    .Cancel = cancel,
    .Wait = wait_for,
    .Issend = ask,
    .Test = test,
    .Request_free = no_error,
    .yields = true,
};

/* Returns whether a rank in call `at` answers a question about call `about` by its receives. */
static bool answers(uint64_t at, uint64_t about)
{
    struct kumi_past past = {.calls = at > 2 * KUMI_TAG_CALLS ? at - 2 * KUMI_TAG_CALLS : 0};
    memset(posted, -1, sizeof(posted));
    while (past.calls < at)
        kumi_past_note(&past, &ABI, 3, 0);
    for (int level = 0; level < KUMI_TAG_LEVELS; level++)
        for (int i = 0; i < KUMI_TAG_LEVELS; i++)
            if (posted[i] == kumi_past_tag(3, level, about))
                return true;
    return false;
}

static void claim_answers(void)
{
    bool is_found = true, is_right = true, is_within = true;
    srandom(1);
    for (int i = 0; i < PAIRS; i++) {
        uint64_t call = (uint64_t)random() % 100000, apart = (uint64_t)random() % (KUMI_TAG_CALLS + 1);
        is_found = is_found && (apart == 0 || answers(call + apart, call));
        is_right = is_right && !answers(call, call + apart);
        for (int level = 0; level < KUMI_TAG_LEVELS; level++) {
            int tag = kumi_past_tag(3, level, call);
            is_within = is_within && tag >= kumi_tag(3, KUMI_TAG_PAST) && tag < kumi_tag(4, 0);
        }
    }
    expect_true("a rank up to 1024 calls ahead answers one of the questions", is_found);
    expect_true("a rank up to 1024 calls behind answers none", is_right);
    expect_true("all tags of questions are those of the communicator", is_within);
    struct kumi_past past = {.calls = 1};
    memset(posted, -1, sizeof(posted));
    receives = 0;
    while (past.calls <= 1024)
        kumi_past_note(&past, &ABI, 3, 0);
    expect_true("a rank posts two receives per call, on average", receives <= 2 * 1024);
}

static bool is_peer(const void *context, int peer)
{
    (void)context;
    return peer == 1;
}

/*
 * Waits for a step that completes after `tenths` of a second. Returns the questions until then.
 * `found` receives the rank that will not send any more, or -1.
 */
static int questions_in(struct kumi_communicator *of, int tenths, int *found)
{
    struct kumi_stall stall = {.of = of};
    questions = 0;
    *found = -1;
    for (int i = 0; i < tenths * 256 && *found < 0; i++) {
        *found = kumi_stall_look(&stall, is_peer, NULL);
        if (i % 256 == 0)
            usleep(100000);
    }
    kumi_stall_reset(&stall);
    kumi_stall_end(&stall);
    return questions;
}

int main(void)
{
    int numbers[2] = {3, 4}, ranks[2] = {0, 1};
    struct kumi_job job = {.inside = 0};
    struct kumi_communicator of = {
        .job = &job, .abi = &ABI, .size = 2, .numbers = numbers, .job_ranks = ranks};
    int found;
    claim_answers();
    int first = questions_in(&of, 22, &found);
    expect_true("a plan without progress for more than two seconds asks on each level",
                first == KUMI_TAG_LEVELS && found == -1);
    bool are_right = true;
    for (int level = 0; level < KUMI_TAG_LEVELS; level++)
        are_right = are_right && question_tags[level] == kumi_past_tag(numbers[1], level, 0);
    expect_true("each under the tag of its level", are_right);
    expect_true("plans that take as long do not ask again", questions_in(&of, 22, &found) == 0);
    is_answered = true;
    int again = questions_in(&of, 90, &found);
    expect_true("a plan that takes twice as long asks once, if it is answered", again == 1);
    expect_true("and three seconds later the rank is found", found == 1);
    return expect_result();
}
