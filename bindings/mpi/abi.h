/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the replaced collectives need of the MPI library: its own functions, and the constants that differ from one
 * library to the other. Handles are kept as uintptr_t: ints in MPICH, addresses in Open MPI.
 */
#ifndef KUMI_MPI_ABI_H
#define KUMI_MPI_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kumi_page_access.h"

typedef uintptr_t kumi_handle;

/* X(name, arguments). The upper half of an int's register is undefined, and nobody looks at it. */
#define KUMI_MPI_FUNCTIONS(X)                                                                       \
    X(Comm_size, (kumi_handle, int *))                                                             \
    X(Comm_rank, (kumi_handle, int *))                                                             \
    X(Comm_test_inter, (kumi_handle, int *))                                                       \
    X(Comm_dup, (kumi_handle, kumi_handle *))                                                      \
    X(Comm_free, (kumi_handle *))                                                                  \
    X(Comm_create_keyval, (void *, void *, int *, void *))                                         \
    X(Comm_get_attr, (kumi_handle, int, void *, int *))                                            \
    X(Comm_set_attr, (kumi_handle, int, void *))                                                   \
    X(Type_size, (kumi_handle, int *))                                                             \
    X(Type_get_extent, (kumi_handle, intptr_t *, intptr_t *))                                      \
    X(Type_get_envelope, (kumi_handle, int *, int *, int *, int *))                                \
    X(Pack, (const void *, int, kumi_handle, void *, int, int *, kumi_handle))                     \
    X(Unpack, (const void *, int, int *, void *, int, kumi_handle, kumi_handle))                   \
    X(Op_commutative, (kumi_handle, int *))                                                        \
    X(Reduce_local, (const void *, void *, int, kumi_handle, kumi_handle))                         \
    X(Isend, (const void *, int, kumi_handle, int, int, kumi_handle, void *))                      \
    X(Issend, (const void *, int, kumi_handle, int, int, kumi_handle, void *))                     \
    X(Irecv, (void *, int, kumi_handle, int, int, kumi_handle, void *))                            \
    X(Waitsome, (int, void *, int *, int *, void *))                                               \
    X(Allgather, (const void *, int, kumi_handle, void *, int, kumi_handle, kumi_handle))          \
    X(Bcast, (void *, int, kumi_handle, int, kumi_handle))

enum { KUMI_FORTRAN_IN_PLACES = 4 };

enum kumi_handle_kind { KUMI_COMMUNICATOR, KUMI_DATATYPE, KUMI_OPERATION };

struct kumi_abi {
    /* Open MPI's functions from a Fortran handle to one of C, by kind; NULL where the two are the same. */
    kumi_handle (*from_fortran[3])(int32_t);
#define FUNCTION(name, arguments) int(*name) arguments;
    KUMI_MPI_FUNCTIONS(FUNCTION)
#undef FUNCTION
    kumi_handle byte, world;
    /* MPI_IN_PLACE, and MPI_STATUSES_IGNORE. */
    const void *in_place;
    void *statuses_ignore;
    /* What Fortran passes for MPI_IN_PLACE: one of these addresses. */
    const void *fortran_in_place[KUMI_FORTRAN_IN_PLACES];
    /* sizeof(MPI_Request), and MPI_COMBINER_NAMED. */
    size_t request_bytes;
    int combiner_named;
};

/* The library behind the code at `caller`, or NULL, said once, if it lacks something. */
KUMI_HIDDEN const struct kumi_abi *kumi_abi(const void *caller);

#endif
