/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Between the generated wrappers (wrappers.c), what a call means for the phase (marking.c) and the
 * MPI library that does the work (library.c).
 */
#ifndef KUMI_MPI_MARKING_H
#define KUMI_MPI_MARKING_H

#include <stdbool.h>
#include <stdint.h>

#include "kumi_page_access.h"

enum kumi_mpi_kind {
    COLLECTIVE,
    UNMARKED_COLLECTIVE,
    NONBLOCKING,
    SEND,
    SEND_INIT,
    RECEIVE,
    START,
    STARTALL,
    WAIT,
    TEST_AT_1,
    TEST_AT_2,
    TEST_AT_3,
};

/* How arguments are passed: by value; by value and with 64-bit counts; by address. */
enum kumi_mpi_calling { BY_VALUE, BY_VALUE_LARGE, BY_ADDRESS };

/* One wrapped function: what is known when compiled, and what is found out at its first call. */
struct kumi_mpi_call {
    /* The wrapped symbol. */
    const char *symbol;
    /* The symbols to forward to where there is no next function of the wrapped name: the first
     * that exists. The second may be NULL. */
    const char *profiling[2];
    /* The C name without suffix, which is the name of the phase. */
    const char *phase_name;
    enum kumi_mpi_kind kind;
    enum kumi_mpi_calling calling;
    /* The function to forward to; NULL until found. */
    void *real;
    /* 1 + index of phase_name in the page; 0 until looked up. */
    uint32_t phase;
    /* What a collective is replaced with (collectives.c); NULL until looked up. */
    const struct replaced *replaced;
};

/* Returned when there is nothing to forward to. MPI_ERR_OTHER in Open MPI, MPI_ERR_INTERN in MPICH,
 * and above all not MPI_SUCCESS. */
enum { KUMI_MPI_NOTHING_TO_CALL = 16 };

/* Set when MPI has begun and neither a phase is marked nor a collective planned: wrappers only
 * forward. Some MPI calls within a host take 0.1 µs, and what else a wrapper does takes 0.05. */
extern bool kumi_mpi_is_idle KUMI_HIDDEN;

/* The function to forward to at once, or NULL if there is more to do. */
static inline void *kumi_mpi_straight(const struct kumi_mpi_call *call)
{
    return __atomic_load_n(&kumi_mpi_is_idle, __ATOMIC_RELAXED)
               ? __atomic_load_n(&call->real, __ATOMIC_RELAXED)
               : NULL;
}

/* MPI has begun; whether collectives are planned. */
KUMI_HIDDEN void kumi_mpi_begun(bool is_planning);

/*
 * Called first by every wrapper: returns the function to forward to, and marks the phase.
 * `arguments` are those of the call, `caller` is its return address. NULL if there is no such
 * function; then kumi_mpi_leave() must not be called.
 */
KUMI_HIDDEN void *kumi_mpi_enter(struct kumi_mpi_call *call, const uintptr_t *arguments,
                                 const void *caller);

/* Whether the wrapper that has been entered last is not called by another: MPICH's Fortran calls
 * its C. */
KUMI_HIDDEN bool kumi_mpi_is_outermost(void);

/* Called last by every wrapper. */
KUMI_HIDDEN void kumi_mpi_leave(struct kumi_mpi_call *call, const uintptr_t *arguments);

/* The address of `symbol` in the MPI library that the code at `caller` is linked to, or NULL. */
KUMI_HIDDEN void *kumi_mpi_find(const char *symbol, const void *caller);

/* kumi_mpi_find for whichever symbol `call` is to be forwarded to. */
KUMI_HIDDEN void *kumi_mpi_find_real(const struct kumi_mpi_call *call, const void *caller);

/* The file of a profiler that is loaded between this library and the MPI library, or NULL. */
KUMI_HIDDEN const char *kumi_mpi_profiler(const void *caller);

/* Whether the library is one whose calls can be marked. Asked once, said on stderr if not. */
KUMI_HIDDEN bool kumi_mpi_known_library(const void *caller);

#endif
