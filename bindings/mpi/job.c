/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wraps the functions that initialise MPI. After them each rank knows whether all ranks plan alike,
 * and on which hosts they are. The hosts are needed because a communicator of some ranks leaves the
 * other ranks their share of the links (ADR 024).
 */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "marking.h"
#include "tags.h"

/*
 * Digest of this library's sources, set by the build. Libraries of different builds may decide
 * differently.
 */
#ifndef KUMI_PRELOAD_DIGEST
#define KUMI_PRELOAD_DIGEST 0
#endif

enum { ERROR_BYTES = 512 };

static struct kumi_job job;
static bool is_on;

const struct kumi_job *kumi_job(void)
{
    return __atomic_load_n(&is_on, __ATOMIC_ACQUIRE) ? &job : NULL;
}

/*
 * Returns whether connections of this network namespace send short bursts at any round trip.
 * `kumi tcp up` sees to it, or an administrator.
 */
static bool has_short_bursts(void)
{
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_tso_rtt_log", "re");
    int value = -1;
    if (file == NULL)
        return false;
    if (fscanf(file, "%d", &value) != 1)
        value = -1;
    fclose(file);
    return value == 0;
}

/* Returns this rank's terms. If it does not plan, all are zero, and `why_not` is set. */
static struct kumi_terms own_terms(const struct kumi_planner *planner, const char **why_not)
{
    struct kumi_terms terms = {0};
    char error[ERROR_BYTES] = "";
    if (planner == NULL) {
        *why_not = kumi_coll_is_on() ? "libkumi.so cannot be loaded" : kumi_coll_why_off();
        return terms;
    }
    if (planner->network_digest(kumi_topology_file(), &terms.network, error, sizeof(error)) != 0) {
        fprintf(stderr, "kumi: %s\n", error);
        *why_not = "its network file cannot be read";
        return (struct kumi_terms){0};
    }
    const char *version = planner->version(), *list = kumi_coll_list();
    terms.plans = KUMI_PLANS | (has_short_bursts() ? KUMI_SHORT_BURSTS : 0);
    terms.library = kumi_digest(0, version, strlen(version));
    bool is_reproducible = kumi_coll_is_reproducible();
    terms.options = kumi_digest(0, list, strlen(list));
    terms.options = kumi_digest(terms.options, &is_reproducible, sizeof(is_reproducible));
    terms.preload = KUMI_PRELOAD_DIGEST;
    return terms;
}

static void group_by_host(int *host_of)
{
    for (int rank = 0; rank < job.size; rank++) {
        const char *own = job.hosts + (size_t)rank * KUMI_HOST_BYTES;
        int first = 0;
        /*
         * Launchers place ranks by blocks or in turns, so the host of the previous rank is tried
         * first.
         */
        if (rank > 0 && strcmp(own, own - KUMI_HOST_BYTES) == 0)
            first = host_of[rank - 1];
        else
            while (strcmp(job.hosts + (size_t)first * KUMI_HOST_BYTES, own) != 0)
                first++;
        host_of[rank] = first;
    }
    job.host_of = host_of;
}

static bool is_one_host(void)
{
    for (int rank = 0; rank < job.size; rank++)
        if (job.host_of[rank] != 0)
            return false;
    return true;
}

/*
 * Returns the network of all ranks. If it lacks a host, writes the reason to `error`, and returns
 * NULL.
 */
static struct kumi_coll_ranks *network(char error[ERROR_BYTES])
{
    const char **hosts = calloc((size_t)job.size, sizeof(*hosts));
    struct kumi_coll_ranks *ranks = NULL;
    for (int i = 0; hosts != NULL && i < job.size; i++)
        hosts[i] = job.hosts + (size_t)i * KUMI_HOST_BYTES;
    if (hosts != NULL)
        ranks = job.planner->ranks_in_job(kumi_topology_file(), hosts, job.size, hosts, job.size, error,
                                          ERROR_BYTES);
    free(hosts);
    return ranks;
}

/*
 * Writes the fair share of a connection in an all-to-all of all ranks to the phase page, where the
 * kernel's programs read it.
 */
