/*
 * Times of OpenSHMEM, with the interface of its version 1.4, which all libraries have.
 *
 *   oshrun -n 2 shmem one-sided QUICK SIZE_BYTES...
 *   oshrun -n N shmem collective QUICK SIZE_BYTES...
 *
 * One-sided, PE 0 prints medians of a put that is completed, of a get, and for 8 bytes of an atomic
 * addition that returns the value of before, and the goodput of puts of which many are in flight.
 * Collective, it prints medians of an all-to-all with this many bytes for each pair, and for size 0
 * of a barrier. Sizes are multiples of 8. The data is checked.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS_MAX 2000
#define ROUNDS_MIN 10
#define BYTES (8 << 20)
#define WINDOW_BYTES (1 << 20)
#define WINDOW_MAX 256
#define TIME_MAX_US 1e6

static long sync_words[SHMEM_ALLTOALL_SYNC_SIZE];
static double times_us[ROUNDS_MAX];
static int me, pes, quick;

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median_us(int rounds)
{
	qsort(times_us, rounds, sizeof *times_us, by_time);
	return times_us[rounds / 2];
}

static int rounds_of(long bytes)
{
	long rounds = bytes == 0 ? ROUNDS_MAX : BYTES / bytes;

	rounds = rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
	return quick && rounds > 5 * ROUNDS_MIN ? rounds / 5 : rounds;
}

static void fail(const char *what)
{
	fprintf(stderr, "PE %d: %s is wrong\n", me, what);
	shmem_global_exit(1);
}

/* Whether another round follows: a slow library gets fewer. */
static int goes_on(int round, int rounds, double start_us)
{
	return round < rounds && (round < ROUNDS_MIN || now_us() - start_us < TIME_MAX_US);
}

static double put_us(char *to, const char *from, long bytes, int rounds)
{
	double start = now_us();
	int round = 0;

	for (; goes_on(round, rounds, start); round++) {
		double began = now_us();

		shmem_putmem(to, from, bytes, 1);
		shmem_quiet();
		times_us[round] = now_us() - began;
	}
	return median_us(round);
}

static double get_us(char *to, const char *from, long bytes, int rounds)
{
	double start = now_us();
	int round = 0;

	for (; goes_on(round, rounds, start); round++) {
		double began = now_us();

		shmem_getmem(to, from, bytes, 1);
		times_us[round] = now_us() - began;
	}
	return median_us(round);
}

static double goodput_bps(char *to, const char *from, long bytes, int rounds)
{
	int window = WINDOW_BYTES / bytes;

	window = window < 1 ? 1 : window > WINDOW_MAX ? WINDOW_MAX : window;
	rounds = rounds / window + ROUNDS_MIN;
	double start = now_us();
	int round = 0;

	for (; goes_on(round, rounds, start); round++) {
		double began = now_us();

		for (int i = 0; i < window; i++)
			shmem_putmem_nbi(to, from, bytes, 1);
		shmem_quiet();
		times_us[round] = now_us() - began;
	}
	return bytes * window * 8 / (median_us(round) / 1e6);
}

static double atomic_us(long *word, int rounds)
{
	double start = now_us();
	int round = 0;

	for (; goes_on(round, rounds, start); round++) {
		double began = now_us();

		if (shmem_long_atomic_fetch_add(word, 3, 1) != 3l * round)
			fail("an atomic addition");
		times_us[round] = now_us() - began;
	}
	return median_us(round);
}

static void one_sided(long bytes)
{
	char *memory = shmem_malloc(bytes), *own = malloc(bytes);
	long *word = shmem_malloc(sizeof *word);
	int rounds = rounds_of(bytes);

	memset(own, 5, bytes);
	memset(memory, 0, bytes);
	*word = 0;
	shmem_barrier_all();
	if (me == 0) {
		printf("{\"size_bytes\": %ld, \"put_median_us\": %f", bytes,
		       put_us(memory, own, bytes, rounds));
		printf(", \"goodput_bps\": %f", goodput_bps(memory, own, bytes, rounds));
		memset(own, 0, bytes);
		printf(", \"get_median_us\": %f", get_us(own, memory, bytes, rounds));
		for (long i = 0; i < bytes; i++)
			if (own[i] != 5)
				fail("a get");
		if (bytes == 8)
			printf(", \"fetch_add_median_us\": %f", atomic_us(word, rounds));
		printf(", \"rounds\": %d}\n", rounds);
		fflush(stdout);
	}
	shmem_barrier_all();
	shmem_free(word);
	shmem_free(memory);
	free(own);
}

static void collective(long bytes)
{
	long count = bytes / 8 + 1, *from = shmem_malloc(pes * count * 8),
	     *to = shmem_malloc(pes * count * 8);
	int rounds = rounds_of(bytes * pes);
	char *name = bytes == 0 ? "barrier" : "alltoall";

	for (long i = 0; i < pes * count; i++)
		from[i] = me * 1000 + i;
	for (int round = 0; round < rounds; round++) {
		shmem_barrier_all();
		double began = now_us();

		if (bytes == 0)
			shmem_barrier_all();
		else
			shmem_alltoall64(to, from, bytes / 8, 0, 0, pes, sync_words);
		times_us[round] = now_us() - began;
	}
	for (long i = 0; bytes > 0 && i < pes * (bytes / 8); i++)
		if (to[i] != i / (bytes / 8) * 1000 + me * (bytes / 8) + i % (bytes / 8))
			fail("an all-to-all");
	if (me == 0) {
		printf("{\"size_bytes\": %ld, \"%s_median_us\": %f, \"rounds\": %d}\n", bytes, name,
		       median_us(rounds), rounds);
		fflush(stdout);
	}
	shmem_barrier_all();
	shmem_free(to);
	shmem_free(from);
}

int main(int argc, char **argv)
{
	for (int i = 0; i < SHMEM_ALLTOALL_SYNC_SIZE; i++)
		sync_words[i] = SHMEM_SYNC_VALUE;
	shmem_init();
	me = shmem_my_pe();
	pes = shmem_n_pes();
	quick = argc > 2 && atoi(argv[2]);
	for (int i = 3; i < argc; i++)
		if (strcmp(argv[1], "collective") == 0)
			collective(atol(argv[i]));
		else
			one_sided(atol(argv[i]));
	shmem_finalize();
	return 0;
}
