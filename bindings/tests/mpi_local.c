/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * MPI in an interpreter: the program is not linked with MPI. It loads a module that is, with
 * RTLD_LOCAL. With -DMODULE this file is the module.
 */
#include "expect.h"

#ifdef MODULE
#include <mpi.h>
#include <stddef.h>

void run(void);
void run(void)
{
    int rank, out[2], in[2] = {-1, -1};
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    expect_rank(rank);
    out[0] = 10 * rank;
    out[1] = 10 * rank + 1;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    expect_true("loaded with RTLD_LOCAL: MPI_Alltoall delivers", in[0] == rank && in[1] == 10 + rank);
    expect_phase("loaded with RTLD_LOCAL: the phase is marked", "MPI_Alltoall");
    MPI_Finalize();
}
#else
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *module = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW | RTLD_LOCAL);
    void (*run)(void) = module == NULL ? NULL : (void (*)(void))dlsym(module, "run");
    if (run == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    run();
    return expect_result();
}
#endif
