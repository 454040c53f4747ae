/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Carries a planned collective out. */

#include <stdio.h>
#include <stdlib.h>

#include "carry.h"
#include "marking.h"

/* Messages of one communicator that is used for nothing else: pieces, and words without content. */
enum { TAG_PIECE = 1, TAG_WORD = 2 };

enum { ERROR_BYTES = 512 };

/* Less than the least whole piece of a plan. */
enum { EAGER_BYTES = 8 << 10 };

/* What is under way: requests side by side, as MPI_Waitsome takes them, and what each is of. */
struct under_way {
    char *requests;
    struct begun {
        int64_t number;
        struct kumi_coll_step step;
        /* What is to be combined when it has come. */
        char *scratch;
    } *begun;
    int *finished;
    int count, room;
};

static bool make_room(struct under_way *way, size_t request_bytes)
{
    if (way->count < way->room)
        return true;
    int room = way->room == 0 ? 64 : 2 * way->room;
    char *requests = realloc(way->requests, (size_t)room * request_bytes);
    if (requests != NULL)
        way->requests = requests;
    struct begun *begun = realloc(way->begun, (size_t)room * sizeof(*begun));
    if (begun != NULL)
        way->begun = begun;
    int *finished = realloc(way->finished, (size_t)room * sizeof(*finished));
    if (finished != NULL)
        way->finished = finished;
    if (requests == NULL || begun == NULL || finished == NULL)
        return false;
    way->room = room;
    return true;
}

static char *address(const struct kumi_communicator *of, const struct kumi_carried *carried,
                     const struct kumi_coll_step *step)
{
    uint64_t block = step->block;
    char **table = step->action == KUMI_COLL_SEND ? carried->out : carried->in;
    if (carried->asked.operation == KUMI_COLL_ALL_TO_ALL) {
        uint64_t size = (uint64_t)of->size;
        block = step->action == KUMI_COLL_SEND ? block % size : block / size;
    }
    return table[block] + step->offset;
}

static int begin(const struct kumi_communicator *of, const struct kumi_carried *carried,
                 struct begun *begun, void *request)
{
    const struct kumi_abi *abi = of->abi;
    const struct kumi_coll_step *step = &begun->step;
    int bytes = (int)step->bytes;
    begun->scratch = NULL;
    switch (step->action) {
    case KUMI_COLL_SEND:
        /* Over when it is received: the window counts what is on its way. What is short does not count, and is
         * quicker if nobody answers. */
        if (step->bytes < EAGER_BYTES)
            return abi->Isend(address(of, carried, step), bytes, abi->byte, step->peer, TAG_PIECE,
                              of->inside, request);
        return abi->Issend(address(of, carried, step), bytes, abi->byte, step->peer, TAG_PIECE,
                           of->inside, request);
    case KUMI_COLL_RECEIVE:
        return abi->Irecv(address(of, carried, step), bytes, abi->byte, step->peer, TAG_PIECE,
                          of->inside, request);
    case KUMI_COLL_COMBINE:
        begun->scratch = malloc((size_t)bytes + 1);
        if (begun->scratch == NULL)
            return KUMI_MPI_NOTHING_TO_CALL;
        return abi->Irecv(begun->scratch, bytes, abi->byte, step->peer, TAG_PIECE, of->inside,
                          request);
    case KUMI_COLL_TELL:
        return abi->Isend(NULL, 0, abi->byte, step->peer, TAG_WORD, of->inside, request);
    default:
        return abi->Irecv(NULL, 0, abi->byte, step->peer, TAG_WORD, of->inside, request);
    }
}

static int end(const struct kumi_communicator *of, const struct kumi_carried *carried,
               struct begun *begun)
{
    if (begun->scratch == NULL)
        return 0;
    if (begun->step.bytes == 0) {
        free(begun->scratch);
        return 0;
    }
    int elements = (int)(begun->step.bytes / carried->asked.element_bytes);
    int error = of->abi->Reduce_local(begun->scratch, address(of, carried, &begun->step), elements,
                                      carried->type, carried->operation);
    free(begun->scratch);
    return error;
}

static int run(const struct kumi_communicator *of, const struct kumi_carried *carried,
               struct kumi_coll_work *work, struct under_way *way)
{
    const struct kumi_planner *planner = of->planner;
    const size_t request_bytes = of->abi->request_bytes;
    while (!planner->work_is_over(work)) {
        for (;;) {
            if (!make_room(way, request_bytes))
                return KUMI_MPI_NOTHING_TO_CALL;
            struct begun *begun = &way->begun[way->count];
            begun->number = planner->work_begin(work, &begun->step);
            if (begun->number < 0)
                break;
            int error = begin(of, carried, begun, way->requests + (size_t)way->count * request_bytes);
            if (error != 0)
                return error;
            way->count++;
        }
        int finished = 0;
        int error = of->abi->Waitsome(way->count, way->requests, &finished, way->finished,
                                      of->abi->statuses_ignore);
        if (error != 0)
            return error;
        if (finished <= 0)
            return KUMI_MPI_NOTHING_TO_CALL;
        for (int i = 0; i < finished; i++) {
            struct begun *begun = &way->begun[way->finished[i]];
            error = end(of, carried, begun);
            if (error != 0)
                return error;
            planner->work_over(work, begun->number);
            begun->number = -1;
        }
        /* Those that are left close up, in their order. */
        int left = 0;
        for (int i = 0; i < way->count; i++) {
            if (way->begun[i].number < 0)
                continue;
            if (left != i) {
                way->begun[left] = way->begun[i];
                char *to = way->requests + (size_t)left * request_bytes;
                const char *from = way->requests + (size_t)i * request_bytes;
                for (size_t byte = 0; byte < request_bytes; byte++)
                    to[byte] = from[byte];
            }
            left++;
        }
        way->count = left;
    }
    return 0;
}

int kumi_carry(const struct kumi_communicator *of, const struct kumi_carried *carried)
{
    char message[ERROR_BYTES] = "";
    struct kumi_coll_work *work = of->planner->work_new(of->ranks, of->rank, &carried->asked,
                                                        message, sizeof(message));
    if (work == NULL) {
        fprintf(stderr, "kumi: rank %d: %s\n", of->rank, message);
        return KUMI_MPI_NOTHING_TO_CALL;
    }
    struct under_way way = {0};
    int error = run(of, carried, work, &way);
    free(way.requests);
    free(way.begun);
    free(way.finished);
    of->planner->work_free(work);
    return error;
}
