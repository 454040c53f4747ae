/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interface of the planned collectives to the MPI library: its own functions, and the constants
 * that differ between libraries. Handles are kept as uintptr_t. They are ints in MPICH and
 * addresses in Open MPI.
 */
#ifndef KUMI_MPI_ABI_H
#define KUMI_MPI_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kumi_page_access.h"

typedef uintptr_t kumi_handle;

/*
 * X(name, arguments). An MPICH handle is an int, so MPICH ignores the upper half of its register.
 */
#define KUMI_MPI_FUNCTIONS(X)                                                                              \
    X(Comm_size, (kumi_handle, int *))                                                                     \
    X(Comm_rank, (kumi_handle, int *))                                                                     \
    X(Comm_test_inter, (kumi_handle, int *))                                                               \
    X(Comm_dup, (kumi_handle, kumi_handle *))                                                              \
    X(Comm_group, (kumi_handle, kumi_handle *))                                                            \
    X(Comm_set_errhandler, (kumi_handle, kumi_handle))                                                     \
    X(Comm_call_errhandler, (kumi_handle, int))                                                            \
    X(Group_free, (kumi_handle *))                                                                         \
    X(Group_translate_ranks, (kumi_handle, int, const int *, kumi_handle, int *))                          \
    X(Comm_create_keyval, (void *, void *, int *, void *))                                                 \
    X(Comm_get_attr, (kumi_handle, int, void *, int *))                                                    \
    X(Comm_set_attr, (kumi_handle, int, void *))                                                           \
    X(Type_size, (kumi_handle, int *))                                                                     \
    X(Type_get_extent, (kumi_handle, intptr_t *, intptr_t *))                                              \
    X(Type_get_envelope, (kumi_handle, int *, int *, int *, int *))                                        \
    X(Pack, (const void *, int, kumi_handle, void *, int, int *, kumi_handle))                             \
    X(Unpack, (const void *, int, int *, void *, int, kumi_handle, kumi_handle))                           \
    X(Op_commutative, (kumi_handle, int *))                                                                \
    X(Reduce_local, (const void *, void *, int, kumi_handle, kumi_handle))                                 \
    X(Isend, (const void *, int, kumi_handle, int, int, kumi_handle, void *))                              \
    X(Issend, (const void *, int, kumi_handle, int, int, kumi_handle, void *))                             \
    X(Irecv, (void *, int, kumi_handle, int, int, kumi_handle, void *))                                    \
    X(Sendrecv,                                                                                            \
      (const void *, int, kumi_handle, int, int, void *, int, kumi_handle, int, int, kumi_handle, void *)) \
    X(Testsome, (int, void *, int *, int *, void *))                                                       \
    X(Wait, (void *, void *))                                                                              \
    X(Test, (void *, int *, void *))                                                                       \
    X(Cancel, (void *))                                                                                    \
    X(Request_free, (void *))                                                                              \
    X(Get_count, (const void *, kumi_handle, int *))                                                       \
    X(Error_class, (int, int *))                                                                           \
    X(Allgather, (const void *, int, kumi_handle, void *, int, kumi_handle, kumi_handle))                  \
    X(Allreduce, (const void *, void *, int, kumi_handle, kumi_handle, kumi_handle))                       \
    X(Iallreduce, (const void *, void *, int, kumi_handle, kumi_handle, kumi_handle, void *))

/* Spellings of the symbol of a Fortran common block, by compiler. */
enum { KUMI_FORTRAN_SPELLINGS = 4 };

/* Largest size of MPI_Request and MPI_Status, in bytes: that of Open MPI. */
enum { KUMI_REQUEST_BYTES_MAX = 8, KUMI_STATUS_BYTES_MAX = 24 };

enum kumi_handle_kind { KUMI_COMMUNICATOR, KUMI_DATATYPE, KUMI_OPERATION };

struct kumi_abi {
    /*
     * Open MPI's functions that convert a Fortran handle to a C handle, by kind. NULL if both are
     * the same.
     */
    kumi_handle (*from_fortran[3])(int32_t);
#define FUNCTION(name, arguments) int(*name) arguments;
    KUMI_MPI_FUNCTIONS(FUNCTION)
#undef FUNCTION
    /*
     * MPI_BYTE, MPI_UNSIGNED_LONG, MPI_DATATYPE_NULL, MPI_BAND, MPI_MAX, MPI_COMM_WORLD,
     * MPI_COMM_SELF, MPI_COMM_NULL and MPI_ERRORS_RETURN.
     */
    kumi_handle byte, unsigned_long, no_type, bit_and, maximum, world, self, no_communicator, errors_return;
    /*
     * MPI_IN_PLACE, and MPI_STATUS_IGNORE, which equals MPI_STATUSES_IGNORE. MPI_BOTTOM is NULL in
     * both libraries.
     */
    const void *in_place;
    void *status_ignore;
    /* Addresses that Fortran passes for MPI_IN_PLACE and MPI_BOTTOM. */
    const void *fortran_in_place[KUMI_FORTRAN_SPELLINGS];
    const void *fortran_bottom[KUMI_FORTRAN_SPELLINGS];
    /* MPICH's variables for the same two constants. MPICH sets them when Fortran is initialised. */
    const void *const *fortran_in_place_at, *const *fortran_bottom_at;
    /* sizeof(MPI_Request), sizeof(MPI_Status), and the offset of MPI_ERROR in MPI_Status. */
    size_t request_bytes, status_bytes, status_error_at;
    int combiner_named;
    /*
     * True if the library's MPI_Test... functions can yield the processor to other ranks. Open MPI
     * has the option mpi_yield_when_idle for it.
     */
    bool yields;
    /* MPI_UNDEFINED, MPI_ANY_SOURCE, MPI_ERR_IN_STATUS, MPI_ERR_TRUNCATE and MPI_TAG_UB. */
    int undefined, any_source, error_in_status, error_truncate, tag_limit_key;
};

/*
 * Returns the MPI library that the code at `caller` uses. If the library is unknown or lacks a
 * function or constant, writes one message to stderr and returns NULL.
 */
KUMI_HIDDEN const struct kumi_abi *kumi_mpi_library(const void *caller);

#endif
