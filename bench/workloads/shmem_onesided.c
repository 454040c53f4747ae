/*
 * Times of OpenSHMEM operations on processing element 1 for each message size: put with quiet, get,
 * and atomic fetch-add. PE 1 is inside the library meanwhile, so that it can progress.
 *
 *   oshrun -np 2 shmem_onesided TIME_MS SIZE_BYTES...
 *
 * PE 0 prints one JSON object per size, with the keys of `kumi workload wind-exchange`.
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS_MIN 20
#define ROUNDS_MAX 20000

static char *remote, *local;
static long *counter;
static double times[ROUNDS_MAX];

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void put(int bytes)
{
	shmem_putmem(remote, local, bytes, 1);
	shmem_quiet();
}

static void get(int bytes)
{
	shmem_getmem(local, remote, bytes, 1);
}

static void fetch_add(int bytes)
{
	(void)bytes;
	shmem_long_atomic_fetch_add(counter, 1, 1);
}

static void measure(const char *name, void (*once)(int), int bytes, double time_s)
{
	double end = 0;
	int rounds = 0, warm = 1;

	while (rounds < ROUNDS_MAX && (warm || rounds < ROUNDS_MIN || now_s() < end)) {
		double sent = now_s();

		once(bytes);
		times[rounds++] = now_s() - sent;
		if (warm && rounds == ROUNDS_MIN) {
			rounds = warm = 0;
			end = now_s() + time_s;
		}
	}
	qsort(times, rounds, sizeof(times[0]), by_time);
	printf(",\"%s_median_us\":%.3f,\"%s_p99_us\":%.3f", name, times[rounds / 2] * 1e6, name,
	       times[rounds * 99 / 100] * 1e6);
}

int main(int argc, char **argv)
{
	shmem_init();
	remote = shmem_calloc(1, 1 << 20);
	counter = shmem_calloc(1, sizeof(*counter));
	local = calloc(1, 1 << 20);
	shmem_barrier_all();
	for (int arg = 2; arg < argc && shmem_my_pe() == 0; arg++) {
		int bytes = atoi(argv[arg]);
		double time_s = atof(argv[1]) / 1e3;

		printf("{\"size_bytes\":%d", bytes);
		measure("put", put, bytes, time_s);
		measure("get", get, bytes, time_s);
		measure("fetch_add", fetch_add, bytes, time_s);
		printf("}\n");
		fflush(stdout);
	}
	shmem_barrier_all();
	shmem_finalize();
	return 0;
}
