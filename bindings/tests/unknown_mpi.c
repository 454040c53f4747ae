/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An MPI library that kumi does not know (-DLIBRARY), and a program that calls it. */
int MPI_Alltoall(const void *, int, long, void *, int, long, long);
int PMPI_Alltoall(const void *, int, long, void *, int, long, long);
int PMPI_Get_library_version(char *, int *);

#ifdef LIBRARY
#include <string.h>

int PMPI_Get_library_version(char *version, int *length)
{
    strcpy(version, "Phantom MPI 0.1\nbuilt nowhere");
    *length = (int)strlen(version);
    return 0;
}

int PMPI_Alltoall(const void *out, int count, long type, void *in, int in_count, long in_type,
                  long communicator)
{
    (void)out, (void)in, (void)type, (void)in_type;
    return count == 1 && in_count == 2 && communicator == 3 ? 0 : 99;
}

int MPI_Alltoall(const void *, int, long, void *, int, long, long)
    __attribute__((weak, alias("PMPI_Alltoall")));
#else
#include "expect.h"

int main(void)
{
    int first = MPI_Alltoall("", 1, 0, &(int){0}, 2, 0, 3);
    int second = MPI_Alltoall("", 1, 0, &(int){0}, 2, 0, 3);
    expect_true("calls are forwarded", first == 0 && second == 0);
    expect_phase("no phase is marked", "point-to-point");
    return expect_result();
}
#endif
