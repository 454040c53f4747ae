/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An MPI library whose MPI_Alltoall is slow: a function that is preloaded before the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <unistd.h>

enum { SLOW_MICROSECONDS = 20000 };

int MPI_Alltoall(void *from, int out, uintptr_t out_type, void *to, int in, uintptr_t in_type,
                 uintptr_t comm);
int MPI_Alltoall(void *from, int out, uintptr_t out_type, void *to, int in, uintptr_t in_type, uintptr_t comm)
{
    int (*real)(void *, int, uintptr_t, void *, int, uintptr_t, uintptr_t) =
        (int (*)(void *, int, uintptr_t, void *, int, uintptr_t, uintptr_t))dlsym(RTLD_NEXT, "PMPI_Alltoall");
    usleep(SLOW_MICROSECONDS);
    return real(from, out, out_type, to, in, in_type, comm);
}
