/*
 * All-to-all for each message size, in a selected order of messages. This traffic overflows the
 * port of a switch (GridMPI §4.4) and the queue of a network interface (send-stall §2.2).
 *
 *   mpirun -np N mpi_alltoall SCHEDULE SIZE_BYTES... [--rounds N | --seconds S] [--warmup N]
 *                             [--across]
 *
 * SCHEDULE
 *   all  all MPI_Irecv and MPI_Isend at once, then MPI_Waitall (GridMPI §4.4)
 *   two  in step k to rank + k and from rank - k: two connections at a time (send-stall, figure 1)
 *   one  in step k to and from rank XOR k: one connection at a time (send-stall, figure 2)
 *   mpi  MPI_Alltoall of the library
 *
 * --across keeps only the messages between the first and the second half of the ranks (GridMPI
 * §4.2). SCHEDULE `mpi` then calls MPI_Alltoallv. Each rank times a round from the end of a
 * barrier. The time of a round is the longest over the ranks. Rank 0 prints one JSON object per
 * size.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS_MAX 10000
#define SIZES_MAX 64
#define SIZE_BYTES_MAX (1 << 30) /* counts are ints */
#define MARKS 16                 /* checked bytes of a message: both ends, and even steps between */

/* Functions of the preload library, which marks phases; NULL without it. */
extern void kumi_phase_begin(const char *name) __attribute__((weak));
extern void kumi_phase_end(void) __attribute__((weak));

static const char *const SCHEDULES[] = { "all", "two", "one", "mpi" };
enum schedule { ALL, TWO, ONE, MPI, SCHEDULE_COUNT };

static struct {
	enum schedule schedule;
	int sizes[SIZES_MAX], size_count, rounds, warmup, across;
	double seconds;
} args = { .schedule = SCHEDULE_COUNT, .warmup = 2 };

static int rank, ranks;
static char *out, *in; /* one block per rank */
static MPI_Request *requests;
static MPI_Status *statuses; /* MPI_STATUSES_IGNORE makes gcc warn under MPICH */
static int *counts, *displacements;

static void reject(const char *name, const char *value, const char *right)
{
	if (rank == 0)
		fprintf(stderr, "mpi_alltoall: %s: got '%s', want %s\n", name, value ? value : "nothing",
			right);
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

		if (!strcmp(word, "--across")) {
			args.across = 1;
		} else if (!strcmp(word, "--rounds")) {
			args.rounds = number(word, value, 1, ROUNDS_MAX, "a count from 1 to 10000"), at++;
		} else if (!strcmp(word, "--warmup")) {
			args.warmup = number(word, value, 0, ROUNDS_MAX, "a count from 0 to 10000"), at++;
		} else if (!strcmp(word, "--seconds")) {
			args.seconds = number(word, value, 1e-3, 1e6, "seconds, more than 0"), at++;
		} else if (!strncmp(word, "--", 2)) {
			reject("option", word, "--rounds, --seconds, --warmup or --across");
		} else if (args.schedule == SCHEDULE_COUNT) {
			for (args.schedule = ALL; args.schedule < SCHEDULE_COUNT; args.schedule++)
				if (!strcmp(word, SCHEDULES[args.schedule]))
					break;
			if (args.schedule == SCHEDULE_COUNT)
				reject("SCHEDULE", word, "all, two, one or mpi");
		} else if (args.size_count == SIZES_MAX) {
			reject("SIZE_BYTES", word, "at most 64 sizes");
		} else {
			args.sizes[args.size_count++] =
				number("SIZE_BYTES", word, 1, SIZE_BYTES_MAX, "bytes from 1 to 1073741824");
		}
	}
	if (args.schedule == SCHEDULE_COUNT)
		reject("SCHEDULE", NULL, "all, two, one or mpi");
	if (!args.size_count)
		reject("SIZE_BYTES", NULL, "one size or more");
	if (args.rounds && args.seconds > 0)
		reject("--seconds", "--rounds as well", "one of the two");
	if (args.schedule == ONE && (ranks & (ranks - 1)))
		reject("SCHEDULE", "one", "a number of ranks that is a power of two");
	if (!args.rounds && args.seconds <= 0)
		args.rounds = 100;
}

/* Returns whether this rank exchanges messages with `peer`. */
static int meets(int peer)
{
	return peer != rank && (!args.across || (peer < ranks / 2) != (rank < ranks / 2));
}

static int peer_or_null(int peer)
{
	return meets(peer) ? peer : MPI_PROC_NULL;
}

static char mark(int from, int to, int round, int at)
{
	return (char)(from * 131 + to * 31 + round * 7 + at * 17 + 1);
}

static size_t mark_offset(int size, int at)
{
	return (size_t)(size - 1) * at / (MARKS - 1);
}

static void write_marks(int size, int round)
{
	for (int to = 0; to < ranks; to++)
		for (int at = 0; at < MARKS; at++)
			out[(size_t)to * size + mark_offset(size, at)] = mark(rank, to, round, at);
}

static int count_wrong(int size, int round)
{
	int wrong = 0;

	for (int from = 0; from < ranks; from++) {
		if (!meets(from))
			continue;
		/* In a message of fewer than MARKS bytes, marks share bytes, and the last stays. */
		for (int at = 0; at < MARKS; at++) {
			if (at + 1 < MARKS && mark_offset(size, at + 1) == mark_offset(size, at))
				continue;
			wrong += in[(size_t)from * size + mark_offset(size, at)] !=
				 mark(from, rank, round, at);
		}
	}
	return wrong;
}

