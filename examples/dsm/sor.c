/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Red-black successive over-relaxation on a square grid, whose rows are divided into blocks:
 *
 *    ./sor [SIDE] [ROUNDS]
 */
#include "example.h"
#include <string.h>

/* Relaxes the points of a colour in a row. */
static void relax(double *grid, size_t side, size_t row, size_t colour)
{
	for (size_t j = 1 + (row + colour) % 2; j + 1 < side; j += 2) {
		double *at = grid + row * side + j;
		double mean = (at[-1] + at[1] + at[-(long)side] + at[side]) / 4;
		*at += 1.5 * (mean - *at);
	}
}

int main(int argc, char **argv)
{
	size_t side = argc > 1 ? strtoul(argv[1], NULL, 10) : 500;
	size_t rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 20;
	size_t bytes = side * side * sizeof(double);
	join_job();
	double *grid = shared(bytes, KUMI_DSM_BLOCKS, 0);
	if (node == 0)
		for (size_t j = 0; j < side; j++)
			grid[j] = 100;
	start_clock();
	for (size_t half = 0; half < 2 * rounds; half++) {
		for (size_t row = 1 + first_of(side - 2, node); row < 1 + first_of(side - 2, node + 1); row++)
			relax(grid, side, row, half % 2);
		barrier();
	}
	stop_clock();
	print_totals();
	int is_right = 1;
	if (node == 0) {
		double *expected = calloc(1, bytes);
		for (size_t j = 0; j < side; j++)
			expected[j] = 100;
		for (size_t half = 0; half < 2 * rounds; half++)
			for (size_t row = 1; row + 1 < side; row++)
				relax(expected, side, row, half % 2);
		is_right = memcmp(expected, grid, bytes) == 0;
		free(expected);
	}
	return finish("successive over-relaxation", is_right);
}
