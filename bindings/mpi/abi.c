/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the functions and constants of the MPI library. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>

#include "abi.h"
#include "marking.h"

/* MPICH's constants are fixed by its binary interface (Intel MPI and MVAPICH keep it); in Open MPI a handle is
 * the address of an object. */
static const kumi_handle mpich_byte = 0x4c00010d;

static bool find_constants(struct kumi_abi *abi, const void *caller)
{
    void *byte = kumi_mpi_find("ompi_mpi_byte", caller);
    if (byte != NULL) {
        abi->byte = (kumi_handle)byte;
        abi->in_place = (const void *)1;
        abi->statuses_ignore = NULL;
        abi->request_bytes = sizeof(void *);
        abi->combiner_named = 0;
        return true;
    }
    abi->byte = mpich_byte;
    abi->in_place = (const void *)-1;
    abi->statuses_ignore = (void *)1;
    abi->request_bytes = sizeof(int);
    abi->combiner_named = 1;
    /* A sign that the constant is this library's: a byte has one byte. */
    int bytes = 0;
    return abi->Type_size(abi->byte, &bytes) == 0 && bytes == 1;
}

static bool find_all(struct kumi_abi *abi, const void *caller)
{
    const char *missing = NULL;
#define FIND(name, arguments)                                                                      \
    abi->name = (int(*) arguments)kumi_mpi_find("PMPI_" #name, caller);                            \
    if (abi->name == NULL)                                                                         \
        missing = "PMPI_" #name;
    KUMI_MPI_FUNCTIONS(FIND)
#undef FIND
    if (missing == NULL && find_constants(abi, caller))
        return true;
    fprintf(stderr, "kumi: collectives are left to the MPI library, which lacks %s\n",
            missing == NULL ? "MPICH's and Open MPI's constants" : missing);
    return false;
}

const struct kumi_abi *kumi_abi(const void *caller)
{
    static struct kumi_abi abi;
    static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
    enum { UNASKED, FOUND, LACKING };
    static int answer = UNASKED;
    int now = __atomic_load_n(&answer, __ATOMIC_ACQUIRE);
    if (now == UNASKED) {
        pthread_mutex_lock(&finding);
        if (answer == UNASKED) {
            bool found = kumi_mpi_known_library(caller) && find_all(&abi, caller);
            __atomic_store_n(&answer, found ? FOUND : LACKING, __ATOMIC_RELEASE);
        }
        now = answer;
        pthread_mutex_unlock(&finding);
    }
    return now == FOUND ? &abi : NULL;
}
