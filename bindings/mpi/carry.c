/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Executes a collective step by step. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "at_once.h"
#include "carry.h"
#include "flight.h"
#include "marking.h"
#include "stall.h"
#include "tags.h"

enum { ERROR_BYTES = 512 };

/* MPI_ERR_COUNT, which is the same in all libraries. */
enum { MPI_ERR_COUNT = 2 };

/*
 * Index of the first request, the receive of another rank's failure message. It is not a step. It
 * stays posted for the next plan.
 */
enum { NEWS = 0 };

/* One collective that is being executed. */
struct run {
    struct kumi_communicator *of;
    const struct kumi_carried *carried;
    const char *name;
    /* Source of the steps: the rank's part of a plan, or `at_once` if it is NULL. */
    struct kumi_coll_work *work;
    struct kumi_at_once at_once;
    struct kumi_flight flight;
    struct kumi_stall stall;
};

/* Returns the number of the next step to begin now, or -1. */
static int64_t next(struct run *run, struct kumi_coll_step *step)
{
    if (run->work != NULL)
        return run->of->job->planner->work_begin(run->work, step);
    return kumi_at_once_begin(&run->at_once, step) ? 0 : -1;
}

static void finish(struct run *run, int64_t step)
{
    if (run->work != NULL)
        run->of->job->planner->work_complete(run->work, step);
    else
        kumi_at_once_complete(&run->at_once);
}

static bool is_finished(const struct run *run)
{
    return run->work != NULL ? run->of->job->planner->work_is_complete(run->work)
                             : kumi_at_once_is_complete(&run->at_once);
}

static bool is_send(const struct kumi_coll_step *step)
{
    return step->action == KUMI_COLL_SEND || step->action == KUMI_COLL_POST;
}

static char *address(const struct run *run, const struct kumi_coll_step *step)
{
    const struct kumi_carried *carried = run->carried;
    uint64_t block = step->block;
    char **table = is_send(step) ? carried->out : carried->in;
    int operation = carried->equal.block_bytes > 0 ? carried->equal.operation : carried->request.operation;
    if (operation == KUMI_COLL_ALL_TO_ALL) {
        uint64_t size = (uint64_t)run->of->size;
        block = is_send(step) ? block % size : block / size;
    }
    return table[block] + step->offset;
}

static int begin(const struct run *run, struct kumi_begun *begun, void *request)
{
    const struct kumi_communicator *of = run->of;
    const struct kumi_abi *abi = of->abi;
    const struct kumi_coll_step *step = &begun->step;
    kumi_handle inside = of->job->inside;
    int bytes = (int)step->bytes, peer = of->job_ranks[step->peer];
    int own = of->numbers[of->rank], theirs = of->numbers[step->peer];
    begun->scratch = NULL;
    switch (step->action) {
    case KUMI_COLL_SEND:
    case KUMI_COLL_POST:
        /*
         * A send is synchronous, so that it completes when it is received. The window thus counts
         * bytes in flight (ADR 018). A short chunk that no window counts is faster without an
         * answer.
         */
        return (step->action == KUMI_COLL_POST ? abi->Isend : abi->Issend)(
            address(run, step), bytes, abi->byte, peer, kumi_tag(theirs, KUMI_TAG_CHUNK), inside, request);
    case KUMI_COLL_RECEIVE:
        return abi->Irecv(address(run, step), bytes, abi->byte, peer, kumi_tag(own, KUMI_TAG_CHUNK), inside,
                          request);
    case KUMI_COLL_COMBINE:
        begun->scratch = malloc((size_t)bytes + 1);
        if (begun->scratch == NULL)
            return KUMI_MPI_NOTHING_TO_CALL;
        return abi->Irecv(begun->scratch, bytes, abi->byte, peer, kumi_tag(own, KUMI_TAG_CHUNK), inside,
                          request);
    case KUMI_COLL_GRANT:
        return abi->Isend(NULL, 0, abi->byte, peer, kumi_tag(theirs, KUMI_TAG_CONTROL), inside, request);
    default:
        return abi->Irecv(NULL, 0, abi->byte, peer, kumi_tag(own, KUMI_TAG_CONTROL), inside, request);
    }
}

static bool is_receive(const struct kumi_coll_step *step)
{
    return step->action == KUMI_COLL_RECEIVE || step->action == KUMI_COLL_COMBINE;
}

/*
 * Reports a chunk that is shorter than its step, because the sender called with another length. A
 * longer chunk makes the library raise MPI_ERR_TRUNCATE.
 */
