/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Collectives that are executed by a plan, or with all blocks at once, instead of by the MPI
 * library.
 *
 * All ranks must decide alike. So the decision depends only on values that MPI requires to be equal
 * on all ranks: the bytes of a block, the communicator and the root. Where these do not suffice, it
 * depends on values that the ranks have compared before (history.h).
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "collectives.h"
#include "fortran.h"
#include "tally.h"

/*
 * True while this thread executes a planned collective. Calls that it makes then are not replaced.
 */
static _Thread_local bool is_inside __attribute__((tls_model("initial-exec")));
/* Trial of the call that this thread makes by the library, or NULL. */
static _Thread_local struct kumi_trial *tried_by_library __attribute__((tls_model("initial-exec")));

bool kumi_is_long(struct call *call, uint64_t bytes, uint64_t least)
{
    struct kumi_communicator *of = call->of;
    if (bytes >= least)
        return true;
    if (!of->is_multi_site || bytes == 0)
        return false;
    /*
     * Some of the job's hosts are on different sites. The network of this communicator shows
     * whether its own ranks are.
     */
    if (!kumi_communicator_network(of)) {
        kumi_failed(call, "cannot create the network of the communicator", 0);
        return true;
    }
    return of->is_multi_site;
}

bool kumi_is_chosen(struct call *call, uint64_t bytes)
{
    struct kumi_communicator *of = call->of;
    if (!call->is_tried || call->result != 0)
        return true;
    call->trial = kumi_trial_of(&of->trials, call->name, bytes, call->ways);
    call->way = call->ways.usual;
    if (call->trial == NULL)
        return call->way != KUMI_BY_LIBRARY;
    int error;
    bool is_told = of->rank == 0 && kumi_is_verbose();
    call->way = kumi_trial_begin(call->trial, of->abi, of->comm, is_told, &error);
    if (error != 0)
        kumi_failed(call, "ranks cannot compare their times with the MPI library's", error);
    return error != 0 || call->way != KUMI_BY_LIBRARY;
}

bool kumi_open(struct call *call)
{
    int error = 0;
    if (call->result != 0)
        return true;
    if (!kumi_communicator_open(call->of, &error))
        return false;
    if (error != 0)
        kumi_failed(call, "cannot create the network of the communicator", error);
    return true;
}

void kumi_failed(struct call *call, const char *what, int code)
{
    fprintf(stderr, "kumi: rank %d: %s: %s\n", call->of->rank, call->name, what);
    call->has_failed = true;
    call->result = code == 0 ? KUMI_MPI_NOTHING_TO_CALL : code;
}

void kumi_carry_call(struct call *call, struct kumi_carried carried)
{
    if (call->result == 0)
        call->result = kumi_carry(call->of, &carried, call->name);
}

/*
 * The collectives, their names in KUMI_COLL, and the kinds of their arguments as in fortran.h. The
 * communicator is the last argument.
 */
static const struct replaced {
    const char *call, *name, *arguments;
    bool (*instead)(struct call *);
    /* The result of a sum of floats depends on the order of the plan. */
    bool is_reduction;
    /*
     * How `auto` executes it at first between hosts: by what was measured to be faster (ADR 030,
     * docs/perf-log.md of 2026-11-24). It is then tried, unless it is a reduction (ADR 046).
     */
    enum kumi_way first;
    /* An all-to-all, which can send all blocks at once (ADR 049). */
    bool is_exchange;
} all_replaced[] = {
    {"MPI_Alltoall", "alltoall", "bitbitc", kumi_alltoall, false, KUMI_BY_LIBRARY, true},
    {"MPI_Alltoallv", "alltoallv", "baatbaatc", kumi_alltoallv, false, KUMI_BY_PLAN, true},
    {"MPI_Gather", "gather", "bitbitic", kumi_gather, false, KUMI_BY_PLAN, false},
    {"MPI_Gatherv", "gatherv", "bitbaatic", kumi_gatherv, false, KUMI_BY_PLAN, false},
    {"MPI_Scatter", "scatter", "bitbitic", kumi_scatter, false, KUMI_BY_LIBRARY, false},
    {"MPI_Scatterv", "scatterv", "baatbitic", kumi_scatterv, false, KUMI_BY_LIBRARY, false},
    {"MPI_Allgather", "allgather", "bitbitc", kumi_allgather, false, KUMI_BY_PLAN, false},
    {"MPI_Allgatherv", "allgatherv", "bitbaatc", kumi_allgatherv, false, KUMI_BY_PLAN, false},
    {"MPI_Bcast", "bcast", "bitic", kumi_bcast, false, KUMI_BY_PLAN, false},
    {"MPI_Allreduce", "allreduce", "bbitoc", kumi_allreduce, true, KUMI_BY_PLAN, false},
    {"MPI_Reduce", "reduce", "bbitoic", kumi_reduce, true, KUMI_BY_PLAN, false},
    {"MPI_Reduce_scatter", "reduce_scatter", "bbatoc", kumi_reduce_scatter, true, KUMI_BY_PLAN, false},
    {"MPI_Reduce_scatter_block", "reduce_scatter_block", "bbitoc", kumi_reduce_scatter_block, true,
     KUMI_BY_PLAN, false},
    {"MPI_Barrier", "barrier", "c", kumi_barrier, false, KUMI_BY_PLAN, false},
};

