/*
 * LU decomposition as in examples/dsm/lu.c, by hand with MPI: rows are dealt out in turn, and the
 * owner of the pivot's row broadcasts what is left of it.
 *
 *   mpirun -np RANKS mpi_lu SIDE
 *
 * Rank 0 prints a JSON object. The last row is compared with that of a decomposition on one rank.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void eliminate(double *row, const double *pivot, size_t n, size_t step)
{
	row[step] /= pivot[step];
	for (size_t j = step + 1; j < n; j++)
		row[j] -= row[step] * pivot[j];
}

static void fill(double *row, size_t n, size_t i)
{
	for (size_t j = 0; j < n; j++)
		row[j] = i == j ? n : (double)((i * 7 + j * 3) % 11) / 11;
}

/* Decomposes the rows `rank`, `rank` + `ranks` and so on. */
static void decompose(double *rows, double *pivot, size_t n, size_t rank, size_t ranks, MPI_Comm comm)
{
	for (size_t step = 0; step + 1 < n; step++) {
		double *row = step % ranks == rank ? rows + step / ranks * n : pivot;
		size_t first = step < rank ? rank : rank + (step - rank) / ranks * ranks + ranks;

		MPI_Bcast(row + step, n - step, MPI_DOUBLE, step % ranks, comm);
		for (size_t i = first; i < n; i += ranks)
			eliminate(rows + i / ranks * n, row, n, step);
	}
}

int main(int argc, char **argv)
{
	int rank, ranks;
	size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 512;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	double *rows = malloc((n / ranks + 1) * n * sizeof *rows), *pivot = malloc(n * sizeof *pivot);

	for (size_t i = rank; i < n; i += ranks)
		fill(rows + i / ranks * n, n, i);
	MPI_Barrier(MPI_COMM_WORLD);
	double began = MPI_Wtime();

	decompose(rows, pivot, n, rank, ranks, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	double time_s = MPI_Wtime() - began;
	int is_right = 1, owner = (n - 1) % ranks;

	if (rank == owner)
		memcpy(pivot, rows + (n - 1) / ranks * n, n * sizeof *pivot);
	MPI_Bcast(pivot, n, MPI_DOUBLE, owner, MPI_COMM_WORLD);
	if (rank == 0 && n <= 2048) {
		double *all = malloc(n * n * sizeof *all);

		for (size_t i = 0; i < n; i++)
			fill(all + i * n, n, i);
		decompose(all, NULL, n, 0, 1, MPI_COMM_SELF);
		is_right = memcmp(all + (n - 1) * n, pivot, n * sizeof *pivot) == 0;
		free(all);
	}
	if (rank == 0)
		printf("{\"time_s\": %f, \"is_right\": %s}\n", time_s, is_right ? "true" : "false");
	MPI_Finalize();
	return !is_right;
}
