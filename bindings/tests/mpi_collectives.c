/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Compares each planned collective with the same call of the MPI library: MPI_Alltoall is planned,
 * PMPI_Alltoall is the library's. Communicators have different shapes, datatypes are basic and
 * derived, and calls are in place or not. Sizes are above and below the limits of planning. Memory
 * that no call may change is compared too.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

enum { ELEMENTS_MAX = 45000, BLOCKS_MAX = 8 };

static MPI_Comm comm;
static int rank, ranks;
static char *from, *ours, *theirs;
static size_t buffer_bytes;

/* Counts and displacements of blocks of different lengths, with gaps between them. */
static int counts[BLOCKS_MAX], places[BLOCKS_MAX], from_counts[BLOCKS_MAX], from_places[BLOCKS_MAX];

struct shape {
    const char *name;
    MPI_Datatype type;
    /* Extent of the type in bytes, and whether MPI_SUM applies to it. */
    int extent, is_number;
};

static void fill(void)
{
    /* The numbers are small, so that sums of doubles and of integers are exact in any order. */
    for (size_t i = 0; i < buffer_bytes / sizeof(double); i++)
        ((double *)from)[i] = (double)((i * 31 + (size_t)rank * 7) % 1000);
    for (size_t i = 0; i < buffer_bytes; i++)
        ours[i] = theirs[i] = (char)(i * 13 + 5);
}

static int same(void)
{
    int own = memcmp(ours, theirs, buffer_bytes) == 0, all;
    PMPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, comm);
    return all;
}

/* Returns the length of the block between two ranks, from 0 to `count`, the same on both ranks. */
static int unlike(int count, int a, int b)
{
    return count * ((a * 3 + b) % 4) / 3;
}

static void lay_out(int count)
{
    int at = 0, from_at = 0;
    for (int peer = 0; peer < ranks; peer++) {
        counts[peer] = unlike(count, peer, rank);
        from_counts[peer] = unlike(count, rank, peer);
        places[peer] = at;
        from_places[peer] = from_at;
        at += count + 3;
        from_at += count + 1;
    }
}

/* Lays out blocks of different lengths, in the same way on all ranks. */
static void lay_out_alike(int count)
{
    for (int peer = 0; peer < ranks; peer++) {
        counts[peer] = unlike(count, peer, 0);
        places[peer] = (ranks - 1 - peer) * (count + 3);
    }
}

/* Calls a collective twice: MPI_ with the result in `ours`, and PMPI_ with it in `theirs`. */
#define BOTH(name, ...)           \
    do {                          \
        char *to = ours;          \
        MPI_##name(__VA_ARGS__);  \
        to = theirs;              \
        PMPI_##name(__VA_ARGS__); \
    } while (0)

/* Fills the result buffers first, because a call in place sends from them. */
#define IN_PLACE(name, ...)                 \
    do {                                    \
        memcpy(ours, from, buffer_bytes);   \
        memcpy(theirs, from, buffer_bytes); \
        BOTH(name, __VA_ARGS__);            \
    } while (0)

static const char *movements(const struct shape *shape, int count)
{
    MPI_Datatype type = shape->type;
    int last = ranks - 1;
#define CLAIM(what)  \
    if (!same())     \
        return what; \
    fill();
    fill();
    BOTH(Alltoall, from, count, type, to, count, type, comm);
    CLAIM("alltoall")
    IN_PLACE(Alltoall, MPI_IN_PLACE, 0, MPI_INT, to, count, type, comm);
    CLAIM("alltoall in place")
    lay_out(count);
    BOTH(Alltoallv, from, from_counts, from_places, type, to, counts, places, type, comm);
    CLAIM("alltoallv")
    BOTH(Allgather, from, count, type, to, count, type, comm);
    CLAIM("allgather")
    IN_PLACE(Allgather, MPI_IN_PLACE, 0, MPI_INT, to, count, type, comm);
    CLAIM("allgather in place")
    BOTH(Gather, from, count, type, to, count, type, last, comm);
    CLAIM("gather")
    IN_PLACE(Gather, rank == last ? MPI_IN_PLACE : from, count, type, to, count, type, last, comm);
    CLAIM("gather in place")
    BOTH(Scatter, from, count, type, to, count, type, last, comm);
    CLAIM("scatter")
    BOTH(Scatter, from, count, type, rank == 0 ? MPI_IN_PLACE : to, count, type, 0, comm);
    CLAIM("scatter in place")
    lay_out_alike(count);
    BOTH(Allgatherv, from, counts[rank], type, to, counts, places, type, comm);
    CLAIM("allgatherv")
    BOTH(Gatherv, from, counts[rank], type, to, counts, places, type, 0, comm);
    CLAIM("gatherv")
    BOTH(Scatterv, from, counts, places, type, to, counts[rank], type, 0, comm);
    CLAIM("scatterv")
    IN_PLACE(Bcast, to, count * ranks, type, last, comm);
    CLAIM("bcast")
    return NULL;
}

