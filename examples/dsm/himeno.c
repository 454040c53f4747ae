/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The Jacobi stencil of the Himeno benchmark (http://i.riken.jp/en/supercom/documents/himenobmt/): 19
 * points of pressure with coefficients of each point. The pressure is shared, and the planes are
 * divided into blocks. The pressure of the next round is a second array, where the benchmark copies.
 *
 *    ./himeno [XS|S|M] [ROUNDS]
 */
#include "example.h"
#include <math.h>
#include <string.h>

/* A node has `block` planes, or fewer at the end, in `block_points` points. */
static size_t planes, rows, columns, block, block_points;

/* Coefficients of the planes from `first` on. */
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

/* Returns where a plane begins: the planes of a node follow each other, from a page on. */
static size_t begin_of(size_t i)
{
	return i / block * block_points + i % block * rows * columns;
}

/* Computes the planes from `first` to `end`. Returns the sum of the squared changes. */
static double round_of(const struct coefficients *of, const float *p, float *next, size_t first, size_t end)
{
	const long j1 = (long)columns;
	double sum = 0;
	for (size_t i = first; i < end; i++)
		for (size_t j = 1; j + 1 < rows; j++)
			for (size_t k = 1; k + 1 < columns; k++) {
				size_t at = j * columns + k, own = (i - of->first) * rows * columns + at;
				const float *q = p + begin_of(i) + at;
				const float *up = p + begin_of(i + 1) + at, *down = p + begin_of(i - 1) + at;
				float s = of->a[0][own] * up[0] + of->a[1][own] * q[j1] +
					  of->a[2][own] * q[1] +
					  of->b[0][own] * (up[j1] - up[-j1] - down[j1] + down[-j1]) +
					  of->b[1][own] * (q[j1 + 1] - q[-j1 + 1] - q[j1 - 1] + q[-j1 - 1]) +
					  of->b[2][own] * (up[1] - down[1] - up[-1] + down[-1]) +
					  of->c[0][own] * down[0] + of->c[1][own] * q[-j1] +
					  of->c[2][own] * q[-1] + of->source[own];
				float change = (s * of->a[3][own] - *q) * of->bound[own];
				sum += (double)change * change;
				next[begin_of(i) + at] = *q + 0.8f * change;
			}
	return sum;
}

static void fill(float *p, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++)
		for (size_t at = 0; at < rows * columns; at++)
			p[begin_of(i) + at] = (float)(i * i) / (float)((planes - 1) * (planes - 1));
}

static size_t smaller(size_t one, size_t other)
{
	return one < other ? one : other;
}

int main(int argc, char **argv)
{
	const char *size = argc > 1 ? argv[1] : "XS";
	int rounds = argc > 2 ? atoi(argv[2]) : 10;
	planes = rows = strcmp(size, "M") == 0 ? 129 : strcmp(size, "S") == 0 ? 65 : 33;
	columns = 2 * rows - 1;
	join_job();
	block = (planes + nodes - 1) / nodes;
	size_t block_pages = (block * rows * columns * sizeof(float) + 4095) / 4096;
	block_points = block_pages * 4096 / sizeof(float);
	size_t bytes = (planes + block - 1) / block * block_pages * 4096;
	float *p[2];
	for (int copy = 0; copy < 2; copy++)
		p[copy] = shared(bytes, KUMI_DSM_CYCLIC, (unsigned)block_pages);
	double *sums = shared(nodes * sizeof *sums, KUMI_DSM_ON, 0);
	size_t first = smaller(planes, node * block), end = smaller(planes, first + block);
	fill(p[0], first, end);
	fill(p[1], first, end);
	first = first < 1 ? 1 : first;
	end = end > planes - 1 ? planes - 1 : end;
	struct coefficients own = coefficients(first, first < end ? end : first);
	start_clock();
	for (int i = 0; i < rounds; i++) {
		float *now = p[i % 2];
		if (first < end) {
			prefetch(now + begin_of(first - 1), rows * columns * sizeof(float));
			prefetch(now + begin_of(end), rows * columns * sizeof(float));
		}
		sums[node] = round_of(&own, now, p[(i + 1) % 2], first, end);
		barrier();
	}
	stop_clock();
	print_totals();
	int is_right = 1;
	if (node == 0) {
		struct coefficients all = coefficients(1, planes - 1);
		float *expected[2] = { calloc(1, bytes), calloc(1, bytes) };
		double sum = 0, total = 0;
		fill(expected[0], 0, planes);
		fill(expected[1], 0, planes);
		for (int i = 0; i < rounds; i++)
			sum = round_of(&all, expected[i % 2], expected[(i + 1) % 2], 1, planes - 1);
		for (int i = 0; i < nodes; i++)
			total += sums[i];
		is_right = memcmp(expected[rounds % 2], p[rounds % 2], bytes) == 0 &&
			   fabs(total - sum) <= 1e-9 * sum;
	}
	return finish("Himeno stencil", is_right);
}
