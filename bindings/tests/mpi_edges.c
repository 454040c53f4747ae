/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Unusual and incorrect uses of collectives: absolute addresses, wrong arguments under each error
 * handler, a thousand communicators, attributes, and ranks from outside the job. A run executes one
 * part: mpi_edges PART.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

enum { COUNT = 40000 };

static int rank, ranks;

static int error_class(int error)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(error, &class);
    return class;
}

/* --- addresses from MPI_BOTTOM ---------------------------------------------------------------- */

/* Returns a datatype for MPI_BOTTOM, of which one element is `count` ints at an address. */
static MPI_Datatype absolute(int *at, int count)
{
    MPI_Aint address;
    MPI_Datatype type;
    MPI_Get_address(at, &address);
    MPI_Type_create_hindexed(1, &count, &address, MPI_INT, &type);
    MPI_Type_commit(&type);
    return type;
}

static int *numbers(int count, int first)
{
    int *at = malloc((size_t)count * sizeof(*at));
    for (int i = 0; i < count; i++)
        at[i] = first + i;
    return at;
}

static bool is_run(const int *at, int count, int first)
{
    for (int i = 0; i < count; i++)
        if (at[i] != first + i)
            return false;
    return true;
}

static void bottom(void)
{
    int *own = numbers(COUNT, rank * COUNT), *all = numbers(COUNT * ranks, -1);
    int *vector = numbers(COUNT, rank == 0 ? 7 : 0);
    MPI_Datatype own_type = absolute(own, COUNT), vector_type = absolute(vector, COUNT);
    MPI_Bcast(MPI_BOTTOM, 1, vector_type, 0, MPI_COMM_WORLD);
    expect_true("MPI_BOTTOM in a broadcast", is_run(vector, COUNT, 7));
    MPI_Allgather(MPI_BOTTOM, 1, own_type, all, COUNT, MPI_INT, MPI_COMM_WORLD);
    expect_true("MPI_BOTTOM in an allgather", is_run(all, COUNT * ranks, 0));
    memset(all, 0, sizeof(*all) * (size_t)(COUNT * ranks));
    MPI_Gather(MPI_BOTTOM, 1, own_type, all, COUNT, MPI_INT, ranks - 1, MPI_COMM_WORLD);
    expect_true("MPI_BOTTOM in a gather", rank != ranks - 1 || is_run(all, COUNT * ranks, 0));
    memset(own, 0, sizeof(*own) * COUNT);
    MPI_Scatter(all, COUNT, MPI_INT, MPI_BOTTOM, 1, own_type, ranks - 1, MPI_COMM_WORLD);
    expect_true("MPI_BOTTOM in a scatter", is_run(own, COUNT, rank * COUNT));
    MPI_Type_free(&own_type);
    MPI_Type_free(&vector_type);
    free(own);
    free(all);
    free(vector);
}

/* --- errors ----------------------------------------------------------------------------------- */

static int handled;

static void count_error(MPI_Comm *comm, int *error, ...)
{
    (void)comm, (void)error;
    handled++;
}

static void arguments(MPI_Comm comm)
{
    int *from = numbers(COUNT, 0), *to = numbers(COUNT, 0);
    double *sums = calloc(COUNT, sizeof(*sums)), *others = calloc(COUNT, sizeof(*others));
    int ours = MPI_Allreduce(sums, others, COUNT, MPI_DOUBLE, MPI_BAND, comm);
    int theirs = PMPI_Allreduce(sums, others, COUNT, MPI_DOUBLE, MPI_BAND, comm);
    expect_true("MPI_BAND of doubles is an error", ours != MPI_SUCCESS);
    expect_true("and the library's own", error_class(ours) == error_class(theirs));
    ours = MPI_Reduce(from, to, COUNT, MPI_INT, MPI_OP_NULL, 0, comm);
    expect_true("so is MPI_OP_NULL", ours != MPI_SUCCESS);
#ifdef MPICH_VERSION
    /* Open MPI raises this error on MPI_COMM_WORLD, whose handler ends the job. */
    ours = MPI_Allreduce(from, from, COUNT, MPI_INT, MPI_SUM, comm);
    theirs = PMPI_Allreduce(from, from, COUNT, MPI_INT, MPI_SUM, comm);
    expect_true("aliased buffers are the library's error",
                error_class(ours) == error_class(theirs) && ours != 0);
#endif
    ours = MPI_Bcast(to, -1, MPI_INT, 0, comm);
    expect_true("a negative count is an error", error_class(ours) == MPI_ERR_COUNT);
    ours = MPI_Bcast(to, COUNT, MPI_DATATYPE_NULL, 0, comm);
    expect_true("MPI_DATATYPE_NULL is an error", error_class(ours) == MPI_ERR_TYPE);
    ours = MPI_Bcast(to, COUNT, MPI_INT, ranks, comm);
    expect_true("a root that is not a rank is an error", error_class(ours) == MPI_ERR_ROOT);
    free(from);
    free(to);
    free(sums);
    free(others);
}

