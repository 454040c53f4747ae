/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wrappers, generated from the lists in calls.h. For each function there are the C symbol, the C
 * symbol with 64-bit counts, and the Fortran symbols.
 *
 * One binary serves all MPI libraries, without an mpi.h. A handle is an int in MPICH and a pointer
 * in Open MPI, so every argument is received and passed on as uintptr_t. This is sound because
 * every argument of these functions is of class INTEGER. In the calling conventions of x86-64
 * (System V) and AArch64 (AAPCS64), such an argument takes one 8-byte register, whatever its width.
 * When no register is left, it takes one 8-byte slot of the stack. The upper bytes of a narrower
 * argument are undefined, and the callee ignores them. So does marking.c, which narrows the
 * arguments that it reads.
 *
 * Fortran passes only addresses, with an error code last. There are no hidden lengths, because none
 * of these functions takes a string. Symbols that a program calls, and the functions behind them:
 *
 *                      Open MPI 4.1                  MPICH 4.0
 *
 *  mpif.h, use mpi     mpi_send_                     mpi_send_ -> MPI_Send
 *  use mpi_f08         mpi_send_f08_ -> PMPI_Send    mpi_send_f08ts_ -> MPI_Send
 *    without buffers   mpi_wait_f08_                 mpi_wait_f08_ -> PMPI_Wait
 *  for profiling       pmpi_send_, pmpi_send_f08_    pmpi_send_, pmpir_wait_f08_
 *
 * Open MPI's mpi_send_ calls PMPI_Send too. So mpi_send_ and mpi_send_f08_ are wrapped beside the C
 * functions. If a wrapped function calls another, only the outermost is marked. The symbols are
 * those of gfortran, which ifx and flang share on Linux.
 */

#include "calls.h"
#include "collectives.h"
#include "marking.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the wrappers rely on the calling conventions of x86-64 and AArch64"
#endif
_Static_assert(sizeof(uintptr_t) == 8, "an argument is a register");

#define PARAMETERS_1 uintptr_t a0
#define PARAMETERS_2 PARAMETERS_1, uintptr_t a1
#define PARAMETERS_3 PARAMETERS_2, uintptr_t a2
#define PARAMETERS_4 PARAMETERS_3, uintptr_t a3
#define PARAMETERS_5 PARAMETERS_4, uintptr_t a4
#define PARAMETERS_6 PARAMETERS_5, uintptr_t a5
#define PARAMETERS_7 PARAMETERS_6, uintptr_t a6
#define PARAMETERS_8 PARAMETERS_7, uintptr_t a7
#define PARAMETERS_9 PARAMETERS_8, uintptr_t a8
#define PARAMETERS_10 PARAMETERS_9, uintptr_t a9
#define PARAMETERS_11 PARAMETERS_10, uintptr_t a10
#define PARAMETERS_12 PARAMETERS_11, uintptr_t a11

#define ARGUMENTS_1 a0
#define ARGUMENTS_2 ARGUMENTS_1, a1
#define ARGUMENTS_3 ARGUMENTS_2, a2
#define ARGUMENTS_4 ARGUMENTS_3, a3
#define ARGUMENTS_5 ARGUMENTS_4, a4
#define ARGUMENTS_6 ARGUMENTS_5, a5
#define ARGUMENTS_7 ARGUMENTS_6, a6
#define ARGUMENTS_8 ARGUMENTS_7, a7
#define ARGUMENTS_9 ARGUMENTS_8, a8
#define ARGUMENTS_10 ARGUMENTS_9, a9
#define ARGUMENTS_11 ARGUMENTS_10, a10
#define ARGUMENTS_12 ARGUMENTS_11, a11

#define WRAPPER __attribute__((visibility("default")))

