/*
 * One collective for each message size, as a program calls it. The MPI library or a plan executes
 * it.
 *
 *   mpirun -np N mpi_coll OPERATION SIZE_BYTES... [--seconds S] [--warmup N] [--skew_us U]
 *                         [--together_ms M]
 *
 * OPERATION is gather, gatherv, scatter, scatterv, alltoall, alltoallv, allgather, allgatherv,
 * bcast, reduce, allreduce, reduce_scatter or barrier. SIZE_BYTES is the block of a rank or of a
 * pair. In bcast, reduce and allreduce it is the vector. In gatherv, scatterv, allgatherv and
 * alltoallv, blocks differ, from 0.5 to 1.5 times SIZE_BYTES. With --skew_us each rank starts late
 * by its own time, up to U microseconds.
 *
 * Each rank times a round from the end of a barrier. The time of a round is the longest over the
 * ranks. Ranks that are far apart leave a barrier at different times. With --together_ms all start
 * M milliseconds after rank 0 has announced the start, and the time counts from there. Their hosts
 * must then have one clock, as in a lab. All elements of each result are checked. Rank 0 prints one
 * JSON object per size.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MAX 10000
#define SIZES_MAX 64
#define SIZE_BYTES_MAX (1 << 28)

enum operation {
	GATHER,
	GATHERV,
	SCATTER,
	SCATTERV,
	ALLTOALL,
	ALLTOALLV,
	ALLGATHER,
	ALLGATHERV,
	BCAST,
	REDUCE,
	ALLREDUCE,
	REDUCE_SCATTER,
	BARRIER,
	OPERATION_COUNT
};
static const char *const OPERATIONS[] = { "gather",    "gatherv",        "scatter",    "scatterv", "alltoall",
					  "alltoallv", "allgather",      "allgatherv", "bcast",    "reduce",
					  "allreduce", "reduce_scatter", "barrier" };

static struct {
	enum operation operation;
	int sizes[SIZES_MAX], size_count, warmup, skew_us, together_ms;
	double seconds;
} args = { .operation = OPERATION_COUNT, .warmup = 1, .seconds = 2 };

static int rank, ranks, root;
static int *out, *in;
static int *out_counts, *in_counts, *out_places, *in_places;

static void reject(const char *name, const char *value, const char *right)
{
	if (rank == 0)
		fprintf(stderr, "mpi_coll: %s: got '%s', want %s\n", name, value ? value : "nothing", right);
	MPI_Finalize();
	exit(2);
}

static double number(const char *name, const char *text, double least, double most, const char *right)
{
	char *end = NULL;
	double value = text ? strtod(text, &end) : 0;

	if (!text || end == text || *end || !(value >= least && value <= most))
		reject(name, text, right);
	return value;
}

static void read_args(int argc, char **argv)
{
	for (int at = 1; at < argc; at++) {
		const char *word = argv[at], *value = at + 1 < argc ? argv[at + 1] : NULL;

		if (!strcmp(word, "--seconds")) {
			args.seconds = number(word, value, 1e-3, 1e6, "seconds, more than 0"), at++;
		} else if (!strcmp(word, "--warmup")) {
			args.warmup = number(word, value, 0, ROUNDS_MAX, "a count from 0 to 10000"), at++;
		} else if (!strcmp(word, "--skew_us")) {
			args.skew_us = number(word, value, 0, 1e7, "microseconds, to 10000000"), at++;
		} else if (!strcmp(word, "--together_ms")) {
			args.together_ms = number(word, value, 0, 1e4, "milliseconds, to 10000"), at++;
		} else if (!strncmp(word, "--", 2)) {
			reject("option", word, "--seconds, --warmup, --skew_us or --together_ms");
		} else if (args.operation == OPERATION_COUNT) {
			for (args.operation = 0; args.operation < OPERATION_COUNT; args.operation++)
				if (!strcmp(word, OPERATIONS[args.operation]))
					break;
			if (args.operation == OPERATION_COUNT)
				reject("OPERATION", word, "gather, alltoall, allreduce or another of MPI's");
		} else if (args.size_count == SIZES_MAX) {
			reject("SIZE_BYTES", word, "at most 64 sizes");
		} else {
			args.sizes[args.size_count++] =
				number("SIZE_BYTES", word, 0, SIZE_BYTES_MAX, "bytes from 0 to 268435456");
		}
	}
	if (args.operation == OPERATION_COUNT)
		reject("OPERATION", NULL, "gather, alltoall, allreduce or another of MPI's");
	if (!args.size_count)
		reject("SIZE_BYTES", NULL, "one size or more");
}

/*
 * Returns the elements of the block from one rank to another: `count`, or in operations with
 * different blocks from 0.5 to 1.5 times `count`.
 */
