/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Makes a communicator's duplicate and its network of ranks, and keeps them in an attribute. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "communicator.h"
#include "job.h"

enum { HOST_BYTES = KUMI_HOST_BYTES, ERROR_BYTES = 512 };

/* A communicator that is the library's. */
static struct kumi_communicator left_alone;

static int forget(kumi_handle comm, int key, void *attribute, void *extra)
{
    (void)comm, (void)key, (void)extra;
    struct kumi_communicator *of = attribute;
    if (of != &left_alone) {
        of->planner->ranks_free(of->ranks);
        of->abi->Comm_free(&of->inside);
        free(of);
    }
    return 0;
}

/* A duplicate of the communicator gets its own at its own first collective. */
static int do_not_copy(kumi_handle comm, int key, void *extra, void *in, void *out, int *is_kept)
{
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *is_kept = 0;
    return 0;
}

/* The key, or -1. */
static int key(const struct kumi_abi *abi)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    static int made = -1;
    pthread_mutex_lock(&making);
    if (made == -1 && abi->Comm_create_keyval(do_not_copy, forget, &made, NULL) != 0)
        made = -1;
    pthread_mutex_unlock(&making);
    return made;
}

/* Where each of so many names is. */
static const char **addresses(const char *names, int count)
{
    const char **hosts = calloc((size_t)count, sizeof(*hosts));
    for (int i = 0; hosts != NULL && i < count; i++)
        hosts[i] = names + (size_t)i * HOST_BYTES;
    return hosts;
}

static struct kumi_coll_ranks *make_ranks(const struct kumi_communicator *of, const char *names)
{
    int job_size = 0;
    const char *job_names = kumi_job_hosts(&job_size);
    if (job_names == NULL) {
        job_names = names;
        job_size = of->size;
    }
    const char **hosts = addresses(names, of->size), **job_hosts = addresses(job_names, job_size);
    struct kumi_coll_ranks *ranks = NULL;
    char error[ERROR_BYTES] = "no memory";
    if (hosts != NULL && job_hosts != NULL)
        ranks = of->planner->ranks_in_job(kumi_topology_file(), hosts, of->size, job_hosts, job_size,
                                          error, sizeof(error));
    free(hosts);
    free(job_hosts);
    if (ranks == NULL && of->rank == 0)
        fprintf(stderr, "kumi: collectives are left to the MPI library: %s\n", error);
    return ranks;
}

/* All ranks must come to the same: a rank that failed says so. */
static bool all_have(const struct kumi_communicator *of, bool has)
{
    unsigned char own = has;
    unsigned char *all = calloc((size_t)of->size, 1);
    bool is_whole = all != NULL && of->abi->Allgather(&own, 1, of->abi->byte, all, 1,
                                                      of->abi->byte, of->inside) == 0;
    for (int i = 0; is_whole && i < of->size; i++)
        is_whole = all[i];
    free(all);
    return is_whole;
}

static struct kumi_communicator *make(kumi_handle comm, const struct kumi_abi *abi)
{
    int is_inter = 0, size = 0, rank = 0;
    if (abi->Comm_test_inter(comm, &is_inter) != 0 || is_inter || abi->Comm_size(comm, &size) != 0 ||
        size < 2 || abi->Comm_rank(comm, &rank) != 0)
        return &left_alone;
    struct kumi_communicator *of = calloc(1, sizeof(*of));
    char *names = calloc((size_t)size, HOST_BYTES);
    if (of == NULL || names == NULL || abi->Comm_dup(comm, &of->inside) != 0) {
        free(of);
        free(names);
        return &left_alone;
    }
    of->abi = abi;
    of->rank = rank;
    of->size = size;
    char own[HOST_BYTES] = "";
    gethostname(own, sizeof(own) - 1);
    of->planner = kumi_planner();
    if (abi->Allgather(own, HOST_BYTES, abi->byte, names, HOST_BYTES, abi->byte, of->inside) == 0 &&
        of->planner != NULL)
        of->ranks = make_ranks(of, names);
    free(names);
    if (all_have(of, of->ranks != NULL)) {
        of->is_flat = of->planner->ranks_is_flat(of->ranks);
        of->is_far = of->planner->ranks_is_far(of->ranks);
        return of;
    }
    if (of->ranks != NULL)
        of->planner->ranks_free(of->ranks);
    abi->Comm_free(&of->inside);
    free(of);
    return &left_alone;
}

struct kumi_communicator *kumi_communicator(kumi_handle comm, const void *caller)
{
    const struct kumi_abi *abi = kumi_abi(caller);
    int at = abi == NULL ? -1 : key(abi);
    if (at == -1)
        return NULL;
    struct kumi_communicator *of = NULL;
    int is_made = 0;
    if (abi->Comm_get_attr(comm, at, &of, &is_made) != 0)
        return NULL;
    if (!is_made) {
        of = make(comm, abi);
        if (abi->Comm_set_attr(comm, at, of) != 0)
            return NULL;
    }
    return of == &left_alone ? NULL : of;
}