static void write_fair_share(void)
{
    struct kumi_phase_page *page = kumi_page();
    char error[ERROR_BYTES] = "no memory";
    struct kumi_coll_ranks *ranks = network(error);
    uint32_t peers = 0;
    if (ranks == NULL) {
        if (job.rank == 0)
            fprintf(stderr, "kumi: all-to-alls have no fair share: %s\n", error);
        return;
    }
    struct kumi_coll_fair_share share;
    bool is_known = job.planner->ranks_fair_share(ranks, &share) == 0;
    job.planner->ranks_free(ranks);
    if (!is_known)
        return;
    for (int rank = 0; rank < job.size; rank++)
        peers += job.host_of[rank] != job.host_of[job.rank];
    __atomic_store_n(&page->fair_share_bytes_ps, (uint64_t)share.bytes_per_s, __ATOMIC_RELAXED);
    __atomic_store_n(&page->burst_bytes, (uint32_t)share.burst_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&page->peers, peers, __ATOMIC_RELEASE);
}

/* Returns whether the network has all hosts. The result is the same on all ranks. */
static bool find_network(void)
{
    char error[ERROR_BYTES] = "no memory";
    struct kumi_coll_ranks *ranks = network(error);
    if (ranks == NULL) {
        if (job.rank == 0)
            fprintf(stderr, "kumi: collectives are left to the MPI library: %s\n", error);
        return false;
    }
    job.is_multi_site = job.planner->ranks_is_multi_site(ranks);
    job.planner->ranks_free(ranks);
    return true;
}

/* Finds out the hosts of all ranks. Every rank takes part. */
static bool find_hosts(const char *own)
{
    char *hosts = calloc((size_t)job.size, KUMI_HOST_BYTES);
    int *host_of = calloc((size_t)job.size, sizeof(*host_of));
    /*
     * Without memory this rank could not take part in the all-gather, and the others would wait for
     * it.
     */
    if (hosts == NULL || host_of == NULL)
        abort();
    if (job.abi->Allgather(own, KUMI_HOST_BYTES, job.abi->byte, hosts, KUMI_HOST_BYTES, job.abi->byte,
                           job.abi->world) != 0)
        return false;
    job.hosts = hosts;
    group_by_host(host_of);
    return true;
}

/* Prepares a job that plans. Every rank takes part and gets the same result. */
static bool begin(void)
{
    job.is_automatic = kumi_coll_is_automatic();
    if (job.is_automatic && is_one_host())
        return false;
    if (!find_network() || job.abi->Comm_dup(job.abi->world, &job.inside) != 0 ||
        job.abi->Comm_dup(job.abi->self, &job.alone) != 0 ||
        job.abi->Comm_set_errhandler(job.inside, job.abi->errors_return) != 0 ||
        job.abi->Comm_set_errhandler(job.alone, job.abi->errors_return) != 0)
        return false;
    int *tag_max = NULL, is_set = 0;
    if (job.abi->Comm_get_attr(job.abi->world, job.abi->tag_limit_key, &tag_max, &is_set) != 0 || !is_set)
        return false;
    kumi_tags_begin(*tag_max);
    return true;
}

/* Forgets the fair share of a program that had the page before. */
static void forget_fair_share(void)
{
    struct kumi_phase_page *page = kumi_page();
    if (page != NULL)
        __atomic_store_n(&page->peers, 0, __ATOMIC_RELAXED);
}

