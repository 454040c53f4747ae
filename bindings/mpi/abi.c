/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the functions and constants of the MPI library. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "abi.h"
#include "marking.h"

/*
 * MPICH's constants are fixed by its binary interface, which Intel MPI and MVAPICH keep. In Open
 * MPI a handle is the address of an object.
 */
enum {
    MPICH_BYTE = 0x4c00010d,
    MPICH_UNSIGNED_LONG = 0x4c000808,
    MPICH_DATATYPE_NULL = 0x0c000000,
    MPICH_BAND = 0x58000006,
    MPICH_MAX = 0x58000001,
    MPICH_WORLD = 0x44000000,
    MPICH_SELF = 0x44000001,
    MPICH_COMM_NULL = 0x04000000,
    MPICH_ERRORS_RETURN = 0x54000001,
    MPICH_TAG_UB = 0x64400001,
    MPICH_STATUS_BYTES = 20,
    MPICH_STATUS_ERROR_AT = 16,
    MPICH_ERR_IN_STATUS = 17,
    MPICH_ERR_TRUNCATE = 14,
    MPICH_ANY_SOURCE = -2,
    OPENMPI_TAG_UB = 0,
    OPENMPI_STATUS_BYTES = 24,
    OPENMPI_STATUS_ERROR_AT = 8,
    OPENMPI_ERR_IN_STATUS = 18,
    OPENMPI_ERR_TRUNCATE = 15,
    OPENMPI_ANY_SOURCE = -1,
    UNDEFINED_OF_BOTH = -32766,
};

/*
 * Returns the address of a variable. If the program has a copy of its own, the library uses that
 * copy too, so its address is returned.
 */
static void *find_variable(const char *symbol, const void *caller)
{
    void *at = dlsym(RTLD_DEFAULT, symbol);
    return at != NULL ? at : kumi_mpi_find(symbol, caller);
}

/* Open MPI's Fortran passes the address of a common block for each of these constants. */
static void find_fortran_of_openmpi(struct kumi_abi *abi, const void *caller)
{
    static const char *const functions[] = {"PMPI_Comm_f2c", "PMPI_Type_f2c", "PMPI_Op_f2c"};
    for (int i = 0; i < 3; i++)
        abi->from_fortran[i] = (kumi_handle(*)(int32_t))kumi_mpi_find(functions[i], caller);
    static const char *const in_places[KUMI_FORTRAN_SPELLINGS] = {
        "mpi_fortran_in_place_", "mpi_fortran_in_place", "mpi_fortran_in_place__", "MPI_FORTRAN_IN_PLACE"};
    static const char *const bottoms[KUMI_FORTRAN_SPELLINGS] = {"mpi_fortran_bottom_", "mpi_fortran_bottom",
                                                                "mpi_fortran_bottom__", "MPI_FORTRAN_BOTTOM"};
    for (int i = 0; i < KUMI_FORTRAN_SPELLINGS; i++) {
        abi->fortran_in_place[i] = find_variable(in_places[i], caller);
        abi->fortran_bottom[i] = find_variable(bottoms[i], caller);
    }
}

static bool find_openmpi(struct kumi_abi *abi, const void *caller)
{
    const struct {
        const char *symbol;
        kumi_handle *at;
    } objects[] = {
        {"ompi_mpi_byte", &abi->byte},
        {"ompi_mpi_unsigned_long", &abi->unsigned_long},
        {"ompi_mpi_op_band", &abi->bit_and},
        {"ompi_mpi_op_max", &abi->maximum},
        {"ompi_mpi_comm_world", &abi->world},
        {"ompi_mpi_comm_self", &abi->self},
        {"ompi_mpi_errors_return", &abi->errors_return},
        {"ompi_mpi_datatype_null", &abi->no_type},
        {"ompi_mpi_comm_null", &abi->no_communicator},
    };
    for (size_t i = 0; i < sizeof(objects) / sizeof(*objects); i++) {
        *objects[i].at = (kumi_handle)find_variable(objects[i].symbol, caller);
        if (*objects[i].at == 0)
            return false;
    }
    abi->in_place = (const void *)1;
    abi->status_ignore = NULL;
    abi->request_bytes = sizeof(void *);
    abi->status_bytes = OPENMPI_STATUS_BYTES;
    abi->status_error_at = OPENMPI_STATUS_ERROR_AT;
    abi->error_in_status = OPENMPI_ERR_IN_STATUS;
    abi->error_truncate = OPENMPI_ERR_TRUNCATE;
    abi->tag_limit_key = OPENMPI_TAG_UB;
    abi->any_source = OPENMPI_ANY_SOURCE;
    abi->combiner_named = 0;
    abi->yields = true;
    find_fortran_of_openmpi(abi, caller);
    return true;
}

static bool find_mpich(struct kumi_abi *abi, const void *caller)
{
    abi->byte = MPICH_BYTE;
    abi->unsigned_long = MPICH_UNSIGNED_LONG;
    abi->no_type = MPICH_DATATYPE_NULL;
    abi->bit_and = MPICH_BAND;
    abi->maximum = MPICH_MAX;
    abi->world = MPICH_WORLD;
    abi->self = MPICH_SELF;
    abi->no_communicator = MPICH_COMM_NULL;
    abi->errors_return = MPICH_ERRORS_RETURN;
    abi->in_place = (const void *)-1;
    abi->status_ignore = (void *)1;
    abi->request_bytes = sizeof(int);
    abi->status_bytes = MPICH_STATUS_BYTES;
    abi->status_error_at = MPICH_STATUS_ERROR_AT;
    abi->error_in_status = MPICH_ERR_IN_STATUS;
    abi->error_truncate = MPICH_ERR_TRUNCATE;
    abi->tag_limit_key = MPICH_TAG_UB;
    abi->any_source = MPICH_ANY_SOURCE;
    abi->combiner_named = 1;
    abi->fortran_in_place_at = find_variable("MPIR_F_MPI_IN_PLACE", caller);
    abi->fortran_bottom_at = find_variable("MPIR_F_MPI_BOTTOM", caller);
    /* The constants fit this library if its size of MPI_BYTE is 1. */
    int bytes = 0;
    return abi->Type_size(abi->byte, &bytes) == 0 && bytes == 1;
}

static bool find_constants(struct kumi_abi *abi, const void *caller)
{
    abi->undefined = UNDEFINED_OF_BOTH;
    return find_openmpi(abi, caller) || find_mpich(abi, caller);
}

static bool find_all(struct kumi_abi *abi, const void *caller)
{
    const char *missing = NULL;
#define FIND(name, arguments)                                           \
    abi->name = (int(*) arguments)kumi_mpi_find("PMPI_" #name, caller); \
    if (abi->name == NULL)                                              \
        missing = "PMPI_" #name;
    KUMI_MPI_FUNCTIONS(FIND)
#undef FIND
    if (missing == NULL && find_constants(abi, caller))
        return true;
    fprintf(stderr, "kumi: collectives are left to the MPI library, which lacks %s\n",
            missing == NULL ? "MPICH's and Open MPI's constants" : missing);
    return false;
}

const struct kumi_abi *kumi_mpi_library(const void *caller)
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
