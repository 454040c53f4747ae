/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls of a collective whose lengths differ between ranks, which is an error of the program. The
 * call may end the job or return any result. It must not hang where the MPI library alone does not
 * hang. Usage: mpi_mismatch CASE [return|dup].
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lengths in ints: of a block that is planned, and of a block that the MPI library handles. */
enum { LONG = 50000, SHORT = 100 };

static int rank, ranks, *from, *to, *counts, *places;

/* Returns SHORT on the rank `odd`, and LONG on all others. */
static int length(int odd)
{
    return rank == odd ? SHORT : LONG;
}

static void spread(int count)
{
    for (int i = 0; i < ranks; i++) {
        counts[i] = count;
        places[i] = i * 2 * LONG;
    }
}

static int call(const char *name, MPI_Comm comm)
{
    int last = ranks - 1;
    if (strcmp(name, "bcast-short-root") == 0)
        return MPI_Bcast(to, length(0), MPI_INT, 0, comm);
    if (strcmp(name, "bcast-short-leaf") == 0)
        return MPI_Bcast(to, length(last), MPI_INT, 0, comm);
    if (strcmp(name, "bcast-long-root") == 0)
        return MPI_Bcast(to, rank == 0 ? LONG : SHORT, MPI_INT, 0, comm);
    if (strcmp(name, "bcast-half-root") == 0)
        return MPI_Bcast(to, rank == 0 ? LONG : 2 * LONG, MPI_INT, 0, comm);
    if (strcmp(name, "bcast-twice-root") == 0)
        return MPI_Bcast(to, rank == 0 ? 2 * LONG : LONG, MPI_INT, 0, comm);
    if (strcmp(name, "gather-short-leaf") == 0)
        return MPI_Gather(from, length(last), MPI_INT, to, LONG, MPI_INT, 0, comm);
    if (strcmp(name, "gather-long-leaf") == 0)
        return MPI_Gather(from, rank == last ? LONG : SHORT, MPI_INT, to, SHORT, MPI_INT, 0, comm);
    if (strcmp(name, "gather-half-leaf") == 0)
        return MPI_Gather(from, rank == last ? LONG / 2 : LONG, MPI_INT, to, LONG, MPI_INT, 0, comm);
    if (strcmp(name, "scatter-short-leaf") == 0)
        return MPI_Scatter(from, LONG, MPI_INT, to, length(last), MPI_INT, 0, comm);
    if (strcmp(name, "scatter-short-root") == 0)
        return MPI_Scatter(from, SHORT, MPI_INT, to, length(0), MPI_INT, 0, comm);
    if (strcmp(name, "allgather-short") == 0)
        return MPI_Allgather(from, length(last), MPI_INT, to, length(last), MPI_INT, comm);
    if (strcmp(name, "allgather-half") == 0) {
        int count = rank == last ? LONG / 2 : LONG;
        return MPI_Allgather(from, count, MPI_INT, to, count, MPI_INT, comm);
    }
    if (strcmp(name, "alltoall-short") == 0)
        return MPI_Alltoall(from, length(last), MPI_INT, to, length(last), MPI_INT, comm);
    if (strcmp(name, "allreduce-short") == 0)
        return MPI_Allreduce(from, to, length(last), MPI_INT, MPI_SUM, comm);
    if (strcmp(name, "allreduce-half") == 0)
        return MPI_Allreduce(from, to, rank == last ? 2 * LONG : 4 * LONG, MPI_INT, MPI_SUM, comm);
    if (strcmp(name, "reduce-short-leaf") == 0)
        return MPI_Reduce(from, to, length(last), MPI_INT, MPI_SUM, 0, comm);
    if (strcmp(name, "allgatherv-short") == 0) {
        spread(length(last));
        return MPI_Allgatherv(from, length(last), MPI_INT, to, counts, places, MPI_INT, comm);
    }
    if (strcmp(name, "gatherv-short-leaf") == 0) {
        spread(LONG);
        /* After these calls the history has long blocks, so the last call is planned. */
        for (int i = 0; i < 3; i++)
            MPI_Gatherv(from, LONG, MPI_INT, to, counts, places, MPI_INT, 0, comm);
        return MPI_Gatherv(from, length(last), MPI_INT, to, counts, places, MPI_INT, 0, comm);
    }
    if (strcmp(name, "gatherv-none-leaf") == 0) {
        spread(LONG);
        for (int i = 0; i < 3; i++)
            MPI_Gatherv(from, LONG, MPI_INT, to, counts, places, MPI_INT, 0, comm);
        return MPI_Gatherv(from, rank == last ? 0 : LONG, MPI_INT, to, counts, places, MPI_INT, 0, comm);
    }
    if (strcmp(name, "alltoallv-short") == 0) {
        spread(LONG);
        for (int i = 0; i < 3; i++)
            MPI_Alltoallv(from, counts, places, MPI_INT, to, counts, places, MPI_INT, comm);
        spread(length(last));
        return MPI_Alltoallv(from, counts, places, MPI_INT, to, counts, places, MPI_INT, comm);
    }
    if (strcmp(name, "alltoallv-none") == 0) {
        /* The last rank expects nothing, and the others send blocks that no answer awaits. */
        spread(LONG);
        for (int i = 0; i < 3; i++)
            MPI_Alltoallv(from, counts, places, MPI_INT, to, counts, places, MPI_INT, comm);
        int *none = calloc((size_t)ranks, sizeof(*none));
        spread(SHORT);
        int error = MPI_Alltoallv(from, rank == last ? none : counts, places, MPI_INT, to,
                                  rank == last ? none : counts, places, MPI_INT, comm);
        free(none);
        return error;
    }
    if (strcmp(name, "bcast-far-ahead") == 0) {
        /* The root does not wait, so it is in the barrier while the others wait for call 0. */
        int error = MPI_Bcast(to, length(0), MPI_INT, 0, comm);
        for (int i = 0; error == 0 && rank == 0 && i < 100; i++)
            error = MPI_Bcast(to, SHORT, MPI_INT, 0, comm);
        return error;
    }
    if (strcmp(name, "equal-types") == 0) {
        /* Legal: the datatypes and counts differ, but the signatures are equal. */
        MPI_Datatype pair;
        MPI_Type_contiguous(LONG / 2, MPI_INT, &pair);
        MPI_Type_commit(&pair);
        int error = rank == 0 ? MPI_Bcast(from, LONG, MPI_INT, 0, comm) : MPI_Bcast(from, 2, pair, 0, comm);
        error = error          ? error
                : rank == last ? MPI_Gather(from, 2, pair, to, LONG, MPI_INT, 0, comm)
                               : MPI_Gather(from, LONG, MPI_INT, to, LONG, MPI_INT, 0, comm);
        MPI_Type_free(&pair);
        return error;
    }
    if (strcmp(name, "slow") == 0) {
        /* Legal: ranks wait long for a slow rank, while short calls complete without it. */
        int error = 0;
        for (int i = 0; error == 0 && i < 3 * ranks; i++) {
            if (rank == i / 3 && rank < 3 && i % 3 == 0)
                usleep(2500 * 1000);
            error = MPI_Bcast(to, i % 3 == 2 ? LONG : SHORT, MPI_INT, (i / 3 + 1) % ranks, comm);
            error = error ? error : MPI_Gather(from, LONG, MPI_INT, to, LONG, MPI_INT, i % ranks, comm);
        }
        return error;
    }
    fprintf(stderr, "unknown case %s\n", name);
    MPI_Abort(comm, 2);
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    const char *how = argc > 2 ? argv[2] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    size_t ints = (size_t)ranks * 4 * LONG;
    from = calloc(ints, sizeof(int));
    to = calloc(ints, sizeof(int));
    counts = calloc((size_t)ranks, sizeof(int));
    places = calloc((size_t)ranks, sizeof(int));
    if (strcmp(how, "dup") == 0)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, strcmp(how, "return") == 0 ? MPI_ERRORS_RETURN : MPI_ERRORS_ARE_FATAL);
    int error = call(argv[1], comm), class = 0;
    if (error != MPI_SUCCESS)
        MPI_Error_class(error, &class);
    bool is_named = class == MPI_ERR_COUNT || class == MPI_ERR_TRUNCATE;
    printf("rank %d: %s\n", rank,
           class == MPI_SUCCESS ? "no error"
           : is_named           ? "an error of the count"
                                : "an error");
    fflush(stdout);
    if (error != MPI_SUCCESS) {
        /* MPICH's launcher drops output that it has not forwarded before an abort. */
        usleep(300 * 1000);
        MPI_Abort(comm, 3);
    }
    MPI_Barrier(comm);
    MPI_Finalize();
    return 0;
}
