/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wraps the functions that free a communicator, and completes pending operations on it first. MPICH
 * keeps a communicator and its attributes until all nonblocking collectives on it have completed,
 * and it has only 2048 contexts for communicators.
 */

#include <string.h>

#include "communicator.h"
#include "marking.h"

/*
 * Completes pending operations. `comm` is the address of a C handle, or of a Fortran handle if
 * `is_fortran`.
 */
static void settle(const void *comm, bool is_fortran)
{
    const struct kumi_job *job = kumi_job();
    if (job == NULL || comm == NULL)
        return;
    const struct kumi_abi *abi = job->abi;
    kumi_handle handle = 0;
    if (is_fortran && abi->from_fortran[KUMI_COMMUNICATOR] != NULL) {
        int32_t number;
        memcpy(&number, comm, sizeof(number));
        handle = abi->from_fortran[KUMI_COMMUNICATOR](number);
    } else {
        /* A communicator's handle has the size of a request, and its lower bytes come first. */
        memcpy(&handle, comm, abi->request_bytes);
    }
    /* The library reports an invalid communicator. */
    if (handle != abi->no_communicator)
        kumi_communicator_settle(job, handle);
}

#define WRAPPER __attribute__((visibility("default")))

#define FREE(symbol_, profiling_)                                                                      \
    WRAPPER int symbol_(void *comm);                                                                   \
    WRAPPER int symbol_(void *comm)                                                                    \
    {                                                                                                  \
        static const struct kumi_mpi_call call = {.symbol = #symbol_, .profiling = {profiling_}};      \
        int (*real)(void *) = (int (*)(void *))kumi_mpi_find_real(&call, __builtin_return_address(0)); \
        settle(comm, false);                                                                           \
        return real == NULL ? KUMI_MPI_NOTHING_TO_CALL : real(comm);                                   \
    }

/* `error` is optional in mpi_f08. */
#define FORTRAN_FREE(symbol_, profiling_)                                                         \
    WRAPPER void symbol_(void *comm, int *error);                                                 \
    WRAPPER void symbol_(void *comm, int *error)                                                  \
    {                                                                                             \
        static const struct kumi_mpi_call call = {.symbol = #symbol_, .profiling = {profiling_}}; \
        void (*real)(void *, int *) =                                                             \
            (void (*)(void *, int *))kumi_mpi_find_real(&call, __builtin_return_address(0));      \
        settle(comm, true);                                                                       \
        if (real != NULL)                                                                         \
            real(comm, error);                                                                    \
        else if (error != NULL)                                                                   \
            *error = KUMI_MPI_NOTHING_TO_CALL;                                                    \
    }

FREE(MPI_Comm_free, "PMPI_Comm_free")
FREE(MPI_Comm_disconnect, "PMPI_Comm_disconnect")
FORTRAN_FREE(mpi_comm_free_, "pmpi_comm_free_")
FORTRAN_FREE(mpi_comm_free_f08_, "pmpi_comm_free_f08_")
FORTRAN_FREE(mpi_comm_disconnect_, "pmpi_comm_disconnect_")
FORTRAN_FREE(mpi_comm_disconnect_f08_, "pmpi_comm_disconnect_f08_")
