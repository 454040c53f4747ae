/*
 * Times of one-sided operations on rank 1 for each message size: MPI_Put, MPI_Get and
 * MPI_Fetch_and_op, each completed at the target by MPI_Win_flush. Rank 1 is inside MPI meanwhile,
 * so that the library can progress.
 *
 *   mpirun -np 2 mpi_onesided TIME_MS SIZE_BYTES...
 *
 * Rank 0 prints one JSON object per size, with the keys of `kumi workload wind-exchange`.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MIN 20
#define ROUNDS_MAX 20000

static MPI_Win window;
static char *local;
static double times[ROUNDS_MAX];

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void put(int bytes)
{
	MPI_Put(local, bytes, MPI_CHAR, 1, 0, bytes, MPI_CHAR, window);
}

static void get(int bytes)
{
	MPI_Get(local, bytes, MPI_CHAR, 1, 0, bytes, MPI_CHAR, window);
}

static void fetch_add(int bytes)
{
	static long one = 1, before;

	(void)bytes;
	MPI_Fetch_and_op(&one, &before, MPI_LONG, 1, 0, MPI_SUM, window);
}

static void measure(const char *name, void (*start)(int), int bytes, double time_s)
{
	double end = 0;
	int rounds = 0, warm = 1;

	while (rounds < ROUNDS_MAX && (warm || rounds < ROUNDS_MIN || MPI_Wtime() < end)) {
		double sent = MPI_Wtime();

		start(bytes);
		MPI_Win_flush(1, window);
		times[rounds++] = MPI_Wtime() - sent;
		if (warm && rounds == ROUNDS_MIN) {
			rounds = warm = 0;
			end = MPI_Wtime() + time_s;
		}
	}
	qsort(times, rounds, sizeof(times[0]), by_time);
	printf(",\"%s_median_us\":%.3f,\"%s_p99_us\":%.3f", name, times[rounds / 2] * 1e6, name,
	       times[rounds * 99 / 100] * 1e6);
}

int main(int argc, char **argv)
{
	void *memory;
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Win_allocate(1 << 20, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	memset(memory, 0, 1 << 20);
	local = calloc(1, 1 << 20);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (int arg = 2; arg < argc && rank == 0; arg++) {
		int bytes = atoi(argv[arg]);
		double time_s = atof(argv[1]) / 1e3;

		printf("{\"size_bytes\":%d", bytes);
		measure("put", put, bytes, time_s);
		measure("get", get, bytes, time_s);
		measure("fetch_add", fetch_add, bytes, time_s);
		printf("}\n");
		fflush(stdout);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_free(&window);
	MPI_Finalize();
	return 0;
}
