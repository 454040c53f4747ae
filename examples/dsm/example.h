/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls of the examples that end the process with the reason if they fail. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <kumi_dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static char error[512];
static struct kumi_dsm *dsm;
static int node, nodes;
static double began, time_s;

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

/* Memory that all nodes have, and that is sent to all at a barrier. */
static inline void *updated(size_t bytes)
{
	void *memory = kumi_dsm_alloc_updated(dsm, bytes, error, sizeof error);
	check(memory == NULL);
	return memory;
}

static inline void barrier(void)
{
	check(kumi_dsm_barrier(dsm, error, sizeof error));
}

/* Gets the pages of some bytes together. */
static inline void prefetch(const void *at, size_t bytes)
{
	check(kumi_dsm_prefetch(dsm, at, bytes, error, sizeof error));
}

static inline void lock(unsigned number)
{
	check(kumi_dsm_lock(dsm, number, error, sizeof error));
}

static inline void unlock(unsigned number)
{
	check(kumi_dsm_unlock(dsm, number, error, sizeof error));
}

static inline double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The part between these two is timed. All nodes call both. */
static inline void start_clock(void)
{
	barrier();
	began = now();
}

static inline void stop_clock(void)
{
	barrier();
	time_s = now() - began;
}

/* Prints what this node did as JSON, if EXAMPLE_JSON is set. */
static inline void print_totals(void)
{
	static const char *names[] = { "misses",     "fetched_pages", "diffed_pages", "changed_bytes",
				       "diff_bytes", "pushed_bytes",  "barriers",     "locks",
				       "messages",   "message_bytes" };
	if (getenv("EXAMPLE_JSON") == NULL)
		return;
	printf("{\"node\": %d, \"time_s\": %f", node, time_s);
	for (int total = KUMI_DSM_MISSES; total <= KUMI_DSM_MESSAGE_BYTES; total++)
		printf(", \"%s\": %llu", names[total], (unsigned long long)kumi_dsm_total(dsm, total));
	printf("}\n");
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
	if (node == 0 && time_s > 0)
		printf("%.3f s on %d nodes\n", time_s, nodes);
	if (node == 0)
		printf("%s: %s\n", what, is_right ? "the sequential result" : "WRONG");
	kumi_dsm_free(dsm);
	return !is_right;
}

#endif