static void exchange_all(int size)
{
	int count = 0;

	for (int k = 1; k < ranks; k++) {
		int from = (rank - k + ranks) % ranks;

		if (meets(from))
			MPI_Irecv(in + (size_t)from * size, size, MPI_CHAR, from, 0, MPI_COMM_WORLD,
				  &requests[count++]);
	}
	for (int k = 1; k < ranks; k++) {
		int to = (rank + k) % ranks;

		if (meets(to))
			MPI_Isend(out + (size_t)to * size, size, MPI_CHAR, to, 0, MPI_COMM_WORLD,
				  &requests[count++]);
	}
	MPI_Waitall(count, requests, statuses);
}

static void exchange_in_steps(int size)
{
	for (int k = 1; k < ranks; k++) {
		int to = args.schedule == ONE ? rank ^ k : (rank + k) % ranks;
		int from = args.schedule == ONE ? rank ^ k : (rank - k + ranks) % ranks;

		MPI_Sendrecv(out + (size_t)to * size, size, MPI_CHAR, peer_or_null(to), 0,
			     in + (size_t)from * size, size, MPI_CHAR, peer_or_null(from), 0, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
	}
}

static void exchange_by_mpi(int size)
{
	if (!args.across) {
		MPI_Alltoall(out, size, MPI_CHAR, in, size, MPI_CHAR, MPI_COMM_WORLD);
		return;
	}
	for (int peer = 0; peer < ranks; peer++) {
		counts[peer] = meets(peer) ? 1 : 0;
		displacements[peer] = peer;
	}
	MPI_Datatype block; /* displacements count blocks, because bytes could exceed an int */

	MPI_Type_contiguous(size, MPI_CHAR, &block);
	MPI_Type_commit(&block);
	MPI_Alltoallv(out, counts, displacements, block, in, counts, displacements, block, MPI_COMM_WORLD);
	MPI_Type_free(&block);
}

/* Executes one round. Returns this rank's time for it, in seconds. */
static double play(int size, int round, long long *wrong)
{
	write_marks(size, round);
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = MPI_Wtime();

	if (args.schedule == MPI) {
		exchange_by_mpi(size);
	} else {
		if (kumi_phase_begin)
			kumi_phase_begin("MPI_Alltoall");
		if (args.schedule == ALL)
			exchange_all(size);
		else
			exchange_in_steps(size);
		if (kumi_phase_end)
			kumi_phase_end();
	}
	double time = MPI_Wtime() - begin;

	*wrong += count_wrong(size, round);
	return time;
}

/*
 * Executes rounds until their count or the time budget is reached. The ranks agree to continue only
 * between blocks of rounds, so that the messages of the agreement hardly affect the measurement.
 */
static int play_rounds(int size, double *times, long long *wrong)
{
	double begin = MPI_Wtime();
	int done = 0, block = args.rounds ? args.rounds : 1;

	while (block > 0) {
		for (; block > 0; block--, done++)
			times[done] = play(size, done, wrong);
		if (args.rounds)
			break;
		double elapsed = MPI_Wtime() - begin;

		MPI_Allreduce(MPI_IN_PLACE, &elapsed, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
		double fit = (args.seconds - elapsed) / (elapsed / done);

		block = fit < 2 * done ? (int)fit : 2 * done;
		if (block > ROUNDS_MAX - done)
			block = ROUNDS_MAX - done;
	}
	return done;
}

/* Returns CLOCK_MONOTONIC in nanoseconds, the clock of the bench's observers of connections. */
static long long monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(int size)
{
	static double times[ROUNDS_MAX], longest[ROUNDS_MAX];
	long long wrong = 0, wrong_sum = 0;
	double sum = 0;

	for (int i = 0; i < args.warmup; i++)
		play(size, i + ROUNDS_MAX, &wrong);
	MPI_Barrier(MPI_COMM_WORLD);
	long long begin_ns = monotonic_ns();
	int rounds = play_rounds(size, times, &wrong);

	MPI_Barrier(MPI_COMM_WORLD);
	long long end_ns = monotonic_ns();

	MPI_Reduce(times, longest, rounds, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(&wrong, &wrong_sum, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank)
		return;
	for (int i = 0; i < rounds; i++)
		sum += longest[i];
	qsort(longest, rounds, sizeof(longest[0]), by_time);
	printf("{\"program\":\"alltoall\",\"schedule\":\"%s\",\"across\":%s,\"size_bytes\":%d,\"ranks\":%d,"
	       "\"rounds\":%d,\"median_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"mean_us\":%.1f,"
	       "\"bytes_wrong\":%lld,\"begin_ns\":%lld,\"end_ns\":%lld}\n",
	       SCHEDULES[args.schedule], args.across ? "true" : "false", size, ranks, rounds,
	       longest[rounds / 2] * 1e6, longest[rounds * 99 / 100] * 1e6, longest[rounds - 1] * 1e6,
	       sum / rounds * 1e6, wrong_sum, begin_ns, end_ns);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	read_args(argc, argv);
	requests = malloc(2 * ranks * sizeof(requests[0]));
	statuses = malloc(2 * ranks * sizeof(statuses[0]));
	counts = malloc(ranks * sizeof(counts[0]));
	displacements = malloc(ranks * sizeof(displacements[0]));
	for (int i = 0; i < args.size_count; i++) {
		out = calloc(ranks, args.sizes[i]);
		in = calloc(ranks, args.sizes[i]);
		if (!out || !in || !requests || !statuses || !counts || !displacements) {
			fprintf(stderr, "mpi_alltoall: no memory for 2 x %d blocks of %d bytes\n", ranks,
				args.sizes[i]);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		measure(args.sizes[i]);
		free(in);
		free(out);
	}
	free(displacements);
	free(counts);
	free(statuses);
	free(requests);
	MPI_Finalize();
	return 0;
}
