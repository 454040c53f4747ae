/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Phases of an MPI program in C, on two ranks. It links kumi_phase.c, so that the page has two
 * writers: this copy and that of the preload library.
 */
#include <mpi.h>
#include <string.h>

#include "expect.h"
#include "kumi.h"

enum { RANKS = 2, LONG_BYTES = 64 * 1024, CALLS = 8 };

static int rank, other;
static char out_bytes[LONG_BYTES], in_bytes[LONG_BYTES];

/*
 * Phase that observing_sum() saw. MPI calls a reduction's operation within the collective. Nothing
 * else can read the phase during a collective without a second thread.
 */
static int seen_in_reduction;

static void observing_sum(void *in, void *inout, int *length, MPI_Datatype *type)
{
    (void)type;
    seen_in_reduction = phase_index();
    for (int i = 0; i < *length; i++)
        ((int *)inout)[i] += ((int *)in)[i];
}

static bool exchange(int bytes)
{
    memset(out_bytes, 'a' + rank, sizeof(out_bytes));
    MPI_Sendrecv(out_bytes, bytes, MPI_BYTE, other, 7, in_bytes, bytes, MPI_BYTE, other, 7, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    return in_bytes[0] == 'a' + other && in_bytes[bytes - 1] == 'a' + other;
}

static bool alltoall(void)
{
    int out[RANKS] = {10 * rank, 10 * rank + 1}, in[RANKS] = {-1, -1};
    int error = MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    return error == MPI_SUCCESS && in[0] == rank && in[1] == 10 + rank;
}

static void during(MPI_Op sum)
{
    int one = 1, total = 0;
    seen_in_reduction = -1;
    MPI_Allreduce(&one, &total, 1, MPI_INT, sum, MPI_COMM_WORLD);
    expect_index("during MPI_Allreduce the phase is MPI_Allreduce", seen_in_reduction, "MPI_Allreduce");
    expect_true("MPI_Allreduce sums", total == RANKS);
    seen_in_reduction = -1;
    MPI_Reduce(&one, &total, 1, MPI_INT, sum, 0, MPI_COMM_WORLD);
    if (rank == 0)
        expect_index("during MPI_Reduce the phase is MPI_Reduce", seen_in_reduction, "MPI_Reduce");
}

static void inference(void)
{
    expect_true("MPI_Alltoall delivers", alltoall());
    expect_phase("after MPI_Alltoall the phase stays MPI_Alltoall", "MPI_Alltoall");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Bcast(out_bytes, LONG_BYTES, MPI_BYTE, 0, MPI_COMM_WORLD);
    expect_phase("through a barrier and a broadcast it stays", "MPI_Alltoall");
    expect_true("MPI_Sendrecv, 12 arguments, delivers", exchange(8));
    expect_phase("through a small send it stays", "MPI_Alltoall");
    for (int i = 1; i < CALLS - 1; i++)
        exchange(8);
    expect_phase("through 7 small sends it stays", "MPI_Alltoall");
    exchange(8);
    expect_phase("with the 8th small send it is point-to-point", "point-to-point");

    alltoall();
    exchange(LONG_BYTES - 1);
    expect_phase("through one send of 64 KiB less a byte it stays", "MPI_Alltoall");
    expect_true("a send of 64 KiB delivers", exchange(LONG_BYTES));
    expect_phase("with one send of 64 KiB it is point-to-point", "point-to-point");

    alltoall();
    for (int i = 0; i < 2 * CALLS; i++)
        MPI_Send(out_bytes, LONG_BYTES, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    expect_phase("sends to MPI_PROC_NULL are no sends", "MPI_Alltoall");
    for (int i = 0; i < CALLS; i++) {
        exchange(8);
        if (i == CALLS / 2)
            alltoall();
    }
    expect_phase("a collective starts the count anew", "MPI_Alltoall");

    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_Send_init(out_bytes, 8, MPI_BYTE, other, 9, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(in_bytes, 8, MPI_BYTE, other, 9, MPI_COMM_WORLD, &requests[1]);
    alltoall();
    for (int i = 0; i < CALLS / 2; i++) {
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, statuses);
    }
    expect_phase("MPI_Startall counts its requests", "point-to-point");
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
}

static void exchange_begin(MPI_Request *requests)
{
    for (int i = 0; i < CALLS; i++) {
        MPI_Irecv(in_bytes + i, 1, MPI_BYTE, other, i, MPI_COMM_WORLD, &requests[2 * i]);
        MPI_Isend(out_bytes + i, 1, MPI_BYTE, other, i, MPI_COMM_WORLD, &requests[2 * i + 1]);
    }
}

static void nonblocking(void)
{
    int out[RANKS] = {rank, rank}, in[RANKS] = {-1, -1};
    MPI_Request request, overlapping[2 * CALLS];
    MPI_Status statuses[2 * CALLS];
    MPI_Ialltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD, &request);
    expect_phase("MPI_Ialltoall marks from its call on", "MPI_Ialltoall");
    exchange_begin(overlapping);
    expect_phase("calls that overlap with it are not counted", "MPI_Ialltoall");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect_true("MPI_Ialltoall delivers", in[0] == 0 && in[1] == 1);
    expect_phase("after MPI_Wait it stays", "MPI_Ialltoall");
    MPI_Waitall(2 * CALLS, overlapping, statuses);
    for (int i = 0; i < CALLS; i++)
        exchange(8);
    expect_phase("after MPI_Wait calls are counted again", "point-to-point");
}

static void scopes(MPI_Op sum)
{
    kumi_phase_begin("solver");
    expect_phase("a scope of the program marks its phase", "solver");
    alltoall();
    expect_phase("in a scope, after a collective the phase is the scope's at once", "solver");
    int one = 1, total = 0;
    MPI_Allreduce(&one, &total, 1, MPI_INT, sum, MPI_COMM_WORLD);
    expect_index("in a scope, during a collective it is the collective's", seen_in_reduction,
                 "MPI_Allreduce");
    exchange(LONG_BYTES);
    expect_phase("in a scope, a send of 64 KiB does not switch", "solver");

    int out[RANKS] = {0}, in[RANKS];
    MPI_Request request;
    MPI_Ialltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD, &request);
    expect_phase("in a scope, MPI_Ialltoall marks", "MPI_Ialltoall");
    int done = 0;
    while (!done)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    expect_phase("in a scope, MPI_Test that completes gives the phase back", "solver");

    kumi_phase_begin("preconditioner");
    alltoall();
    expect_phase("in a nested scope, after a collective the phase is the inner one", "preconditioner");
    kumi_phase_end();
    expect_phase("after the inner scope it is the outer one", "solver");
    kumi_phase_end();
    expect_phase("after the outer scope it is point-to-point", "point-to-point");
}