/* Returns whether the job plans collectives. All ranks take part. */
static bool agree(const void *caller)
{
    forget_fair_share();
    const struct kumi_abi *abi = kumi_coll_list() == NULL ? NULL : kumi_mpi_library(caller);
    if (abi == NULL || abi->Comm_size(abi->world, &job.size) != 0 || job.size < 2 ||
        abi->Comm_rank(abi->world, &job.rank) != 0)
        return false;
    char own[KUMI_HOST_BYTES] = "";
    gethostname(own, sizeof(own) - 1);
    job.abi = abi;
    job.planner = kumi_coll_is_on() || kumi_topology_file() != NULL ? kumi_planner() : NULL;
    const char *why_not = NULL;
    struct kumi_terms terms = own_terms(kumi_coll_is_on() ? job.planner : NULL, &why_not);
    char error[ERROR_BYTES] = "";
    if (job.planner != NULL && kumi_topology_file() != NULL && kumi_page() != NULL &&
        job.planner->network_digest(kumi_topology_file(), &terms.shared_network, error, sizeof(error)) == 0)
        terms.plans |= KUMI_FAIR_SHARE;
    bool is_planning =
        kumi_agree(abi, own, job.rank, job.size, &terms, why_not) && (terms.plans & KUMI_PLANS);
    bool has_share = terms.plans & KUMI_FAIR_SHARE;
    if (!(is_planning || has_share) || !find_hosts(own))
        return false;
    if (has_share)
        write_fair_share();
    job.has_short_bursts = terms.plans & KUMI_SHORT_BURSTS;
    return is_planning && begin();
}

static void name_profiler(const void *caller)
{
    const char *profiler = job.rank == 0 ? kumi_mpi_profiler(caller) : NULL;
    if (profiler != NULL)
        fprintf(stderr, "kumi: %s does not see planned collectives: use `--coll off` for a full profile\n",
                profiler);
}

/*
 * Called after MPI has been initialised. Fortran's functions call C's, so only the first call has
 * an effect.
 */
static void meet(const void *caller)
{
    static bool is_met;
    if (is_met)
        return;
    is_met = true;
    bool is_planning = agree(caller);
    __atomic_store_n(&is_on, is_planning, __ATOMIC_RELEASE);
    kumi_mpi_begun(is_planning);
    if (is_planning)
        name_profiler(caller);
}

#define WRAPPER __attribute__((visibility("default")))

#define BEGIN(symbol_, profiling_, parameters, arguments)                                                  \
    WRAPPER int symbol_ parameters;                                                                        \
    WRAPPER int symbol_ parameters                                                                         \
    {                                                                                                      \
        static const struct kumi_mpi_call call = {.symbol = #symbol_, .profiling = {profiling_}};          \
        int(*real) parameters = (int(*) parameters)kumi_mpi_find_real(&call, __builtin_return_address(0)); \
        int result = real == NULL ? KUMI_MPI_NOTHING_TO_CALL : real arguments;                             \
        if (result == 0)                                                                                   \
            meet(__builtin_return_address(0));                                                             \
        return result;                                                                                     \
    }

#define FORTRAN_BEGIN(symbol_, profiling_, parameters, arguments)                                            \
    WRAPPER void symbol_ parameters;                                                                         \
    WRAPPER void symbol_ parameters                                                                          \
    {                                                                                                        \
        static const struct kumi_mpi_call call = {.symbol = #symbol_, .profiling = {profiling_}};            \
        void(*real) parameters = (void(*) parameters)kumi_mpi_find_real(&call, __builtin_return_address(0)); \
        if (real == NULL) {                                                                                  \
            if (error != NULL)                                                                               \
                *error = KUMI_MPI_NOTHING_TO_CALL;                                                           \
            return;                                                                                          \
        }                                                                                                    \
        real arguments;                                                                                      \
        /* `error` is optional in mpi_f08. */                                                                \
        if (error == NULL || *error == 0)                                                                    \
            meet(__builtin_return_address(0));                                                               \
    }

BEGIN(MPI_Init, "PMPI_Init", (int *count, char ***words), (count, words))
BEGIN(MPI_Init_thread, "PMPI_Init_thread", (int *count, char ***words, int required, int *provided),
      (count, words, required, provided))
FORTRAN_BEGIN(mpi_init_, "pmpi_init_", (int *error), (error))
FORTRAN_BEGIN(mpi_init_f08_, "pmpi_init_f08_", (int *error), (error))
FORTRAN_BEGIN(mpi_init_thread_, "pmpi_init_thread_", (int *required, int *provided, int *error),
              (required, provided, error))
FORTRAN_BEGIN(mpi_init_thread_f08_, "pmpi_init_thread_f08_", (int *required, int *provided, int *error),
              (required, provided, error))