/*
 * Broadcasts a vector that is shorter on the root than on the other ranks. Both lengths are long
 * enough for a plan.
 */
static int shorter_root(MPI_Comm comm)
{
    int *vector = numbers(COUNT, 0);
    int error = MPI_Bcast(vector, rank == 0 ? COUNT - 100 : COUNT, MPI_INT, 0, comm);
    free(vector);
    return error;
}

static void errors(void)
{
    MPI_Comm returning, counting;
    MPI_Errhandler handler;
    MPI_Comm_dup(MPI_COMM_WORLD, &returning);
    MPI_Comm_dup(MPI_COMM_WORLD, &counting);
    MPI_Comm_set_errhandler(returning, MPI_ERRORS_RETURN);
    arguments(returning);
    int error = shorter_root(returning);
    expect_true("a root that sends less is an error on the others", rank == 0 || error != MPI_SUCCESS);
    int once_more = shorter_root(returning);
    expect_true("after which the communicator is of no use", rank == 0 || once_more != MPI_SUCCESS);
    MPI_Comm_create_errhandler(count_error, &handler);
    MPI_Comm_set_errhandler(counting, handler);
    error = shorter_root(counting);
    expect_true("the program's handler is called once, and the function returns",
                rank == 0 || (handled == 1 && error != MPI_SUCCESS));
    MPI_Errhandler_free(&handler);
    int own = rank, sum = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    expect_true("other communicators go on", sum == ranks * (ranks - 1) / 2);
}

/* Ends the job by an error in a plan. */
static void fatal(void)
{
    shorter_root(MPI_COMM_WORLD);
    if (rank > 0)
        printf("FAILED rank %d went on after an error\n", rank);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Aborts on one rank while the other ranks are in a planned collective. */
static void abort_within(void)
{
    int *vector = numbers(COUNT * 25, 0);
    MPI_Bcast(vector, COUNT * 25, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == ranks - 1)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Bcast(vector, COUNT * 25, MPI_INT, ranks - 1, MPI_COMM_WORLD);
    printf("FAILED rank %d went on after an abort\n", rank);
    free(vector);
}

/* --- communicators ---------------------------------------------------------------------------- */

static int copies, deletes;

static int on_copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key, (void)extra;
    copies++;
    *(void **)out = in;
    *flag = 1;
    return MPI_SUCCESS;
}

static int on_delete(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    deletes++;
    return MPI_SUCCESS;
}

static bool broadcast(MPI_Comm comm)
{
    int *vector = numbers(COUNT, rank == 0 ? 3 : 0);
    MPI_Bcast(vector, COUNT, MPI_INT, 0, comm);
    bool is_right = is_run(vector, COUNT, 3);
    free(vector);
    return is_right;
}