static int check_length(const struct run *run, const struct kumi_begun *begun, const char *status)
{
    const struct kumi_abi *abi = run->of->abi;
    int bytes = 0;
    if (!is_receive(&begun->step))
        return 0;
    int error = abi->Get_count(status, abi->byte, &bytes);
    if (error != 0 || bytes == (int)begun->step.bytes)
        return error;
    fprintf(stderr,
            "kumi: rank %d: %s: rank %d sent %d bytes, expected %d: the ranks have different counts\n",
            run->of->rank, run->name, begun->step.peer, bytes, (int)begun->step.bytes);
    return MPI_ERR_COUNT;
}

static int complete(struct run *run, struct kumi_begun *begun, const char *status)
{
    const struct kumi_carried *carried = run->carried;
    int error = check_length(run, begun, status);
    if (error == 0 && begun->scratch != NULL && begun->step.bytes > 0) {
        int elements = (int)(begun->step.bytes / carried->request.element_bytes);
        error = run->of->abi->Reduce_local(begun->scratch, address(run, &begun->step), elements,
                                           carried->type, carried->operation);
    }
    return error;
}

/*
 * Reports a chunk that was longer than its step. The job may end before any other report is
 * written.
 */
static void report_truncated(const struct run *run, int error, const struct kumi_begun *begun)
{
    int class = 0;
    if (!is_receive(&begun->step) || run->of->abi->Error_class(error, &class) != 0 ||
        class != run->of->abi->error_truncate)
        return;
    fprintf(
        stderr,
        "kumi: rank %d: %s: rank %d sent more than the expected %d bytes: the ranks have different counts\n",
        run->of->rank, run->name, begun->step.peer, (int)begun->step.bytes);
}

/*
 * Returns the error of the first failed request if MPI_Testsome reports that the errors are in the
 * statuses. Otherwise returns `error`.
 */
static int error_in(const struct run *run, int error, int finished)
{
    const struct kumi_abi *abi = run->of->abi;
    for (int i = 0; error == abi->error_in_status && i < finished; i++) {
        int own;
        memcpy(&own, run->flight.statuses + (size_t)i * abi->status_bytes + abi->status_error_at,
               sizeof(own));
        if (own != 0) {
            report_truncated(run, own, &run->flight.begun[run->flight.finished[i]]);
            return own;
        }
    }
    return error;
}

static int begin_all(struct run *run)
{
    const struct kumi_abi *abi = run->of->abi;
    struct kumi_flight *flight = &run->flight;
    for (;;) {
        if (!kumi_flight_room(flight, abi))
            return KUMI_MPI_NOTHING_TO_CALL;
        struct kumi_begun *begun = &flight->begun[flight->count];
        begun->number = next(run, &begun->step);
        if (begun->number < 0)
            return 0;
        int error = begin(run, begun, flight->requests + (size_t)flight->count * abi->request_bytes);
        if (error != 0) {
            free(begun->scratch);
            return error;
        }
        flight->count++;
    }
}

/*
 * Completes the steps that MPI_Testsome returned. If there are several errors, the first is
 * returned.
 */
static int complete_all(struct run *run, int finished, int error)
{
    const struct kumi_abi *abi = run->of->abi;
    struct kumi_flight *flight = &run->flight;
    error = error == 0 ? 0 : error_in(run, error, finished);
    for (int i = 0; i < finished; i++) {
        struct kumi_begun *begun = &flight->begun[flight->finished[i]];
        if (flight->finished[i] == NEWS) {
            fprintf(stderr, "kumi: rank %d: %s: failed on another rank\n", run->of->rank, run->name);
            run->of->is_told = true;
            error = error == 0 ? KUMI_MPI_NOTHING_TO_CALL : error;
            continue;
        }
        if (error == 0)
            error = complete(run, begun, flight->statuses + (size_t)i * abi->status_bytes);
        if (error == 0)
            finish(run, begun->number);
        free(begun->scratch);
        begun->number = -1;
    }
    kumi_flight_close_up(flight, abi->request_bytes);
    return error;
}

static bool is_awaited(const void *context, int peer)
{
    const struct kumi_flight *flight = context;
    for (int i = NEWS + 1; i < flight->count; i++)
        if (flight->begun[i].step.peer == peer)
            return true;
    return false;
}

