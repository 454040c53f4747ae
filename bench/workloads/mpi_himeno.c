/*
 * The Jacobi stencil of the Himeno benchmark as in examples/dsm/himeno.c, by hand with MPI: each
 * rank has a block of planes, and neighbours exchange one plane in each direction.
 *
 *   mpirun -np RANKS mpi_himeno XS|S|M ROUNDS
 *
 * Rank 0 prints a JSON object. The pressure is compared with that of a run on one rank.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t planes, rows, columns;

struct coefficients {
	size_t first;
	float *a[4], *b[3], *c[3], *bound, *source;
};

static float *constant(size_t points, float value)
{
	float *array = malloc(points * sizeof *array);

	for (size_t i = 0; i < points; i++)
		array[i] = value;
	return array;
}

static struct coefficients coefficients(size_t first, size_t end)
{
	size_t points = (end - first) * rows * columns;
	struct coefficients of = { .first = first };

	for (int i = 0; i < 3; i++) {
		of.a[i] = constant(points, 1);
		of.b[i] = constant(points, 0);
		of.c[i] = constant(points, 1);
	}
	of.a[3] = constant(points, 1.0f / 6);
	of.bound = constant(points, 1);
	of.source = constant(points, 0);
	return of;
}

static double round_of(const struct coefficients *of, const float *p, float *next, size_t first, size_t end)
{
	const long i1 = (long)(rows * columns), j1 = (long)columns;
	double sum = 0;

	for (size_t i = first; i < end; i++)
		for (size_t j = 1; j + 1 < rows; j++)
			for (size_t k = 1; k + 1 < columns; k++) {
				size_t at = (i * rows + j) * columns + k;
				size_t own = at - of->first * rows * columns;
				const float *q = p + at;
				float s = of->a[0][own] * q[i1] + of->a[1][own] * q[j1] +
					  of->a[2][own] * q[1] +
					  of->b[0][own] *
						  (q[i1 + j1] - q[i1 - j1] - q[-i1 + j1] + q[-i1 - j1]) +
					  of->b[1][own] * (q[j1 + 1] - q[-j1 + 1] - q[j1 - 1] + q[-j1 - 1]) +
					  of->b[2][own] * (q[i1 + 1] - q[-i1 + 1] - q[i1 - 1] + q[-i1 - 1]) +
					  of->c[0][own] * q[-i1] + of->c[1][own] * q[-j1] +
					  of->c[2][own] * q[-1] + of->source[own];
				float change = (s * of->a[3][own] - *q) * of->bound[own];

				sum += (double)change * change;
				next[at] = *q + 0.8f * change;
			}
	return sum;
}

static void fill(float *p)
{
	for (size_t i = 0; i < planes; i++)
		for (size_t at = i * rows * columns; at < (i + 1) * rows * columns; at++)
			p[at] = (float)(i * i) / (float)((planes - 1) * (planes - 1));
}

int main(int argc, char **argv)
{
	int rank, ranks, is_right = 1, rounds = argc > 2 ? atoi(argv[2]) : 10;
	const char *size = argc > 1 ? argv[1] : "XS";

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	planes = rows = strcmp(size, "M") == 0 ? 129 : strcmp(size, "S") == 0 ? 65 : 33;
	columns = 2 * rows - 1;
	size_t plane = rows * columns, bytes = planes * plane * sizeof(float);
	size_t first = planes * rank / ranks, end = planes * (rank + 1) / ranks;
	float *p[2] = { malloc(bytes), malloc(bytes) };
	double sum = 0, total = 0;

	fill(p[0]);
	fill(p[1]);
	int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
	size_t own_first = first < 1 ? 1 : first, own_end = end > planes - 1 ? planes - 1 : end;
	struct coefficients own = coefficients(own_first, own_end);

	MPI_Barrier(MPI_COMM_WORLD);
	double began = MPI_Wtime();

	for (int i = 0; i < rounds; i++) {
		float *now = p[i % 2], *next = p[(i + 1) % 2];

		sum = round_of(&own, now, next, own_first, own_end);
		MPI_Sendrecv(next + first * plane, plane, MPI_FLOAT, above, 0, next + end * plane,
			     below == MPI_PROC_NULL ? 0 : plane, MPI_FLOAT, below, 0, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		MPI_Sendrecv(next + (end - 1) * plane, plane, MPI_FLOAT, below, 1,
			     above == MPI_PROC_NULL ? next : next + (first - 1) * plane,
			     above == MPI_PROC_NULL ? 0 : plane, MPI_FLOAT, above, 1, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		/* The benchmark adds the changes up in each round. */
		MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double time_s = MPI_Wtime() - began;
	float *result = p[rounds % 2];

	if (rank > 0)
		MPI_Send(result + first * plane, (end - first) * plane, MPI_FLOAT, 0, 2, MPI_COMM_WORLD);
	for (int from = 1; rank == 0 && from < ranks; from++) {
		size_t begin = planes * from / ranks, behind = planes * (from + 1) / ranks;

		MPI_Recv(result + begin * plane, (behind - begin) * plane, MPI_FLOAT, from, 2, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
	}
	if (rank == 0) {
		struct coefficients all = coefficients(1, planes - 1);
		float *expected[2] = { malloc(bytes), malloc(bytes) };

		fill(expected[0]);
		fill(expected[1]);
		for (int i = 0; i < rounds; i++)
			round_of(&all, expected[i % 2], expected[(i + 1) % 2], 1, planes - 1);
		is_right = memcmp(expected[rounds % 2], result, bytes) == 0;
		printf("{\"time_s\": %f, \"is_right\": %s}\n", time_s, is_right ? "true" : "false");
	}
	MPI_Finalize();
	return !is_right;
}
