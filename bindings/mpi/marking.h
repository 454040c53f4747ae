/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interface between the generated wrappers (wrappers.c), the phase marking (marking.c) and the
 * lookup of the MPI library (library.c).
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

/* Passing of arguments: by value, by value with 64-bit counts, or by address. */
enum kumi_mpi_calling { BY_VALUE, BY_VALUE_LARGE, BY_ADDRESS };

/* One wrapped function: constants of the build, and results that are cached at its first call. */
struct kumi_mpi_call {
    /* Wrapped symbol. */
    const char *symbol;
    /*
     * Symbols to forward to if there is no next function of the wrapped name. The first that exists
     * is used. The second may be NULL.
     */
    const char *profiling[2];
    /* C name without suffix, which is the name of the phase. */
    const char *phase_name;
    enum kumi_mpi_kind kind;
    enum kumi_mpi_calling calling;
    /* Function to forward to; NULL until found. */
    void *real;
    /* 1 + index of `phase_name` in the page; 0 until looked up. */
    uint32_t phase;
    /* Replacement of a collective (collectives.c); NULL until looked up. */
    const struct replaced *replaced;
};

/*
 * Result if there is no function to forward to: MPI_ERR_OTHER in Open MPI, MPI_ERR_INTERN in MPICH.
 * It must differ from MPI_SUCCESS.
 */
enum { KUMI_MPI_NOTHING_TO_CALL = 16 };

/*
 * True if MPI has been initialised and neither phases are marked nor collectives planned. Wrappers
 * then only forward. Some MPI calls within a host take 0.1 µs, and the rest of a wrapper would add
 * 0.05 µs (docs/perf-log.md, 2026-11-24).
 */
extern bool kumi_mpi_is_idle KUMI_HIDDEN;

/* Returns the function to forward to immediately, or NULL if the wrapper has more to do. */
static inline void *kumi_mpi_straight(const struct kumi_mpi_call *call)
{
    return __atomic_load_n(&kumi_mpi_is_idle, __ATOMIC_RELAXED)
               ? __atomic_load_n(&call->real, __ATOMIC_RELAXED)
               : NULL;
}

/* Called after MPI has been initialised. `is_planning` is true if collectives are planned. */
KUMI_HIDDEN void kumi_mpi_begun(bool is_planning);

/*
 * Marks the phase and returns the function to forward to. Every wrapper calls it first. `arguments`
 * are those of the call, `caller` is its return address. Returns NULL if there is no such function.
 * In that case kumi_mpi_leave() must not be called.
 */
KUMI_HIDDEN void *kumi_mpi_enter(struct kumi_mpi_call *call, const uintptr_t *arguments, const void *caller);

/*
 * Returns whether the innermost active wrapper is the only one. Wrappers can nest, because MPICH's
 * Fortran functions call its C functions.
 */
KUMI_HIDDEN bool kumi_mpi_is_outermost(void);

/* Ends the call. Every wrapper calls it last. */
KUMI_HIDDEN void kumi_mpi_leave(struct kumi_mpi_call *call, const uintptr_t *arguments);

/*
 * Returns the address of `symbol` in the MPI library to which the code at `caller` is linked, or
 * NULL.
 */
KUMI_HIDDEN void *kumi_mpi_find(const char *symbol, const void *caller);

/* Returns the function to which `call` is forwarded, or NULL. */
KUMI_HIDDEN void *kumi_mpi_find_real(const struct kumi_mpi_call *call, const void *caller);

/*
 * Returns the file name of a profiler that is loaded between this library and the MPI library, or
 * NULL.
 */
KUMI_HIDDEN const char *kumi_mpi_profiler(const void *caller);

/*
 * Returns whether calls of the library can be marked. The library is checked once. If it is
 * unknown, one message is written to stderr.
 */
KUMI_HIDDEN bool kumi_mpi_known_library(const void *caller);

#endif