#define C_WRAPPER(name, suffix, count, what, how)                                                          \
    WRAPPER int MPI_##name##suffix(PARAMETERS_##count);                                                    \
    WRAPPER int MPI_##name##suffix(PARAMETERS_##count)                                                     \
    {                                                                                                      \
        static struct kumi_mpi_call call = {                                                               \
            .symbol = "MPI_" #name #suffix,                                                                \
            .profiling = {"PMPI_" #name #suffix},                                                          \
            .phase_name = "MPI_" #name,                                                                    \
            .kind = what,                                                                                  \
            .calling = how,                                                                                \
        };                                                                                                 \
        int (*real)(PARAMETERS_##count) = (int (*)(PARAMETERS_##count))kumi_mpi_straight(&call);           \
        if (real != NULL)                                                                                  \
            return real(ARGUMENTS_##count);                                                                \
        const uintptr_t arguments[] = {ARGUMENTS_##count};                                                 \
        real = (int (*)(PARAMETERS_##count))kumi_mpi_enter(&call, arguments, __builtin_return_address(0)); \
        if (real == NULL)                                                                                  \
            return KUMI_MPI_NOTHING_TO_CALL;                                                               \
        int result;                                                                                        \
        bool is_collective = what == COLLECTIVE || what == UNMARKED_COLLECTIVE;                            \
        if (!is_collective || !kumi_collective(&call, arguments, &result)) {                               \
            result = real(ARGUMENTS_##count);                                                              \
            if (is_collective)                                                                             \
                kumi_collective_left();                                                                    \
        }                                                                                                  \
        kumi_mpi_leave(&call, arguments);                                                                  \
        return result;                                                                                     \
    }

/* `ierror` is optional in mpi_f08, so its address may be NULL. */
#define FORTRAN_WRAPPER(name, fortran, ending, count, what)                                      \
    WRAPPER void mpi_##fortran##ending(PARAMETERS_##count, int *error);                          \
    WRAPPER void mpi_##fortran##ending(PARAMETERS_##count, int *error)                           \
    {                                                                                            \
        static struct kumi_mpi_call call = {                                                     \
            .symbol = "mpi_" #fortran #ending,                                                   \
            .profiling = {"pmpi_" #fortran #ending, "pmpir_" #fortran #ending},                  \
            .phase_name = "MPI_" #name,                                                          \
            .kind = what,                                                                        \
            .calling = BY_ADDRESS,                                                               \
        };                                                                                       \
        void (*real)(PARAMETERS_##count, int *) =                                                \
            (void (*)(PARAMETERS_##count, int *))kumi_mpi_straight(&call);                       \
        if (real != NULL) {                                                                      \
            real(ARGUMENTS_##count, error);                                                      \
            return;                                                                              \
        }                                                                                        \
        const uintptr_t arguments[] = {ARGUMENTS_##count};                                       \
        real = (void (*)(PARAMETERS_##count, int *))kumi_mpi_enter(&call, arguments,             \
                                                                   __builtin_return_address(0)); \
        if (real == NULL) {                                                                      \
            if (error != NULL)                                                                   \
                *error = KUMI_MPI_NOTHING_TO_CALL;                                               \
            return;                                                                              \
        }                                                                                        \
        int result;                                                                              \
        bool is_collective = what == COLLECTIVE || what == UNMARKED_COLLECTIVE;                  \
        if (!is_collective || !kumi_collective(&call, arguments, &result)) {                     \
            real(ARGUMENTS_##count, error);                                                      \
            if (is_collective)                                                                   \
                kumi_collective_left();                                                          \
        } else if (error != NULL) {                                                              \
            *error = result;                                                                     \
        }                                                                                        \
        kumi_mpi_leave(&call, arguments);                                                        \
    }

#define COUNTED(name, fortran, count, what)          \
    C_WRAPPER(name, , count, what, BY_VALUE)         \
    C_WRAPPER(name, _c, count, what, BY_VALUE_LARGE) \
    FORTRAN_WRAPPER(name, fortran, _, count, what)   \
    FORTRAN_WRAPPER(name, fortran, _f08_, count, what)

#define ON_REQUESTS(name, fortran, count, what)    \
    C_WRAPPER(name, , count, what, BY_VALUE)       \
    FORTRAN_WRAPPER(name, fortran, _, count, what) \
    FORTRAN_WRAPPER(name, fortran, _f08_, count, what)

KUMI_MPI_COUNTED_CALLS(COUNTED)
KUMI_MPI_REQUEST_CALLS(ON_REQUESTS)
