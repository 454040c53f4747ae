/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls of the examples that end the process with the reason if they fail. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <kumi_dsm.h>
#include <stdio.h>
#include <stdlib.h>

static char error[512];
static struct kumi_dsm *dsm;
static int node, nodes;

static inline void check(int outcome)
{
	if (outcome != KUMI_DSM_DONE) {
		fprintf(stderr, "node %d: %s\n", node, error);
		exit(1);
	}
}

static inline void join_job(void)
{
	dsm = kumi_dsm_from_environment(NULL, error, sizeof error);
	check(dsm == NULL);
	node = kumi_dsm_node(dsm);
	nodes = kumi_dsm_nodes(dsm);
}

static inline void *shared(size_t bytes, int placement, unsigned parameter)
{
	void *memory = kumi_dsm_alloc(dsm, bytes, placement, parameter, error, sizeof error);
	check(memory == NULL);
	return memory;
}

static inline void barrier(void)
{
	check(kumi_dsm_barrier(dsm, error, sizeof error));
}

static inline void lock(unsigned number)
{
	check(kumi_dsm_lock(dsm, number, error, sizeof error));
}

static inline void unlock(unsigned number)
{
	check(kumi_dsm_unlock(dsm, number, error, sizeof error));
}

/* Returns the first of `count` items that belong to a node. */
static inline size_t first_of(size_t count, int which)
{
	return count * which / nodes;
}

/* Says on node 0 whether the result is right, and ends. */
static inline int finish(const char *what, int is_right)
{
	barrier();
	if (node == 0)
		printf("%s: %s\n", what, is_right ? "the sequential result" : "WRONG");
	kumi_dsm_free(dsm);
	return !is_right;
}

#endif
