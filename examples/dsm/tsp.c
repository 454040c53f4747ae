/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The travelling salesman by branch and bound: a shared queue of beginnings of tours and the length
 * of the best tour, each under a lock.
 *
 *    ./tsp [CITIES]
 */
#include "example.h"
#include <limits.h>

enum { CITIES_MAX = 14, QUEUE_LOCK = 1, BEST_LOCK = 2 };

struct job {
	int next;
	int best;
};

static int cities, distance[CITIES_MAX][CITIES_MAX];
static struct job *job;

static int best_known(void)
{
	lock(BEST_LOCK);
	int best = job->best;
	unlock(BEST_LOCK);
	return best;
}

/* Returns the shortest tour that goes on from `at`, or `best` if none is shorter. */
static int search(unsigned visited, int at, int length, int best)
{
	if (length >= best)
		return best;
	if (visited == (1u << cities) - 1)
		return length + distance[at][0] < best ? length + distance[at][0] : best;
	for (int city = 1; city < cities; city++)
		if (!(visited >> city & 1))
			best = search(visited | 1u << city, city, length + distance[at][city], best);
	return best;
}

int main(int argc, char **argv)
{
	cities = argc > 1 ? atoi(argv[1]) : 10;
	if (cities < 4 || cities > CITIES_MAX)
		return fprintf(stderr, "CITIES: expected 4 to %d\n", CITIES_MAX), 1;
	for (int i = 0; i < cities; i++)
		for (int j = 0; j < cities; j++)
			distance[i][j] = distance[j][i] =
				i == j ? 0 : 10 + (i * 37 + j * 91 + i * j * 13) % 83;
	join_job();
	job = shared(sizeof *job, KUMI_DSM_ON, 0);
	if (node == 0)
		job->best = INT_MAX;
	start_clock();
	/* A beginning is a pair of cities behind the first one. */
	int pairs = (cities - 1) * (cities - 1), tours = 0;
	for (;;) {
		lock(QUEUE_LOCK);
		int mine = job->next++;
		unlock(QUEUE_LOCK);
		if (mine >= pairs)
			break;
		int first = 1 + mine / (cities - 1), second = 1 + mine % (cities - 1);
		if (first == second)
			continue;
		int length = distance[0][first] + distance[first][second];
		int found = search(1u | 1u << first | 1u << second, second, length, best_known());
		lock(BEST_LOCK);
		if (found < job->best)
			job->best = found;
		unlock(BEST_LOCK);
		tours++;
	}
	stop_clock();
	print_totals();
	int is_right = node != 0 || job->best == search(1, 0, 0, INT_MAX);
	return finish("travelling salesman", is_right);
}