/* Handles a poll in which no step completed. Returns an error if no step will complete any more. */
static int stand_still(struct run *run)
{
    int peer = kumi_stall_look(&run->stall, is_awaited, &run->flight);
    if (peer < 0)
        return 0;
    fprintf(
        stderr,
        "kumi: rank %d: %s: rank %d has finished this call, but sent less than expected: the ranks have different "
        "counts or datatypes\n",
        run->of->rank, run->name, peer);
    return MPI_ERR_COUNT;
}

static int carry_out(struct run *run)
{
    const struct kumi_abi *abi = run->of->abi;
    struct kumi_flight *flight = &run->flight;
    if (!kumi_flight_room(flight, abi))
        return KUMI_MPI_NOTHING_TO_CALL;
    memcpy(flight->requests, run->of->failure, abi->request_bytes);
    flight->begun[NEWS] = (struct kumi_begun){.number = INT64_MAX};
    flight->count = 1;
    while (!is_finished(run)) {
        int error = begin_all(run), finished = 0;
        if (error != 0)
            return error;
        error = abi->Testsome(flight->count, flight->requests, &finished, flight->finished, flight->statuses);
        if (error == 0 && finished < 0)
            return KUMI_MPI_NOTHING_TO_CALL;
        if (error != 0 && error != abi->error_in_status)
            return error;
        if (finished > 0)
            kumi_stall_reset(&run->stall);
        error = finished > 0 ? complete_all(run, finished, error) : stand_still(run);
        if (error != 0)
            return error;
    }
    return 0;
}

void kumi_break(struct kumi_communicator *of)
{
    of->is_broken = true;
    for (int peer = 0; !of->is_told && peer < of->size; peer++) {
        uint64_t request[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)];
        if (peer != of->rank &&
            of->abi->Isend(NULL, 0, of->abi->byte, of->job_ranks[peer],
                           kumi_tag(of->numbers[peer], KUMI_TAG_FAILURE), of->job->inside, request) == 0)
            of->abi->Request_free(request);
    }
}

/*
 * Cleans up after an error. Receives are cancelled, so none writes to the program's memory later.
 * Sends cannot be cancelled, so the memory that they read is not freed.
 */
static void abandon(struct run *run)
{
    const struct kumi_abi *abi = run->of->abi;
    kumi_break(run->of);
    for (int i = NEWS + 1; i < run->flight.count; i++) {
        struct kumi_begun *begun = &run->flight.begun[i];
        void *request = run->flight.requests + (size_t)i * abi->request_bytes;
        if (is_send(&begun->step) || begun->step.action == KUMI_COLL_GRANT)
            continue;
        if (abi->Cancel(request) == 0)
            abi->Wait(request, abi->status_ignore);
        free(begun->scratch);
    }
}

/*
 * Opens the source of the steps. Returns false, with a message, if the collective cannot be
 * planned.
 */
static bool open_steps(struct run *run)
{
    char message[ERROR_BYTES] = "";
    const struct kumi_communicator *of = run->of;
    const struct kumi_carried *carried = run->carried;
    const struct kumi_planner *planner = of->job->planner;
    if (carried->is_at_once) {
        run->at_once = (struct kumi_at_once){.rank = of->rank,
                                             .size = of->size,
                                             .order = of->sending_order,
                                             .out_bytes = carried->out_bytes,
                                             .in_bytes = carried->in_bytes};
        return true;
    }
    if (carried->equal.block_bytes > 0) {
        struct kumi_coll_equal equal = carried->equal;
        equal.out_bytes = carried->out_bytes;
        equal.in_bytes = carried->in_bytes;
        run->work = planner->work_equal(of->ranks, of->rank, &equal, message, sizeof(message));
    } else {
        run->work = planner->work_new(of->ranks, of->rank, &carried->request, message, sizeof(message));
    }
    if (run->work == NULL)
        fprintf(stderr, "kumi: rank %d: %s: %s\n", of->rank, run->name, message);
    return run->work != NULL;
}

int kumi_carry(struct kumi_communicator *of, const struct kumi_carried *carried, const char *name)
{
    struct run run = {.of = of, .carried = carried, .name = name, .stall = {.of = of}};
    if (!open_steps(&run)) {
        kumi_break(of);
        return KUMI_MPI_NOTHING_TO_CALL;
    }
    int error = carry_out(&run);
    kumi_stall_end(&run.stall);
    if (error != 0)
        abandon(&run);
    kumi_flight_end(&run.flight);
    if (run.work != NULL)
        of->job->planner->work_free(run.work);
    return error;
}
