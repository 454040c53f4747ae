/*
 * Messages from rank 0 to rank 1 for a given time, with MPI_Send and MPI_Recv only. It is an
 * ordinary MPI program without knowledge of the multilink device. It ends if its TCP connection
 * fails.
 *
 *   mpirun -np 2 mpi_stream SECONDS MESSAGE_BYTES
 *
 * Rank 1 checks the messages and prints one JSON object per line. The first has the time of the
 * first message. Then one line per 100 ms has the bytes received. The last has the number of wrong
 * messages.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BIN_S 0.1
#define CHECK_STRIDE 509 /* a prime: many messages together have each offset checked */

enum { TAG_DATA, TAG_LAST };

static long long unix_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void send_for(double seconds, char *message, int size)
{
	double end = MPI_Wtime() + seconds;
	unsigned count = 0;
	int last;

	do {
		memset(message, count++ & 0xff, size);
		last = MPI_Wtime() > end;
		MPI_Send(message, size, MPI_CHAR, 1, last ? TAG_LAST : TAG_DATA, MPI_COMM_WORLD);
	} while (!last);
}

static int is_wrong(const char *message, int size, unsigned count)
{
	for (int at = count % CHECK_STRIDE; at < size; at += CHECK_STRIDE)
		if (message[at] != (char)(count & 0xff))
			return 1;
	return 0;
}

static void receive(char *message, int size)
{
	double first = 0, last = 0, bin = BIN_S, gap = 0, gap_max = 0;
	long long bytes = 0;
	unsigned count = 0, wrong = 0;
	MPI_Status status;

	do {
		MPI_Recv(message, size, MPI_CHAR, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
		double now = MPI_Wtime();

		if (count == 0) {
			printf("{\"first_unix_ns\":%lld}\n", unix_ns());
			first = last = now;
		}
		gap = now - last > gap ? now - last : gap;
		gap_max = gap > gap_max ? gap : gap_max;
		last = now;
		wrong += is_wrong(message, size, count++);
		for (; now - first >= bin; bin += BIN_S, bytes = 0, gap = 0)
			printf("{\"at_s\":%.1f,\"bytes\":%lld,\"gap_ms\":%.2f}\n", bin, bytes, gap * 1e3);
		bytes += size;
	} while (status.MPI_TAG != TAG_LAST);
	printf("{\"messages\":%u,\"wrong\":%u,\"gap_max_ms\":%.2f}\n", count, wrong, gap_max * 1e3);
}

int main(int argc, char **argv)
{
	int rank;

	MPI_Init(&argc, &argv);
	if (argc != 3) {
		fprintf(stderr, "usage: mpi_stream SECONDS MESSAGE_BYTES\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	int size = atoi(argv[2]);
	char *message = malloc(size);

	if (rank == 0)
		send_for(atof(argv[1]), message, size);
	else if (rank == 1)
		receive(message, size);
	free(message);
	MPI_Finalize();
	return 0;
}