static int elements(int count, int from, int to)
{
	int is_unlike = args.operation == GATHERV || args.operation == SCATTERV ||
			args.operation == ALLTOALLV || args.operation == ALLGATHERV;
	int step = (from * 7 + to * 3) % 5;

	return is_unlike ? count / 2 + count * step / 4 : count;
}

static int mark(int from, int to, int at, int round)
{
	return from * 1009 + to * 31 + at * 7 + round;
}

/*
 * Sets the lengths and places of this rank's outgoing and incoming blocks. In operations with one
 * block per rank, the other index of elements() is 0.
 */
static void lay_out(int count)
{
	int is_pairs = args.operation == ALLTOALL || args.operation == ALLTOALLV;
	int out_at = 0, in_at = 0;

	for (int peer = 0; peer < ranks; peer++) {
		out_counts[peer] = elements(count,
					    is_pairs                     ? rank
					    : args.operation == SCATTERV ? 0
									 : peer,
					    is_pairs                     ? peer
					    : args.operation == SCATTERV ? peer
									 : 0);
		in_counts[peer] = elements(count, peer, is_pairs ? rank : 0);
		out_places[peer] = out_at;
		in_places[peer] = in_at;
		out_at += out_counts[peer];
		in_at += in_counts[peer];
	}
}

static void fill(int count, int round)
{
	int vector = args.operation == BCAST || args.operation == REDUCE || args.operation == ALLREDUCE;

	if (vector || args.operation == REDUCE_SCATTER) {
		int all = vector ? count : count * ranks;

		for (int at = 0; at < all; at++)
			out[at] = mark(rank, 0, at, round);
		if (args.operation == BCAST && rank == root)
			memcpy(in, out, (size_t)count * sizeof(*in));
		return;
	}
	if (args.operation == GATHER || args.operation == GATHERV || args.operation == ALLGATHER ||
	    args.operation == ALLGATHERV) {
		for (int at = 0; at < elements(count, rank, 0); at++)
			out[at] = mark(rank, 0, at, round);
		return;
	}
	for (int peer = 0; peer < ranks; peer++)
		for (int at = 0; at < out_counts[peer]; at++)
			out[out_places[peer] + at] = mark(rank, peer, at, round);
}

static void call(int count)
{
	MPI_Comm all = MPI_COMM_WORLD;
	int own = elements(count, rank, 0);

	switch (args.operation) {
	case GATHER:
		MPI_Gather(out, count, MPI_INT, in, count, MPI_INT, root, all);
		break;
	case GATHERV:
		MPI_Gatherv(out, own, MPI_INT, in, in_counts, in_places, MPI_INT, root, all);
		break;
	case SCATTER:
		MPI_Scatter(out, count, MPI_INT, in, count, MPI_INT, root, all);
		break;
	case SCATTERV:
		MPI_Scatterv(out, out_counts, out_places, MPI_INT, in, elements(count, 0, rank), MPI_INT,
			     root, all);
		break;
	case ALLTOALL:
		MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, all);
		break;
	case ALLTOALLV:
		MPI_Alltoallv(out, out_counts, out_places, MPI_INT, in, in_counts, in_places, MPI_INT, all);
		break;
	case ALLGATHER:
		MPI_Allgather(out, count, MPI_INT, in, count, MPI_INT, all);
		break;
	case ALLGATHERV:
		MPI_Allgatherv(out, own, MPI_INT, in, in_counts, in_places, MPI_INT, all);
		break;
	case BCAST:
		MPI_Bcast(in, count, MPI_INT, root, all);
		break;
	case REDUCE:
		MPI_Reduce(out, in, count, MPI_INT, MPI_SUM, root, all);
		break;
	case ALLREDUCE:
		MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, all);
		break;
	case REDUCE_SCATTER:
		MPI_Reduce_scatter_block(out, in, count, MPI_INT, MPI_SUM, all);
		break;
	default:
		MPI_Barrier(all);
		break;
	}
}

static int sum_of_marks(int at, int round)
{
	int sum = 0;

	for (int from = 0; from < ranks; from++)
		sum += mark(from, 0, at, round);
	return sum;
}

/* Returns the number of wrong elements in a block that `from` sent to `to`. */
static int wrong_block(const int *block, int count, int from, int to, int round)
{
	int wrong = 0;

	for (int at = 0; at < count; at++)
		wrong += block[at] != mark(from, to, at, round);
	return wrong;
}

