/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Keeps the state of a communicator in an attribute of it. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "communicator.h"
#include "marking.h"
#include "tags.h"

enum { ERROR_BYTES = 512 };

/* Attribute of communicators that are left to the library. */
static struct kumi_communicator left_alone;

static void release(struct kumi_communicator *of)
{
    if (of->ranks != NULL)
        of->job->planner->ranks_free(of->ranks);
    bool has_number = of->numbers != NULL && of->numbers[of->rank] >= 0;
    if (has_number && !of->is_told && of->abi->Cancel(of->failure) == 0)
        of->abi->Wait(of->failure, of->abi->status_ignore);
    kumi_past_end(&of->past, of->abi);
    /*
     * The number of a broken communicator is not reused, because messages with it may still arrive.
     */
    if (has_number && !of->is_broken)
        kumi_tag_give_back(of->numbers[of->rank]);
    free(of->numbers);
    free(of->job_ranks);
    free(of->sending_order);
    free(of);
}

/* Completes the nonblocking collectives of this library. */
static void settle(struct kumi_communicator *of)
{
    for (int i = 0; i < KUMI_HISTORIES; i++)
        kumi_history_end(&of->histories[i], of->abi);
    kumi_trials_end(&of->trials, of->abi);
}

static int forget(kumi_handle comm, int key, void *attribute, void *extra)
{
    (void)comm, (void)key, (void)extra;
    struct kumi_communicator *of = attribute;
    if (of == &left_alone)
        return 0;
    settle(of);
    release(of);
    return 0;
}

/* A duplicate of the communicator gets a state of its own at its first collective. */
static int do_not_copy(kumi_handle comm, int key, void *extra, void *in, void *out, int *is_kept)
{
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *is_kept = 0;
    return 0;
}

/* Returns the key of the attribute, or -1. */
static int key(const struct kumi_abi *abi)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    static int made = -1;
    int now = __atomic_load_n(&made, __ATOMIC_ACQUIRE);
    if (now != -1)
        return now;
    pthread_mutex_lock(&making);
    now = made;
    if (now == -1 && abi->Comm_create_keyval(do_not_copy, forget, &now, NULL) != 0)
        now = -1;
    __atomic_store_n(&made, now, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&making);
    return now;
}

/*
 * Finds each rank's rank in the job. Returns false if a rank is outside the job: spawned,
 * connected, or of another session.
 */
static bool find_job_ranks(struct kumi_communicator *of)
{
    const struct kumi_abi *abi = of->abi;
    kumi_handle group, world;
    int *own = calloc((size_t)of->size, sizeof(*own));
    of->job_ranks = calloc((size_t)of->size, sizeof(*of->job_ranks));
    bool is_inside = own != NULL && of->job_ranks != NULL;
    if (is_inside && abi->Comm_group(of->comm, &group) == 0) {
        for (int i = 0; i < of->size; i++)
            own[i] = i;
        is_inside = abi->Comm_group(abi->world, &world) == 0;
        if (is_inside) {
            is_inside = abi->Group_translate_ranks(group, of->size, own, world, of->job_ranks) == 0;
            abi->Group_free(&world);
        }
        abi->Group_free(&group);
    } else {
        is_inside = false;
    }
    for (int i = 0; is_inside && i < of->size; i++)
        is_inside = of->job_ranks[i] != abi->undefined;
    free(own);
    return is_inside;
}

/* Finds out whether ranks share hosts. */
static void find_hosts(struct kumi_communicator *of)
{
    const int *host_of = of->job->host_of;
    unsigned char *is_seen = calloc((size_t)of->job->size, 1);
    of->is_one_host = true;
    /* Without memory for the check, hosts count as shared, which is the common case. */
    of->shares_hosts = is_seen == NULL;
    for (int i = 0; i < of->size; i++) {
        int host = host_of[of->job_ranks[i]];
        of->is_one_host &= host == host_of[of->job_ranks[0]];
        if (is_seen == NULL)
            continue;
        of->shares_hosts |= is_seen[host];
        is_seen[host] = 1;
    }
    free(is_seen);
}

