/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the functions and constants of the MPI library. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "abi.h"
#include "marking.h"

/* MPICH's constants are fixed by its binary interface (Intel MPI and MVAPICH keep it); in Open MPI a handle is
 * the address of an object. */
static const kumi_handle mpich_byte = 0x4c00010d, mpich_world = 0x44000000;

/* The address of a variable: of the program's own copy, if it has one, as the library itself sees it then. */
static void *find_variable(const char *symbol, const void *caller)
{
    void *at = dlsym(RTLD_DEFAULT, symbol);
    return at != NULL ? at : kumi_mpi_find(symbol, caller);
}

/* The names of the common block that is MPI_IN_PLACE in Open MPI's Fortran, by compiler. */
static void find_fortran_of_openmpi(struct kumi_abi *abi, const void *caller)
{
    static const char *const functions[] = {"PMPI_Comm_f2c", "PMPI_Type_f2c", "PMPI_Op_f2c"};
    for (int i = 0; i < 3; i++)
        abi->from_fortran[i] = (kumi_handle(*)(int32_t))kumi_mpi_find(functions[i], caller);
    static const char *const in_places[KUMI_FORTRAN_IN_PLACES] = {
        "mpi_fortran_in_place_", "mpi_fortran_in_place", "mpi_fortran_in_place__",
        "MPI_FORTRAN_IN_PLACE"};
    for (int i = 0; i < KUMI_FORTRAN_IN_PLACES; i++)
        abi->fortran_in_place[i] = find_variable(in_places[i], caller);
}

static bool find_constants(struct kumi_abi *abi, const void *caller)
{
    void *byte = find_variable("ompi_mpi_byte", caller);
    void *world = find_variable("ompi_mpi_comm_world", caller);
    if (byte != NULL && world != NULL) {
        abi->byte = (kumi_handle)byte;
        abi->world = (kumi_handle)world;
        abi->in_place = (const void *)1;
        abi->statuses_ignore = NULL;
        abi->request_bytes = sizeof(void *);
        abi->combiner_named = 0;
        find_fortran_of_openmpi(abi, caller);
        return true;
    }
    abi->byte = mpich_byte;
    abi->world = mpich_world;
    abi->in_place = (const void *)-1;
    abi->statuses_ignore = (void *)1;
    abi->request_bytes = sizeof(int);
    abi->combiner_named = 1;
    /* The library's Fortran start-up sets it. */
    const void *const *in_place = find_variable("MPIR_F_MPI_IN_PLACE", caller);
    abi->fortran_in_place[0] = in_place == NULL ? NULL : *in_place;
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
