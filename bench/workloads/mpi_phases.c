/*
 * Alternates collective and point-to-point communication between two sites. The TCP window that a
 * phase leaves is wrong for the next phase (GridMPI §4.2, figure 4).
 *
 *   mpirun -np N mpi_phases [--repeat R] [--rounds C] [--size S] [--transfer B] [--chunk K]
 *                           [--rtt-us U] [--series I]
 *
 * Ranks 0 .. N/2-1 are one site, the others are the other site. A repetition, of R, has two parts:
 *
 * 1. C rounds of an all-to-all with S bytes per pair. Only the messages between the sites are sent,
 *    all at once. Each round is in the phase MPI_Alltoall.
 * 2. After a barrier, and outside any phase, rank 0 sends B bytes to rank N/2, in messages of K
 *    bytes. Both ends post all messages at once.
 *
 * The receiver's clock starts when the first byte could have arrived. That is one round trip of U
 * microseconds after the receiver's message that starts the sender. Rank 0 prints one JSON object
 * per repetition. For repetition I (from 0) it also has the bytes that arrived per millisecond.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERIES_BINS_MAX 60000 /* one minute, in ms; a longer series is cut (`series_cut`) */
#define CHECK_STRIDE 509      /* a prime: many messages together have each offset checked */

/*
 * Below Open MPI's eager limit over TCP (64 KiB, with the header). A larger message would wait for
 * an answer to its first fragment. One message is also about a millisecond of 500 Mb/s.
 */
#define CHUNK_BYTES 61440

enum { TAG_COLLECTIVE, TAG_READY, TAG_DATA, TAG_FIGURES, TAG_SERIES };

/* Functions of the preload library, which marks phases; NULL without it. */
extern void kumi_phase_begin(const char *name) __attribute__((weak));
extern void kumi_phase_end(void) __attribute__((weak));

struct option {
	const char *name, *right;
	double least, most, value;
};

enum { REPEAT, ROUNDS, SIZE, TRANSFER, CHUNK, RTT_US, SERIES, OPTION_COUNT };

static struct option options[OPTION_COUNT] = {
	[REPEAT] = { "--repeat", "repetitions from 1 to 100000", 1, 1e5, 3 },
	[ROUNDS] = { "--rounds", "rounds from 0 to 1000000", 0, 1e6, 10 },
	[SIZE] = { "--size", "bytes a pair from 1 to 268435456", 1, 1 << 28, 32768 },
	[TRANSFER] = { "--transfer", "bytes from 1 to 2147483647", 1, 2147483647, 50e6 },
	[CHUNK] = { "--chunk", "bytes a message from 1 to 268435456", 1, 1 << 28, CHUNK_BYTES },
	[RTT_US] = { "--rtt-us", "microseconds from 1 to 10000000", 1, 1e7, 20000 },
	[SERIES] = { "--series", "a repetition, the first is 0, or -1 for none", -1, 1e5, -1 },
};

struct figures {
	double total_bps;      /* over the whole transfer */
	double first_2rtt_bps; /* over the first two round trips */
	double steady_bps;     /* over the second half of the time */
	double first_us;       /* from the start of the clock to the first complete message */
	double total_us;
	double bytes_wrong;
	double bins; /* length of the series; 0 if it was not requested */
};

static int rank, ranks;
static char *out, *in; /* one block per rank, for the collective */
static char *data;     /* the transfer, on both of its ends */
static MPI_Request *requests;
static MPI_Status *statuses; /* MPI_STATUSES_IGNORE makes gcc warn under MPICH */
static double *arrivals;
static int series[SERIES_BINS_MAX];

static void reject(const char *name, const char *value, const char *right)
{
	if (rank == 0)
		fprintf(stderr, "mpi_phases: %s: got '%s', want %s\n", name, value ? value : "nothing",
			right);
	MPI_Finalize();
	exit(2);
}

static void read_args(int argc, char **argv)
{
	for (int at = 1; at < argc; at += 2) {
		const char *value = at + 1 < argc ? argv[at + 1] : NULL;
		struct option *option = options;
		char *end = NULL;

		while (option < options + OPTION_COUNT && strcmp(argv[at], option->name))
			option++;
		if (option == options + OPTION_COUNT)
			reject("option", argv[at],
			       "--repeat, --rounds, --size, --transfer, --chunk, --rtt-us or --series");
		option->value = value ? strtod(value, &end) : 0;
		if (!value || end == value || *end || option->value != (double)(long long)option->value ||
		    !(option->value >= option->least && option->value <= option->most))
			reject(option->name, value, option->right);
	}
	if (ranks < 2 || ranks % 2)
		reject("ranks", "an odd number", "an even number of ranks, half of them on each site");
}