static const char *reductions(const struct shape *shape, int count)
{
    MPI_Datatype type = shape->type;
    int last = ranks - 1;
    fill();
    BOTH(Allreduce, from, to, count * ranks, type, MPI_SUM, comm);
    CLAIM("allreduce")
    IN_PLACE(Allreduce, MPI_IN_PLACE, to, count * ranks, type, MPI_MAX, comm);
    CLAIM("allreduce in place")
    BOTH(Reduce, from, to, count * ranks, type, MPI_SUM, last, comm);
    CLAIM("reduce")
    IN_PLACE(Reduce, rank == 0 ? MPI_IN_PLACE : from, to, count * ranks, type, MPI_MIN, 0, comm);
    CLAIM("reduce in place")
    BOTH(Reduce_scatter_block, from, to, count, type, MPI_SUM, comm);
    CLAIM("reduce_scatter_block")
    lay_out_alike(count);
    BOTH(Reduce_scatter, from, to, counts, type, MPI_SUM, comm);
    CLAIM("reduce_scatter")
    return NULL;
}

/*
 * The operation a, b -> b depends on the order, so the MPI library must execute it. add() is a
 * user's commutative operation.
 */
static void second(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)in, (void)inout, (void)count, (void)type;
}

static void add(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        ((int *)inout)[i] += ((int *)in)[i];
}

static const char *operations_of_the_user(int count)
{
    MPI_Op ordered, sum;
    MPI_Op_create(second, 0, &ordered);
    MPI_Op_create(add, 1, &sum);
    fill();
    const char *wrong = NULL;
    BOTH(Allreduce, from, to, count * ranks, MPI_INT, sum, comm);
    if (!same())
        wrong = "allreduce with a user's sum";
    fill();
    BOTH(Reduce, from, to, count * ranks, MPI_INT, ordered, 0, comm);
    if (!same())
        wrong = "reduce with an operation that is not commutative";
    MPI_Op_free(&ordered);
    MPI_Op_free(&sum);
    return wrong;
}

static void claim(const char *on, const char *of, int count, const char *wrong)
{
    char text[200];
    int length = snprintf(text, sizeof(text), "%s on %s, %d elements: as the library alone", of, on, count);
    if (wrong != NULL && length < (int)sizeof(text))
        snprintf(text + length, sizeof(text) - (size_t)length, ", but not in %s", wrong);
    expect_true(text, wrong == NULL);
}

static void on(const char *name, MPI_Comm shape_of)
{
    comm = shape_of;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    MPI_Datatype column, swapped;
    /*
     * A column has gaps between its three numbers. In a swapped pair, the order in memory is not
     * the order in the message.
     */
    MPI_Type_vector(3, 1, 2, MPI_INT, &column);
    int lengths[] = {1, 1}, displacements[] = {1, 0};
    MPI_Type_indexed(2, lengths, displacements, MPI_INT, &swapped);
    MPI_Type_commit(&column);
    MPI_Type_commit(&swapped);
    const struct shape shapes[] = {
        {"ints", MPI_INT, 4, 1},
        {"doubles", MPI_DOUBLE, 8, 1},
        {"a column", column, 20, 0},
        {"swapped pairs", swapped, 8, 0},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        for (int count = 7; count <= ELEMENTS_MAX; count = count * 80 + 1) {
            /* 7, 561 and 10 000 elements are above and below each limit of planning. */
            int elements = count > 10000 ? 10000 : count;
            claim(name, shapes[i].name, elements, movements(&shapes[i], elements));
            if (shapes[i].is_number)
                claim(name, "sums", elements, reductions(&shapes[i], elements));
        }
    }
    claim(name, "users' operations", 10000, operations_of_the_user(10000));
    MPI_Type_free(&column);
    MPI_Type_free(&swapped);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int world_rank, world_size;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    expect_rank(world_rank);
    buffer_bytes = (size_t)(ELEMENTS_MAX + 8) * 8 * (size_t)world_size;
    from = malloc(buffer_bytes);
    ours = malloc(buffer_bytes);
    theirs = malloc(buffer_bytes);
    if (world_size > BLOCKS_MAX || from == NULL || ours == NULL || theirs == NULL) {
        fprintf(stderr, "mpi_collectives: at most %d ranks, with memory\n", BLOCKS_MAX);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm backwards, parts, same_again;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &backwards);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &parts);
    MPI_Comm_dup(MPI_COMM_WORLD, &same_again);
    on("the world", MPI_COMM_WORLD);
    on("the world backwards", backwards);
    on("two parts at once", parts);
    on("a duplicate", same_again);
    on("one rank", MPI_COMM_SELF);
    MPI_Comm_free(&backwards);
    MPI_Comm_free(&parts);
    MPI_Comm_free(&same_again);
    free(from);
    free(ours);
    free(theirs);
    MPI_Finalize();
    return expect_result();
}
