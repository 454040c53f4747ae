/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wraps what begins MPI, to tell each rank on which hosts the others are: a communicator of some of them leaves the rest
 * its share of the links. Nothing is told if nothing is to be planned.
 */

#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "abi.h"
#include "job.h"
#include "marking.h"
#include "planner.h"

static char *names;
static int names_count;

const char *kumi_job_hosts(int *count)
{
    *count = names_count;
    return names;
}

/* MPI has begun. Fortran's begin calls C's: only the first tells. */
static void meet(const void *caller)
{
    const struct kumi_abi *abi = names == NULL && kumi_coll_is_on() ? kumi_abi(caller) : NULL;
    int size = 0;
    if (abi == NULL || abi->Comm_size(abi->world, &size) != 0 || size < 2)
        return;
    char own[KUMI_HOST_BYTES] = "";
    gethostname(own, sizeof(own) - 1);
    char *all = calloc((size_t)size, KUMI_HOST_BYTES);
    /* All take part: who has no memory would leave the others waiting. */
    if (all == NULL)
        abort();
    if (abi->Allgather(own, KUMI_HOST_BYTES, abi->byte, all, KUMI_HOST_BYTES, abi->byte,
                       abi->world) != 0) {
        free(all);
        return;
    }
    names = all;
    names_count = size;
}

#define WRAPPER __attribute__((visibility("default")))

#define BEGIN(symbol_, profiling_, parameters, arguments)                                          \
    WRAPPER int symbol_ parameters;                                                                \
    WRAPPER int symbol_ parameters                                                                 \
    {                                                                                              \
        static const struct kumi_mpi_call call = {.symbol = #symbol_, .profiling = {profiling_}};  \
        int(*real) parameters =                                                                    \
            (int(*) parameters)kumi_mpi_find_real(&call, __builtin_return_address(0));             \
        int result = real == NULL ? KUMI_MPI_NOTHING_TO_CALL : real arguments;                     \
        if (result == 0)                                                                           \
            meet(__builtin_return_address(0));                                                     \
        return result;                                                                             \
    }

#define FORTRAN_BEGIN(symbol_, profiling_, parameters, arguments)                                  \
    WRAPPER void symbol_ parameters;                                                               \
    WRAPPER void symbol_ parameters                                                                \
    {                                                                                              \
        static const struct kumi_mpi_call call = {.symbol = #symbol_, .profiling = {profiling_}};  \
        void(*real) parameters =                                                                   \
            (void(*) parameters)kumi_mpi_find_real(&call, __builtin_return_address(0));            \
        if (real == NULL) {                                                                        \
            if (error != NULL)                                                                     \
                *error = KUMI_MPI_NOTHING_TO_CALL;                                                 \
            return;                                                                                \
        }                                                                                          \
        real arguments;                                                                            \
        /* Of mpi_f08 it is optional. */                                                           \
        if (error == NULL || *error == 0)                                                          \
            meet(__builtin_return_address(0));                                                     \
    }

BEGIN(MPI_Init, "PMPI_Init", (int *count, char ***words), (count, words))
BEGIN(MPI_Init_thread, "PMPI_Init_thread", (int *count, char ***words, int required, int *provided),
      (count, words, required, provided))
FORTRAN_BEGIN(mpi_init_, "pmpi_init_", (int *error), (error))
FORTRAN_BEGIN(mpi_init_f08_, "pmpi_init_f08_", (int *error), (error))
FORTRAN_BEGIN(mpi_init_thread_, "pmpi_init_thread_", (int *required, int *provided, int *error),
              (required, provided, error))
FORTRAN_BEGIN(mpi_init_thread_f08_, "pmpi_init_thread_f08_",
              (int *required, int *provided, int *error), (required, provided, error))
