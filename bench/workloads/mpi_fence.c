/*
 * Times of updates by MPI_Put for each size, between two MPI_Win_fence, or with MPI_Win_lock_all
 * and MPI_Win_flush_all before a barrier: rank 0 writes bytes to all other ranks, which check them.
 * For size 0 it is MPI_Barrier.
 *
 *   mpirun -np N mpi_fence fence|flush QUICK SIZE_BYTES...
 *
 * Rank 0 prints one JSON object per size, with the keys of `kumi workload dsm barrier`.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 1000
#define ROUNDS_MIN 3
#define BYTES (8 << 20)

static double times[ROUNDS_MAX];

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int is_flush = strcmp(argv[1], "flush") == 0;
	for (int i = 3; i < argc; i++) {
		long bytes = atol(argv[i]), moved = bytes * (ranks - 1);
		int rounds = moved == 0 ? ROUNDS_MAX : BYTES / moved;
		char *shared, *block = malloc(bytes + 1);
		MPI_Win window;

		rounds = rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
		rounds = atoi(argv[2]) && rounds > 5 * ROUNDS_MIN ? rounds / 5 : rounds;
		MPI_Win_allocate(bytes + 1, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
		if (is_flush)
			MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
		for (int round = 0; round < rounds; round++) {
			memset(block, round + 1, bytes);
			MPI_Barrier(MPI_COMM_WORLD);
			double began = MPI_Wtime();
			if (bytes == 0) {
				MPI_Barrier(MPI_COMM_WORLD);
			} else {
				if (!is_flush)
					MPI_Win_fence(0, window);
				for (int to = 1; rank == 0 && to < ranks; to++)
					MPI_Put(block, bytes, MPI_CHAR, to, 0, bytes, MPI_CHAR, window);
				if (is_flush) {
					if (rank == 0)
						MPI_Win_flush_all(window);
					MPI_Barrier(MPI_COMM_WORLD);
					MPI_Win_sync(window);
				} else {
					MPI_Win_fence(0, window);
				}
				if (rank != 0 && memcmp(shared, block, bytes) != 0)
					MPI_Abort(MPI_COMM_WORLD, 1);
				MPI_Barrier(MPI_COMM_WORLD);
			}
			times[round] = MPI_Wtime() - began;
		}
		if (is_flush)
			MPI_Win_unlock_all(window);
		MPI_Win_free(&window);
		free(block);
		if (rank != 0)
			continue;
		qsort(times, rounds, sizeof *times, by_time);
		double time_us = times[rounds / 2] * 1e6;
		printf("{\"size_bytes\": %ld, \"barrier_median_us\": %f, \"rounds\": %d", bytes, time_us,
		       rounds);
		if (bytes > 0)
			printf(", \"goodput_bps\": %f", moved * 8 / time_us * 1e6);
		printf("}\n");
	}
	MPI_Finalize();
	return 0;
}