static int int_of(int option)
{
	return (int)options[option].value;
}

static int chunk_count(void)
{
	return (int_of(TRANSFER) - 1) / int_of(CHUNK) + 1;
}

static int chunk_bytes(int chunk)
{
	int left = int_of(TRANSFER) - chunk * int_of(CHUNK);

	return left < int_of(CHUNK) ? left : int_of(CHUNK);
}

/* Executes one round between the sites. Returns this rank's time for it, in seconds. */
static double exchange_across(void)
{
	int size = int_of(SIZE), half = ranks / 2, far = rank < half ? half : 0, count = 0;
	double begin = MPI_Wtime();

	if (kumi_phase_begin)
		kumi_phase_begin("MPI_Alltoall");
	/* Each rank begins with its counterpart, so that no rank is the first of all others. */
	for (int k = 0; k < half; k++) {
		int peer = far + (rank % half + half - k) % half;

		MPI_Irecv(in + (size_t)peer * size, size, MPI_CHAR, peer, TAG_COLLECTIVE, MPI_COMM_WORLD,
			  &requests[count++]);
	}
	for (int k = 0; k < half; k++) {
		int peer = far + (rank % half + k) % half;

		MPI_Isend(out + (size_t)peer * size, size, MPI_CHAR, peer, TAG_COLLECTIVE, MPI_COMM_WORLD,
			  &requests[count++]);
	}
	MPI_Waitall(count, requests, statuses);
	if (kumi_phase_end)
		kumi_phase_end();
	return MPI_Wtime() - begin;
}

/* Returns the byte that fills a message of a repetition. */
static char fill(int repetition, int chunk)
{
	return (char)(repetition * 31 + chunk * 7 + 1);
}

static void send_transfer(int repetition)
{
	int chunks = chunk_count();

	for (int chunk = 0; chunk < chunks; chunk++)
		memset(data + (size_t)chunk * int_of(CHUNK), fill(repetition, chunk), chunk_bytes(chunk));
	MPI_Recv(NULL, 0, MPI_CHAR, ranks / 2, TAG_READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int chunk = 0; chunk < chunks; chunk++)
		MPI_Isend(data + (size_t)chunk * int_of(CHUNK), chunk_bytes(chunk), MPI_CHAR, ranks / 2,
			  TAG_DATA, MPI_COMM_WORLD, &requests[chunk]);
	MPI_Waitall(chunks, requests, statuses);
}

/* Receives the transfer. Returns the time at which the first byte could have arrived. */
static double receive_transfer(void)
{
	int chunks = chunk_count();

	for (int chunk = 0; chunk < chunks; chunk++)
		MPI_Irecv(data + (size_t)chunk * int_of(CHUNK), chunk_bytes(chunk), MPI_CHAR, 0, TAG_DATA,
			  MPI_COMM_WORLD, &requests[chunk]);
	double begin = MPI_Wtime() + int_of(RTT_US) / 1e6;

	MPI_Send(NULL, 0, MPI_CHAR, 0, TAG_READY, MPI_COMM_WORLD);
	for (int chunk = 0; chunk < chunks; chunk++) {
		MPI_Wait(&requests[chunk], MPI_STATUS_IGNORE);
		arrivals[chunk] = MPI_Wtime();
	}
	return begin;
}

static double rate_bps(double bytes, double time_s)
{
	return time_s > 1e-9 ? bytes * 8 / time_s : 0;
}

static struct figures judge(double begin, int repetition)
{
	int chunks = chunk_count();
	double last = arrivals[chunks - 1], middle = (begin + last) / 2, window_s = 2 * int_of(RTT_US) / 1e6;
	double first_bytes = 0, second_half_bytes = 0;
	struct figures figures = { .first_us = (arrivals[0] - begin) * 1e6,
				   .total_us = (last - begin) * 1e6 };

