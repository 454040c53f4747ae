/*
 * Ping-pong between two ranks for each message size, with MPI_Send and MPI_Recv only. It is an
 * ordinary MPI program without knowledge of the multilink device.
 *
 *   mpirun -np 2 mpi_pingpong TIME_MS SIZE_BYTES...
 *
 * Rank 0 prints one JSON object per size, with the keys of `kumi workload ping`.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MIN 8
#define ROUNDS_MAX 4000

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/*
 * Makes round trips on rank 0 for `time_s` seconds, and writes their times in seconds. Returns
 * their number. The first byte of a message shows rank 1 whether it is the last one.
 */
static int ping(char *message, int size, double time_s, int is_last_run, double *times)
{
	double end = MPI_Wtime() + time_s;
	int rounds = 0, last = 0;

	while (!last) {
		double sent = MPI_Wtime();

		last = rounds + 1 >= ROUNDS_MIN && (rounds + 1 >= ROUNDS_MAX || sent > end);
		message[0] = last && is_last_run;
		MPI_Send(message, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(message, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		times[rounds++] = MPI_Wtime() - sent;
	}
	return rounds;
}

static void pong(char *message, int size)
{
	do {
		MPI_Recv(message, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(message, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
	} while (!message[0]);
}

int main(int argc, char **argv)
{
	static double times[ROUNDS_MAX];
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int arg = 2; arg < argc; arg++) {
		int size = atoi(argv[arg]);
		double time_s = atof(argv[1]) / 1e3;
		char *message = malloc(size);

		memset(message, 0, size);
		if (rank == 0) {
			ping(message, size, time_s / 4, 0, times); /* warms up */
			int rounds = ping(message, size, time_s, 1, times);

			qsort(times, rounds, sizeof(times[0]), by_time);
			printf("{\"size_bytes\":%d,\"rounds\":%d,\"half_round_trip_median_us\":%.3f,"
			       "\"half_round_trip_p99_us\":%.3f}\n",
			       size, rounds, times[rounds / 2] * 5e5, times[rounds * 99 / 100] * 5e5);
			fflush(stdout);
		} else if (rank == 1) {
			pong(message, size);
		}
		free(message);
	}
	MPI_Finalize();
	return 0;
}