/* Calls functions with arguments on the stack, so that a wrong argument count corrupts the data. */
static void arguments(void)
{
    int counts[RANKS] = {1, 1}, places[RANKS] = {0, 1}, offsets[RANKS] = {0, sizeof(int)};
    int out[RANKS] = {10 * rank, 10 * rank + 1}, in[RANKS];
    MPI_Datatype types[RANKS] = {MPI_INT, MPI_INT};
    bool right = true;

    memset(in, -1, sizeof(in));
    MPI_Alltoallv(out, counts, places, MPI_INT, in, counts, places, MPI_INT, MPI_COMM_WORLD);
    right = right && in[0] == rank && in[1] == 10 + rank;
    memset(in, -1, sizeof(in));
    MPI_Alltoallw(out, counts, offsets, types, in, counts, offsets, types, MPI_COMM_WORLD);
    right = right && in[0] == rank && in[1] == 10 + rank;
    memset(in, -1, sizeof(in));
    MPI_Request request;
    MPI_Ialltoallw(out, counts, offsets, types, in, counts, offsets, types, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    right = right && in[0] == rank && in[1] == 10 + rank;
    expect_true("MPI_Alltoallv, Alltoallw and Ialltoallw deliver", right);

    memset(in, -1, sizeof(in));
    MPI_Allgatherv(out, 1, MPI_INT, in, counts, places, MPI_INT, MPI_COMM_WORLD);
    right = in[0] == 0 && in[1] == 10;
    memset(in, -1, sizeof(in));
    MPI_Gatherv(out, 1, MPI_INT, in, counts, places, MPI_INT, 1, MPI_COMM_WORLD);
    right = right && (rank != 1 || (in[0] == 0 && in[1] == 10));
    MPI_Scatterv(out, counts, places, MPI_INT, in, 1, MPI_INT, 1, MPI_COMM_WORLD);
    right = right && in[0] == 10 + rank;
    MPI_Reduce_scatter(out, in, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    right = right && in[0] == 10 + 2 * rank;
    MPI_Scan(out, in, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    right = right && in[0] == 10 * rank;
    expect_true("MPI_Allgatherv, Gatherv, Scatterv, Reduce_scatter and Scan deliver", right);
    expect_phase("the last of them is the phase", "MPI_Scan");

    int extent = RANKS, periodic = 1;
    MPI_Comm ring;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &extent, &periodic, 0, &ring);
    memset(in, -1, sizeof(in));
    MPI_Neighbor_allgather(out, 1, MPI_INT, in, 1, MPI_INT, ring);
    expect_true("MPI_Neighbor_allgather delivers", in[0] == 10 * other && in[1] == 10 * other);
    expect_phase("and is marked", "MPI_Neighbor_allgather");
    MPI_Comm_free(&ring);
#if MPI_VERSION >= 4
    memset(in, -1, sizeof(in));
    MPI_Alltoall_c(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    expect_true("MPI_Alltoall_c delivers", in[0] == rank && in[1] == 10 + rank);
    expect_phase("and is marked as MPI_Alltoall", "MPI_Alltoall");
#endif
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    other = 1 - rank;
    expect_rank(rank);
    expect_phase("a program begins in point-to-point", "point-to-point");
    MPI_Op sum;
    MPI_Op_create(observing_sum, 1, &sum);
    during(sum);
    inference();
    nonblocking();
    scopes(sum);
    arguments();
    MPI_Op_free(&sum);
    MPI_Finalize();
    return expect_result();
}
