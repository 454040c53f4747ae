/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * LU decomposition without pivoting of an n × n matrix whose rows are dealt out in turn, as in
 * table 2 of the Wind paper:
 *
 *    cc -O2 -I bindings/c -o lu examples/dsm/lu.c target/release/libkumi.so
 *    for RANK in 0 1; do RANK=$RANK WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=7000 ./lu 512 & done
 */
#include "example.h"
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

int main(int argc, char **argv)
{
	size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 512;
	join_job();
	size_t row_pages = (n * sizeof(double) + 4095) / 4096, stride = row_pages * 512;
	double *matrix = shared(n * row_pages * 4096, KUMI_DSM_CYCLIC, row_pages);
	/* The pivot's row, which all nodes get at the barrier; two, because one is still read. */
	double *pivots = updated(2 * row_pages * 4096);
	/* The rows of this node. They are shared when they are complete: nobody else reads them before. */
	double *rows = malloc((n / nodes + 1) * n * sizeof *rows);
	for (size_t i = node; i < n; i += nodes)
		fill(rows + i / nodes * n, n, i);
	start_clock();
	for (size_t step = 0; step + 1 < n; step++) {
		double *pivot = pivots + step % 2 * stride;
		if (step % nodes == (size_t)node)
			memcpy(pivot + step, rows + step / nodes * n + step, (n - step) * sizeof *pivot);
		barrier();
		for (size_t i = node; i < n; i += nodes)
			if (i > step)
				eliminate(rows + i / nodes * n, pivot, n, step);
	}
	for (size_t i = node; i < n; i += nodes)
		memcpy(matrix + i * stride, rows + i / nodes * n, n * sizeof *rows);
	stop_clock();
	print_totals();
	int is_right = 1;
	if (node == 0) {
		double *expected = malloc(n * n * sizeof(double));
		for (size_t i = 0; i < n; i++)
			fill(expected + i * n, n, i);
		for (size_t step = 0; step + 1 < n; step++)
			for (size_t i = step + 1; i < n; i++)
				eliminate(expected + i * n, expected + step * n, n, step);
		for (size_t i = 0; i < n; i++)
			is_right &= memcmp(expected + i * n, matrix + i * stride, n * sizeof(double)) == 0;
		free(expected);
	}
	return finish("LU decomposition", is_right);
}