static void communicators(void)
{
    enum { MANY = 1200 };
    static MPI_Comm many[MANY];
    bool is_right = true;
    for (int i = 0; i < MANY; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &many[i]);
        is_right &= broadcast(many[i]);
    }
    expect_true("1200 duplicates have a broadcast each", is_right);
    for (int i = 0; i < MANY; i++)
        MPI_Comm_free(&many[i]);
    MPI_Comm comm;
    int key, value;
    MPI_Comm_create_keyval(on_copy, on_delete, &key, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_attr(comm, key, &value);
    is_right = broadcast(comm);
    MPI_Comm_free(&comm);
    expect_true("a communicator's attribute is deleted once, and never copied",
                is_right && copies == 0 && deletes == 1);
    MPI_Comm_free_keyval(&key);
    /* One rank may be in a collective of `a` while another is in one of `b`. */
    MPI_Comm a, b;
    MPI_Comm_dup(MPI_COMM_WORLD, &a);
    MPI_Comm_dup(MPI_COMM_WORLD, &b);
    for (int i = 0; i < 20; i++)
        is_right &= broadcast(i % 2 == 0 ? a : b);
    expect_true("communicators of the same ranks keep apart", is_right);
    MPI_Comm_free(&a);
    MPI_Comm_free(&b);
}

/* --- ranks from outside the job --------------------------------------------------------------- */

static bool merged(MPI_Comm between, int is_high)
{
    MPI_Comm all;
    MPI_Intercomm_merge(between, is_high, &all);
    int all_ranks, ones = 0, one = 1;
    MPI_Comm_size(all, &all_ranks);
    MPI_Comm_rank(all, &rank);
    bool is_right = broadcast(all);
    MPI_Allreduce(&one, &ones, 1, MPI_INT, MPI_SUM, all);
    MPI_Comm_free(&all);
    return is_right && ones == all_ranks;
}

static void spawned(char *program)
{
    MPI_Comm children;
    char *arguments[] = {"child", NULL};
    MPI_Comm_spawn(program, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    expect_true("with spawned ranks a communicator is the library's", merged(children, 0));
    MPI_Comm_disconnect(&children);
}

static int child(void)
{
    MPI_Comm parents;
    MPI_Comm_get_parent(&parents);
    merged(parents, 1);
    MPI_Comm_disconnect(&parents);
    MPI_Finalize();
    return 0;
}

/* --- lengths that each rank knows alone ------------------------------------------------------- */

/*
 * Frees a communicator before its ranks have read the result of their comparison of lengths. MPICH
 * keeps a communicator and its attributes while an operation on it is pending.
 */
static bool freed_at_once(void)
{
    MPI_Comm comm;
    int key, value;
    int *counts = calloc((size_t)ranks, sizeof(*counts)), *places = calloc((size_t)ranks, sizeof(*places));
    int from = 3, to = 0;
    counts[(rank + 1) % ranks] = 1;
    int *in_counts = calloc((size_t)ranks, sizeof(*in_counts));
    in_counts[(rank + ranks - 1) % ranks] = 1;
    deletes = 0;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_delete, &key, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_attr(comm, key, &value);
    MPI_Alltoallv(&from, counts, places, MPI_INT, &to, in_counts, places, MPI_INT, comm);
    MPI_Comm_free(&comm);
    MPI_Comm_free_keyval(&key);
    free(counts);
    free(places);
    free(in_counts);
    return to == 3 && deletes == 1;
}

/*
 * Returns the block length of a round. Blocks are first long enough for a plan of their own, then
 * for the order of another plan, and then for neither.
 */
static int length_in(int round)
{
    return round < 4 ? COUNT : round < 14 ? COUNT / 8 : 10;
}

static void uneven(void)
{
    int *counts = malloc(sizeof(int) * (size_t)ranks), *places = malloc(sizeof(int) * (size_t)ranks);
    int *in_counts = malloc(sizeof(int) * (size_t)ranks), *in_places = malloc(sizeof(int) * (size_t)ranks);
    bool is_right = true;
    for (int round = 0; round < 16; round++) {
        int out = 0, in = 0;
        for (int peer = 0; peer < ranks; peer++) {
            counts[peer] = length_in(round) * ((rank + 2 * peer + round) % 4) / 3;
            in_counts[peer] = length_in(round) * ((peer + 2 * rank + round) % 4) / 3;
            places[peer] = out;
            in_places[peer] = in;
            out += counts[peer];
            in += in_counts[peer];
        }
        int *from = numbers(out, rank * COUNT), *to = numbers(in, -5);
        MPI_Alltoallv(from, counts, places, MPI_INT, to, in_counts, in_places, MPI_INT, MPI_COMM_WORLD);
        for (int peer = 0; peer < ranks; peer++) {
            int before = 0;
            for (int other = 0; other < rank; other++)
                before += length_in(round) * ((peer + 2 * other + round) % 4) / 3;
            is_right &= is_run(to + in_places[peer], in_counts[peer], peer * COUNT + before);
        }
        free(from);
        free(to);
    }
    expect_true("sixteen alltoallv of other counts each", is_right);
    expect_true("a communicator is freed, with its attributes, after its first alltoallv", freed_at_once());
    free(counts);
    free(places);
    free(in_counts);
    free(in_places);
}

/* --- threads ---------------------------------------------------------------------------------- */

/* Broadcasts on the thread's own communicator. Returns NULL if a result is wrong. */
static void *broadcasts(void *comm)
{
    for (int i = 0; i < 30; i++)
        if (!broadcast(*(MPI_Comm *)comm))
            return NULL;
    return comm;
}

static void threads(void)
{
    MPI_Comm comms[2];
    pthread_t other;
    void *others;
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]);
    pthread_create(&other, NULL, broadcasts, &comms[1]);
    void *own = broadcasts(&comms[0]);
    pthread_join(other, &others);
    expect_true("two threads broadcast at once, on a communicator each", own != NULL && others != NULL);
    MPI_Comm_free(&comms[0]);
    MPI_Comm_free(&comms[1]);
}