static struct kumi_communicator *make(const struct kumi_job *job, kumi_handle comm)
{
    const struct kumi_abi *abi = job->abi;
    int is_inter = 0, size = 0, rank = 0;
    if (abi->Comm_test_inter(comm, &is_inter) != 0 || is_inter || abi->Comm_size(comm, &size) != 0 ||
        size < 2 || abi->Comm_rank(comm, &rank) != 0)
        return &left_alone;
    struct kumi_communicator *of = calloc(1, sizeof(*of));
    if (of == NULL)
        return &left_alone;
    of->job = job;
    of->abi = abi;
    of->comm = comm;
    of->rank = rank;
    of->size = size;
    of->is_multi_site = job->is_multi_site;
    bool is_planned = find_job_ranks(of);
    if (is_planned)
        find_hosts(of);
    if (is_planned && !(job->is_automatic && of->is_one_host))
        return of;
    release(of);
    return &left_alone;
}

struct kumi_communicator *kumi_communicator(const struct kumi_job *job, kumi_handle comm)
{
    const struct kumi_abi *abi = job->abi;
    int at = key(abi), is_made = 0;
    struct kumi_communicator *of = NULL;
    if (at == -1 || abi->Comm_get_attr(comm, at, &of, &is_made) != 0)
        return NULL;
    if (!is_made) {
        of = make(job, comm);
        if (abi->Comm_set_attr(comm, at, of) != 0)
            return NULL;
    }
    return of == &left_alone ? NULL : of;
}

void kumi_communicator_settle(const struct kumi_job *job, kumi_handle comm)
{
    struct kumi_communicator *of = NULL;
    int at = key(job->abi), is_made = 0;
    if (at == -1 || job->abi->Comm_get_attr(comm, at, &of, &is_made) != 0 || !is_made || of == &left_alone)
        return;
    settle(of);
}

bool kumi_communicator_network(struct kumi_communicator *of)
{
    const struct kumi_job *job = of->job;
    if (of->ranks != NULL)
        return true;
    const char **hosts = calloc((size_t)of->size, sizeof(*hosts));
    const char **job_hosts = calloc((size_t)job->size, sizeof(*job_hosts));
    int *sending_order = calloc((size_t)of->size, sizeof(*sending_order));
    char error[ERROR_BYTES] = "no memory";
    if (hosts != NULL && job_hosts != NULL && sending_order != NULL) {
        for (int i = 0; i < of->size; i++)
            hosts[i] = job->hosts + (size_t)of->job_ranks[i] * KUMI_HOST_BYTES;
        for (int i = 0; i < job->size; i++)
            job_hosts[i] = job->hosts + (size_t)i * KUMI_HOST_BYTES;
        of->ranks = job->planner->ranks_in_job(kumi_topology_file(), hosts, of->size, job_hosts, job->size,
                                               error, sizeof(error));
    }
    free(hosts);
    free(job_hosts);
    if (of->ranks == NULL) {
        free(sending_order);
        /* The network of the whole job was created before, so the reason is a lack of memory. */
        fprintf(stderr, "kumi: rank %d: %s\n", of->rank, error);
        return false;
    }
    of->is_single_switch = job->planner->ranks_is_single_switch(of->ranks);
    of->is_multi_site = job->planner->ranks_is_multi_site(of->ranks);
    of->sending_order = sending_order;
    job->planner->ranks_sending_order(of->ranks, of->rank, of->sending_order);
    return true;
}

int kumi_communicator_number(struct kumi_communicator *of)
{
    if (of->numbers != NULL)
        return 0;
    int *numbers = calloc((size_t)of->size, sizeof(*numbers));
    int own = kumi_tag_take();
    int error = numbers == NULL ? KUMI_MPI_NOTHING_TO_CALL
                                : of->abi->Allgather(&own, sizeof(own), of->abi->byte, numbers, sizeof(own),
                                                     of->abi->byte, of->comm);
    if (error != 0) {
        kumi_tag_give_back(own);
        free(numbers);
        return error;
    }
    of->numbers = numbers;
    return own < 0 ? 0
                   : of->abi->Irecv(NULL, 0, of->abi->byte, of->abi->any_source,
                                    kumi_tag(own, KUMI_TAG_FAILURE), of->job->inside, of->failure);
}

void kumi_communicator_pass(struct kumi_communicator *of)
{
    int own = of->numbers == NULL ? -1 : of->numbers[of->rank];
    kumi_past_note(&of->past, of->abi, own, of->job->inside);
}

bool kumi_communicator_open(struct kumi_communicator *of, int *error)
{
    *error = 0;
    /*
     * All ranks see the same numbers. If any rank had no number left, the communicator is left to
     * the library.
     */
    for (int i = 0; i < of->size; i++)
        if (of->numbers[i] < 0)
            return false;
    if (!kumi_communicator_network(of))
        *error = KUMI_MPI_NOTHING_TO_CALL;
    return true;
}