enum { ARGUMENTS_MAX = 9 };

static const struct replaced none;

static bool is_asked_for(const struct replaced *of)
{
    return kumi_coll_is_requested(of->name) && !(of->is_reduction && kumi_coll_is_reproducible());
}

/* Returns how `auto` executes a collective until it is tried, and what is tried. */
static struct kumi_ways first_ways(const struct replaced *replaced, const struct kumi_communicator *of)
{
    bool is_exchange = replaced->is_exchange;
    enum kumi_way own = is_exchange && of->job->has_short_bursts ? KUMI_AT_ONCE : KUMI_BY_PLAN;
    bool is_own =
        (replaced->first == KUMI_BY_PLAN || own == KUMI_AT_ONCE) && !(is_exchange && of->shares_hosts);
    return is_own ? (struct kumi_ways){.usual = own, .other = KUMI_BY_LIBRARY}
                  : (struct kumi_ways){.usual = KUMI_BY_LIBRARY, .other = own};
}

/* Returns the replacement of a function, or `none` if it is not replaced or not requested. */
static const struct replaced *replaced_of(struct kumi_mpi_call *call)
{
    const struct replaced *of = __atomic_load_n(&call->replaced, __ATOMIC_RELAXED);
    if (of != NULL)
        return of;
    of = &none;
    for (size_t i = 0; i < sizeof(all_replaced) / sizeof(*all_replaced); i++)
        if (strcmp(all_replaced[i].call, call->phase_name) == 0 && is_asked_for(&all_replaced[i]))
            of = &all_replaced[i];
    __atomic_store_n(&call->replaced, of, __ATOMIC_RELAXED);
    return of;
}

/*
 * Executes a call, or returns false to leave it to the library. A large call has counts
 * of 64 bits and is left to the library.
 */
static bool replace(const struct replaced *replaced, struct call *call, bool is_large)
{
    struct kumi_communicator *of = call->of;
    if (of->is_broken) {
        kumi_failed(call, "an earlier planned collective failed on this communicator", 0);
        return true;
    }
    /*
     * This happens at the first collective of a communicator, however short. A later call may be
     * long on some ranks only, and the ranks need the numbers to detect that (past.h).
     */
    int error = kumi_communicator_number(of);
    if (error != 0) {
        kumi_failed(call, "ranks cannot exchange their tags", error);
        return true;
    }
    /* A trial would change the sums of floats from run to run. */
    call->is_tried = of->job->is_automatic && !replaced->is_reduction;
    call->ways = first_ways(replaced, of);
    bool is_done = !is_large && replaced->instead(call);
    /* Counted whatever the outcome, so that all ranks count the same calls. */
    kumi_communicator_pass(of);
    if (call->has_failed && of->numbers != NULL && !of->is_broken)
        kumi_break(of);
    /* A barrier that is left to the library is not counted. */
    if (is_done || replaced->instead != kumi_barrier)
        kumi_tally(of->job->rank, of->size < of->job->size, is_done ? call->way : KUMI_BY_LIBRARY);
    return is_done;
}

bool kumi_collective(struct kumi_mpi_call *called, const uintptr_t *arguments, int *result)
{
    const struct kumi_job *job = kumi_job();
    if (job == NULL || is_inside || !kumi_mpi_is_outermost())
        return false;
    const struct replaced *replaced = replaced_of(called);
    if (replaced == &none)
        return false;
    uintptr_t converted[ARGUMENTS_MAX];
    if (called->calling == BY_ADDRESS) {
        kumi_from_fortran(job->abi, replaced->arguments, arguments, converted);
        arguments = converted;
    }
    kumi_handle comm = arguments[strlen(replaced->arguments) - 1];
    struct call call = {.arguments = arguments, .name = replaced->call, .way = KUMI_BY_PLAN};
    is_inside = true;
    call.of = kumi_communicator(job, comm);
    bool is_done = call.of != NULL && replace(replaced, &call, called->calling == BY_VALUE_LARGE);
    is_inside = false;
    if (call.trial != NULL && is_done)
        kumi_trial_end(call.trial);
    else
        tried_by_library = call.trial;
    /*
     * The error handler of the communicator decides: the job ends, the function returns the error,
     * or a function of the program is called.
     */
    if (is_done && call.result != 0)
        job->abi->Comm_call_errhandler(comm, call.result);
    *result = call.result;
    return is_done;
}

void kumi_collective_left(void)
{
    if (tried_by_library != NULL && kumi_mpi_is_outermost()) {
        kumi_trial_end(tried_by_library);
        tried_by_library = NULL;
    }
}