static void sum(void)
{
    double *from = calloc(COUNT, sizeof(*from)), *to = calloc(COUNT, sizeof(*to));
    from[5] = rank;
    MPI_Allreduce(from, to, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    expect_true("a sum is right", to[5] == ranks * (ranks - 1) / 2 && to[6] == 0);
    free(from);
    free(to);
}

/* Returns whether an all-to-all of blocks of COUNT numbers is right. */
static bool exchange(MPI_Comm comm)
{
    int *from = numbers(ranks * COUNT, rank * COUNT), *to = numbers(ranks * COUNT, -5);
    MPI_Alltoall(from, COUNT, MPI_INT, to, COUNT, MPI_INT, comm);
    bool is_right = true;
    for (int peer = 0; peer < ranks; peer++)
        is_right &= is_run(to + peer * COUNT, COUNT, (peer + rank) * COUNT);
    free(from);
    free(to);
    return is_right;
}

/* Enough calls of one length for `auto` to compare plans with the library, twice. */
static void repeated(void)
{
    MPI_Comm comm;
    bool is_right = true;
    for (int call = 0; call < 120; call++)
        is_right &= exchange(MPI_COMM_WORLD) && broadcast(MPI_COMM_WORLD);
    expect_true("collectives are right while plans are compared with the library", is_right);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    /* The comparison begins in the thirteenth call, and its result is not taken. */
    for (int call = 0; call < 13; call++)
        is_right &= exchange(comm);
    MPI_Comm_free(&comm);
    expect_true("a communicator is freed during a comparison", is_right);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    bool has_threads = strcmp(part, "threads") == 0;
    int level;
    MPI_Init_thread(&argc, &argv, has_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    if (strcmp(part, "child") == 0)
        return child();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect_rank(rank);
    if (strcmp(part, "bottom") == 0)
        bottom();
    else if (strcmp(part, "errors") == 0)
        errors();
    else if (strcmp(part, "fatal") == 0)
        fatal();
    else if (strcmp(part, "communicators") == 0)
        communicators();
    else if (strcmp(part, "spawn") == 0)
        spawned(argv[0]);
    else if (strcmp(part, "uneven") == 0)
        uneven();
    else if (has_threads && level == MPI_THREAD_MULTIPLE)
        threads();
    else if (has_threads)
        expect_true("no threads in this library", true);
    else if (strcmp(part, "abort") == 0)
        abort_within();
    else if (strcmp(part, "sum") == 0)
        sum();
    else if (strcmp(part, "repeated") == 0)
        repeated();
    else if (strcmp(part, "profiled") == 0)
        MPI_Bcast(&(int){0}, 1, MPI_INT, 0, MPI_COMM_WORLD);
    else if (strcmp(part, "broadcast") == 0)
        expect_true("a broadcast is right", broadcast(MPI_COMM_WORLD));
    else
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Finalize();
    return expect_result();
}