	for (int chunk = 0; chunk < chunks; chunk++) {
		const char *message = data + (size_t)chunk * int_of(CHUNK);

		first_bytes += arrivals[chunk] <= begin + window_s ? chunk_bytes(chunk) : 0;
		second_half_bytes += arrivals[chunk] > middle ? chunk_bytes(chunk) : 0;
		for (int at = chunk % CHECK_STRIDE; at < chunk_bytes(chunk); at += CHECK_STRIDE)
			figures.bytes_wrong += message[at] != fill(repetition, chunk);
	}
	if (last < begin + window_s)
		window_s = last - begin;
	figures.total_bps = rate_bps(options[TRANSFER].value, last - begin);
	figures.first_2rtt_bps = rate_bps(first_bytes, window_s);
	figures.steady_bps = rate_bps(second_half_bytes, last - middle);
	if (repetition != int_of(SERIES))
		return figures;
	memset(series, 0, sizeof(series));
	for (int chunk = 0; chunk < chunks; chunk++) {
		double at_ms = (arrivals[chunk] - begin) * 1e3;
		int bin = at_ms < 0 ? 0 : at_ms < SERIES_BINS_MAX ? (int)at_ms : SERIES_BINS_MAX - 1;

		series[bin] += chunk_bytes(chunk);
		figures.bins = bin + 1;
	}
	return figures;
}

static void print(int repetition, double collective_us, const struct figures *figures)
{
	printf("{\"program\":\"phases\",\"repetition\":%d,\"ranks\":%d,\"collective_rounds\":%d,"
	       "\"collective_size_bytes\":%d,\"collective_mean_us\":%.1f,\"transfer_bytes\":%d,\"rtt_us\":%d,"
	       "\"goodput_bps\":%.0f,\"goodput_first_2rtt_bps\":%.0f,\"goodput_steady_bps\":%.0f,"
	       "\"first_arrival_us\":%.1f,\"transfer_us\":%.1f,\"bytes_wrong\":%.0f",
	       repetition, ranks, int_of(ROUNDS), int_of(SIZE), collective_us, int_of(TRANSFER),
	       int_of(RTT_US), figures->total_bps, figures->first_2rtt_bps, figures->steady_bps,
	       figures->first_us, figures->total_us, figures->bytes_wrong);
	if (figures->bins > 0) {
		printf(",\"series_cut\":%s,\"bytes_per_ms\":[",
		       figures->bins == SERIES_BINS_MAX ? "true" : "false");
		for (int bin = 0; bin < figures->bins; bin++)
			printf("%s%d", bin ? "," : "", series[bin]);
		printf("]");
	}
	printf("}\n");
	fflush(stdout);
}

static void repeat(int repetition)
{
	int far = ranks / 2, numbers = sizeof(struct figures) / sizeof(double);
	double collective_s = 0, longest_s = 0;
	struct figures figures;

	for (int round = 0; round < int_of(ROUNDS); round++)
		collective_s += exchange_across();
	/* The sender must not be in the collective when the clock starts: only TCP is measured. */
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		send_transfer(repetition);
	else if (rank == far)
		figures = judge(receive_transfer(), repetition);
	/* No rank starts the next collective during the transfer. */
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Reduce(&collective_s, &longest_s, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == far) {
		MPI_Send(&figures, numbers, MPI_DOUBLE, 0, TAG_FIGURES, MPI_COMM_WORLD);
		MPI_Send(series, (int)figures.bins, MPI_INT, 0, TAG_SERIES, MPI_COMM_WORLD);
	} else if (rank == 0) {
		MPI_Recv(&figures, numbers, MPI_DOUBLE, far, TAG_FIGURES, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Recv(series, (int)figures.bins, MPI_INT, far, TAG_SERIES, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
		print(repetition, int_of(ROUNDS) ? longest_s / int_of(ROUNDS) * 1e6 : 0, &figures);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	read_args(argc, argv);
	int is_end = rank == 0 || rank == ranks / 2, request_count = is_end ? chunk_count() + ranks : ranks;

	out = calloc(ranks, int_of(SIZE));
	in = calloc(ranks, int_of(SIZE));
	data = malloc(is_end ? int_of(TRANSFER) : 1);
	requests = malloc(request_count * sizeof(requests[0]));
	statuses = malloc(request_count * sizeof(statuses[0]));
	arrivals = malloc(request_count * sizeof(arrivals[0]));
	if (!out || !in || !data || !requests || !statuses || !arrivals) {
		fprintf(stderr, "mpi_phases: no memory for --size %d and --transfer %d\n", int_of(SIZE),
			int_of(TRANSFER));
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	memset(data, 0, is_end ? int_of(TRANSFER) : 1); /* allocates the pages in advance */
	for (int repetition = 0; repetition < int_of(REPEAT); repetition++)
		repeat(repetition);
	free(arrivals);
	free(statuses);
	free(requests);
	free(data);
	free(in);
	free(out);
	MPI_Finalize();
	return 0;
}