static int count_wrong(int count, int round)
{
	int wrong = 0, to = args.operation == ALLTOALL || args.operation == ALLTOALLV ? rank : root;

	switch (args.operation) {
	case GATHER:
	case GATHERV:
		if (rank != root)
			return 0;
		/* fall through */
	case ALLTOALL:
	case ALLTOALLV:
		for (int from = 0; from < ranks; from++)
			wrong += wrong_block(in + in_places[from], in_counts[from], from, to, round);
		return wrong;
	case ALLGATHER:
	case ALLGATHERV:
		/* Each rank sends one block, whose marks have 0 as their receiver. */
		for (int from = 0; from < ranks; from++)
			wrong += wrong_block(in + in_places[from], in_counts[from], from, 0, round);
		return wrong;
	case SCATTER:
		return wrong_block(in, count, root, rank, round);
	case SCATTERV:
		return wrong_block(in, elements(count, 0, rank), root, rank, round);
	case BCAST:
		return wrong_block(in, count, root, 0, round);
	case REDUCE:
	case ALLREDUCE:
		for (int at = 0; at < count && (args.operation == ALLREDUCE || rank == root); at++)
			wrong += in[at] != sum_of_marks(at, round);
		return wrong;
	case REDUCE_SCATTER:
		for (int at = 0; at < count; at++)
			wrong += in[at] != sum_of_marks(rank * count + at, round);
		return wrong;
	default:
		return 0;
	}
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Synchronizes all ranks. Returns the start time of the round, in seconds. */
static double begin_s(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (!args.together_ms)
		return now_s();
	double at_s = now_s() + args.together_ms * 1e-3;
	MPI_Bcast(&at_s, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	struct timespec at = { .tv_sec = (time_t)at_s,
			       .tv_nsec = (long)((at_s - (double)(time_t)at_s) * 1e9) };
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	return at_s;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(int size)
{
	static double times[ROUNDS_MAX];
	int count = size / (int)sizeof(int), wrong = 0, rounds = 0;
	double spent = 0, measured_from_s = 0;

	lay_out(count);
	for (int round = 0; round < ROUNDS_MAX; round++) {
		/* Delay of this rank. The primes make the delays of ranks and rounds differ. */
		int late_us = args.skew_us ? (rank * 7919 + round * 104729) % (args.skew_us + 1) : 0;
		double took, longest;

		fill(count, round);
		double began_s = begin_s();
		if (round == args.warmup)
			measured_from_s = began_s;
		if (late_us)
			usleep((unsigned)late_us);
		call(count);
		took = now_s() - began_s;
		wrong += count_wrong(count, round);
		MPI_Allreduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
		if (round < args.warmup)
			continue;
		times[rounds++] = longest;
		spent += longest;
		int goes_on = spent < args.seconds || rounds < 3;
		MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (!goes_on)
			break;
	}
	double measured_to_s = now_s();
	int all_wrong;

	MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank)
		return;
	qsort(times, rounds, sizeof(*times), ascending);
	printf("{\"program\":\"coll\",\"operation\":\"%s\",\"size_bytes\":%d,\"ranks\":%d,\"rounds\":%d,"
	       "\"median_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"bytes_wrong\":%d,\"begin_ns\":%.0f,"
	       "\"end_ns\":%.0f}\n",
	       OPERATIONS[args.operation], size, ranks, rounds, times[rounds / 2] * 1e6,
	       times[(rounds * 99 + 99) / 100 - 1] * 1e6, times[rounds - 1] * 1e6, all_wrong * 4,
	       measured_from_s * 1e9, measured_to_s * 1e9);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	read_args(argc, argv);
	int largest = 0;

	for (int at = 0; at < args.size_count; at++)
		largest = args.sizes[at] > largest ? args.sizes[at] : largest;
	size_t bytes = (size_t)largest * 2 * (size_t)ranks + 64;
	out = malloc(bytes);
	in = malloc(bytes);
	out_counts = malloc(4 * sizeof(int) * (size_t)ranks);
	if (!out || !in || !out_counts) {
		fprintf(stderr, "mpi_coll: no memory for blocks of %d bytes\n", largest);
		MPI_Abort(MPI_COMM_WORLD, 1);
		return 1;
	}
	in_counts = out_counts + ranks;
	out_places = in_counts + ranks;
	in_places = out_places + ranks;
	for (int at = 0; at < args.size_count; at++)
		measure(args.sizes[at]);
	free(out);
	free(in);
	free(out_counts);
	MPI_Finalize();
	return 0;
}
