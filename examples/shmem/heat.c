/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Heat in a plate, by Jacobi's method. Each PE has some of the rows, and two more with the edge rows of
 * its neighbours. An edge is put into the neighbour's memory, with a signal that says that it is there.
 *
 *    $ kumi-oshcc -O2 -o heat heat.c -lm && kumi oshrun -n 4 ./heat [ROWS [ROUNDS]]
 */
#include <math.h>
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The upper edge of the plate is hot. */
static double initial(size_t row)
{
	return row == 0 ? 100 : 0;
}

static void step(const double *now, double *after, size_t first, size_t end, size_t columns)
{
	for (size_t row = first; row < end; row++)
		for (size_t column = 1; column + 1 < columns; column++) {
			size_t at = row * columns + column;
			after[at] = (now[at - 1] + now[at + 1] + now[at - columns] + now[at + columns]) / 4;
		}
}

/* Computes the whole plate. Returns the sum of all temperatures. */
static double sequential(size_t rows, size_t columns, size_t rounds)
{
	double *plate[2];
	for (int copy = 0; copy < 2; copy++) {
		plate[copy] = calloc(rows * columns, sizeof **plate);
		for (size_t column = 0; column < columns; column++)
			plate[copy][column] = initial(0);
	}
	for (size_t round = 0; round < rounds; round++)
		step(plate[round % 2], plate[(round + 1) % 2], 1, rows - 1, columns);
	double sum = 0;
	for (size_t row = 0; row < rows; row++) {
		double row_sum = 0;
		for (size_t column = 0; column < columns; column++)
			row_sum += plate[rounds % 2][row * columns + column];
		sum += row_sum;
	}
	free(plate[0]);
	free(plate[1]);
	return sum;
}

int main(int count, char **arguments)
{
	/* Rounds of which the edges have arrived from above and from below. */
	static uint64_t arrived[2];
	static double sum, own_sum;
	size_t rows = count > 1 ? strtoul(arguments[1], NULL, 10) : 300, columns = rows;
	size_t rounds = count > 2 ? strtoul(arguments[2], NULL, 10) : 200;

	shmem_init();
	size_t me = (size_t)shmem_my_pe(), pes = (size_t)shmem_n_pes();
	size_t most = (rows + pes - 1) / pes, first = me * most;
	if (most * (pes - 1) >= rows) {
		if (me == 0)
			fprintf(stderr, "%zu rows are too few for %zu PEs\n", rows, pes);
		shmem_global_exit(2);
	}
	size_t own = rows - first < most ? rows - first : most;
	double *plate[2];
	for (int copy = 0; copy < 2; copy++) {
		/* One more row before the own ones, and one behind them. */
		plate[copy] = shmem_calloc((most + 2) * columns, sizeof **plate);
		for (size_t column = 0; me == 0 && column < columns; column++)
			plate[copy][columns + column] = initial(0);
	}
	shmem_barrier_all();
	for (size_t round = 0; round < rounds; round++) {
		double *now = plate[round % 2], *after = plate[(round + 1) % 2];
		/* The edges of the plate stay as they are. */
		size_t begin = me == 0 ? 2 : 1, end = me + 1 == pes ? own : own + 1;
		if (me > 0)
			shmem_double_put_signal(now + (most + 1) * columns, now + columns, columns,
						&arrived[1], round + 1, SHMEM_SIGNAL_SET, (int)me - 1);
		if (me + 1 < pes)
			shmem_double_put_signal(now, now + own * columns, columns, &arrived[0], round + 1,
						SHMEM_SIGNAL_SET, (int)me + 1);
		if (me > 0)
			shmem_signal_wait_until(&arrived[0], SHMEM_CMP_GE, round + 1);
		if (me + 1 < pes) {
			shmem_signal_wait_until(&arrived[1], SHMEM_CMP_GE, round + 1);
			/* The row behind the own ones, if these are fewer than those of others. */
			if (own < most)
				memcpy(now + (own + 1) * columns, now + (most + 1) * columns,
				       columns * sizeof *now);
		}
		step(now, after, begin, end, columns);
	}
	for (size_t row = 1; row <= own; row++)
		for (size_t column = 0; column < columns; column++)
			own_sum += plate[rounds % 2][row * columns + column];
	shmem_double_sum_reduce(SHMEM_TEAM_WORLD, &sum, &own_sum, 1);
	int differs = 0;
	if (me == 0) {
		double wanted = sequential(rows, columns, rounds);
		differs = fabs(sum - wanted) > 1e-9 * wanted;
		printf("%zu rounds on %zu x %zu points: %.6f, %s\n", rounds, rows, columns, sum,
		       differs ? "NOT the sequential result" : "the sequential result");
	}
	shmem_finalize();
	return differs;
}
