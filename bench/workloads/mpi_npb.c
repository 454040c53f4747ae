/*
 * The communication of the NAS Parallel Benchmarks (NPB 2.3, MPI), with sleep instead of
 * computation. The setting is that of GridMPI §4.5: 16 ranks and class B, with the lower half of
 * the ranks on one site and the upper half on another.
 *
 *   mpirun -np 16 mpi_npb BENCHMARK [CLASS] [--iterations N] [--warmup N] [--compute-scale F]
 *                         [--best 1] [--describe 1]
 *
 * BENCHMARK is BT CG EP FT IS LU MG or SP. CLASS is S W A or B (default B). There are 4 or 16
 * ranks. The default of --iterations is the class's own number. The iterations before them
 * (--warmup, default 1) are not timed. Rank 0 prints one JSON object. Its times are the longest
 * over the ranks, and communication_s is the time in which a rank did not sleep. Messages and bytes
 * are totals of all ranks. --describe 1 prints the figures of an iteration of 16 ranks, and of what
 * is sent outside the iterations, and runs nothing. npb_patterns.h lists the messages, and those
 * figures for class B.
 *
 * Computation of an iteration:
 *
 *    compute_s = max(0, run_s / iterations - ideal_s)
 *    run_s     = operations / (Mop/s of all 16 ranks * 10^6)
 *    ideal_s   = crossings * 10 ms + max(bytes across / 500 Mb/s, node's bytes / 1 Gb/s)
 *
 * The operations are those of NPB's formula, and the Mop/s those of GridMPI, table 2, for class B.
 * ideal_s is the least time of an iteration's messages on the paper's network, with 10 ms one way.
 * The node is the busiest one. FT counts its start as one more iteration. Other classes compute at
 * the same operations per second. run_s also contains stalls, so compute_s is more than the
 * computation of the paper's nodes. --best 1 takes the highest Mop/s in the table's row instead of
 * that of standard TCP. --compute-scale multiplies compute_s.
 *
 * Serial crossings of an iteration:
 *
 *    BT SP  8   in y and z, forward and back, two of three hops are between the sites; the hops of
 *               copy_faces overlap
 *    CG    26   the transposes
 *    FT     2   the calls
 *    IS     3   the calls
 *    LU     4   a wavefront up and one down, exchange_3 in both directions
 *    MG    24   each comm3 along z
 *    EP     0
 */
#ifndef NPB_PATTERNS /* the bench may compile both files as one text */
#include "npb_patterns.h"
#endif
#include <stdio.h>
#include <string.h>

#define DELAY_S 10e-3         /* one way, GridMPI §2.2.1 */
#define ACROSS_BYTES_S 62.5e6 /* 500 Mb/s */
#define NODE_BYTES_S 125e6    /* 1 Gb/s */

enum class { S, W, A, B, CLASS_COUNT };

struct benchmark {
	const char *name;
	struct problem problems[CLASS_COUNT];
	double mops_std, mops_best; /* GridMPI, table 2 */
	int crossings;              /* serial crossings of an iteration */
	int start_iterations;       /* computation of the start, in iterations */
	double (*operations)(void); /* operations of the whole run, by NPB's formula */
	void (*start)(void), (*iterate)(void), (*finish)(void);
};

/*
 * Returns the operations of a run on a cube's points, by NPB's formula with these coefficients. The
 * functions below apply NPB's formulas too.
 */
static double operations_of_cube(double cubed, double squared, double linear, double constant)
{
	double n = me.problem.n;

	return me.problem.iterations * (((cubed * n + squared) * n + linear) * n + constant);
}

static double operations_bt(void)
{
	return operations_of_cube(3478.8, -17655.7, 28023.7, 0);
}

static double operations_sp(void)
{
	return operations_of_cube(881.174, -4683.91, 11484.5, -19272.4);
}

static double operations_lu(void)
{
	return operations_of_cube(1984.77, -10923.3, 27770.9, -144010);
}

static double operations_mg(void)
{
	return operations_of_cube(58, 0, 0, 0);
}

static double operations_cg(void)
{
	double nonzeros = me.problem.ny * (me.problem.ny + 1.0); /* ny: NPB's NONZER */

	return 2.0 * me.problem.iterations * me.problem.n * (3 + nonzeros + CG_INNER * (5 + nonzeros) + 3);
}

static double operations_ep(void)
{
	return 2.0 * me.problem.iterations * PAPER_RANKS * 65536;
}

static double operations_ft(void)
{
	double points = (double)me.problem.n * me.problem.ny * me.problem.nz, logarithm = 0;

	for (double left = points; left > 1.5; left /= 2)
		logarithm += 0.69314718055994531; /* the sizes are powers of two */
	return points *
	       (14.8157 + 7.19641 * logarithm + (5.23518 + 7.21113 * logarithm) * me.problem.iterations);
}

static double operations_is(void)
{
	return (double)me.problem.iterations * (1 << me.problem.n);
}

static const struct benchmark BENCHMARKS[] = {
	{ "BT",
	  { { 12, 0, 0, 60 }, { 24, 0, 0, 200 }, { 64, 0, 0, 200 }, { 102, 0, 0, 200 } },
	  2835.48,
	  3887.74,
	  8,
	  0,
	  operations_bt,
	  NULL,
	  iterate_bt,
	  NULL },
	{ "CG",
	  { { 1400, 7, 0, 15 }, { 7000, 8, 0, 15 }, { 14000, 11, 0, 15 }, { 75000, 13, 0, 75 } },
	  293.86,
	  372.48,
	  26,
	  0,
	  operations_cg,
	  NULL,
	  iterate_cg,
	  NULL },
	{ "EP",
	  { { 24, 0, 0, 16 }, { 25, 0, 0, 32 }, { 28, 0, 0, 256 }, { 30, 0, 0, 1024 } },
	  82.23,
	  82.23,
	  0,
	  0,
	  operations_ep,
	  NULL,
	  iterate_ep,
	  finish_ep },
	{ "FT",
	  { { 64, 64, 64, 6 }, { 128, 128, 32, 6 }, { 256, 256, 128, 6 }, { 512, 256, 256, 20 } },
	  1168.01,
	  1191.58,
	  2,
	  1,
	  operations_ft,
	  transpose,
	  iterate_ft,
	  NULL },
	{ "IS",
	  { { 16, 512, 0, 10 }, { 20, 1024, 0, 10 }, { 23, 1024, 0, 10 }, { 25, 1024, 0, 10 } },
	  23.61,
	  27.60,
	  3,
	  0,
	  operations_is,
	  NULL,
	  iterate_is,
	  NULL },
	{ "LU",
	  { { 12, 0, 0, 50 }, { 33, 0, 0, 300 }, { 64, 0, 0, 250 }, { 102, 0, 0, 250 } },
	  4143.90,
	  4198.00,
	  4,
	  0,
	  operations_lu,
	  NULL,
	  iterate_lu,
	  finish_lu },
	{ "MG",
	  { { 32, 0, 0, 4 }, { 128, 0, 0, 4 }, { 256, 0, 0, 4 }, { 256, 0, 0, 20 } },
	  1130.55,
	  1160.35,
	  24,
	  0,
	  operations_mg,
	  start_mg,
	  iterate_mg,
	  norm_mg },
	{ "SP",
	  { { 12, 0, 0, 100 }, { 36, 0, 0, 400 }, { 64, 0, 0, 400 }, { 102, 0, 0, 400 } },
	  995.72,
	  1368.42,
	  8,
	  0,
	  operations_sp,
	  NULL,
	  iterate_sp,
	  NULL },
};
#define BENCHMARK_COUNT (int)(sizeof(BENCHMARKS) / sizeof(BENCHMARKS[0]))

static const char CLASSES[] = "SWAB";

struct traffic {
	double messages, bytes; /* per rank, on average */
	double across_bytes;    /* from site to site */
};

/* Figures of an iteration, and the traffic at the start and at the end of a run. */
struct plan {
	struct traffic iteration, outside;
	double node_bytes; /* of the busiest rank */
	double ideal_s, compute_s;
};

static const struct benchmark *benchmark;
static enum class class = CLASS_COUNT;

static struct option {
	const char *name, *right;
	double least, most, value;
} options[] = {
	{ "--iterations", "a count from 1 to 1000000", 1, 1e6, 0 },
	{ "--warmup", "a count from 0 to 1000000", 0, 1e6, 1 },
	{ "--compute-scale", "a factor from 0 to 1000", 0, 1e3, 1 },
	{ "--best", "0 or 1", 0, 1, 0 },
	{ "--describe", "0 or 1", 0, 1, 0 },
};
enum { ITERATIONS, WARMUP, COMPUTE_SCALE, BEST, DESCRIBE, OPTION_COUNT };

static void become(int rank, int ranks)
{
	me.rank = rank;
	me.ranks = ranks;
	for (me.side = 1; me.side * me.side < ranks; me.side++)
		continue;
}

static void forget_counts(void)
{
	me.messages = me.bytes = me.across_bytes = 0;
	me.due_s = me.slept_s = 0;
}

/* Adds what the present rank has sent. */
static void add_counts(struct traffic *traffic)
{
	traffic->messages += (double)me.messages / me.ranks;
	traffic->bytes += (double)me.bytes / me.ranks;
	traffic->across_bytes += me.across_bytes;
}

/* Counts the messages of all ranks in an iteration, in the start and in the end. Sends nothing. */
static struct plan plan_messages(enum class of, int ranks)
{
	struct plan plan = { 0 };

	me.is_plan = 1;
	me.problem = benchmark->problems[of];
	me.slot_bytes = me.whole_bytes = 0;
	for (int rank = 0; rank < ranks; rank++) {
		become(rank, ranks);
		forget_counts();
		benchmark->iterate();
		plan.node_bytes = me.bytes > plan.node_bytes ? me.bytes : plan.node_bytes;
		add_counts(&plan.iteration);
		forget_counts();
		if (benchmark->start)
			benchmark->start();
		if (benchmark->finish)
			benchmark->finish();
		add_counts(&plan.outside);
	}
	me.is_plan = 0;
	double across_s = plan.iteration.across_bytes / ACROSS_BYTES_S,
	       node_s = plan.node_bytes / NODE_BYTES_S;

	plan.ideal_s = benchmark->crossings * DELAY_S + (across_s > node_s ? across_s : node_s);
	return plan;
}

/* Returns the figures for 16 ranks, with the computation, as explained at the top. */
static struct plan plan_paper(void)
{
	double mops = options[BEST].value > 0 ? benchmark->mops_best : benchmark->mops_std;
	struct plan paper = plan_messages(B, PAPER_RANKS);
	double operations = benchmark->operations(); /* of the problem above */
	double compute_s = operations / (mops * 1e6) -
			   paper.ideal_s * (me.problem.iterations + benchmark->start_iterations);
	struct plan plan = plan_messages(class, PAPER_RANKS);

	if (compute_s > 0)
		plan.compute_s = compute_s * benchmark->operations() / operations /
				 (me.problem.iterations + benchmark->start_iterations) *
				 options[COMPUTE_SCALE].value;
	return plan;
}

static void describe(const struct plan *plan)
{
	printf("{\"program\":\"npb\",\"benchmark\":\"%s\",\"class\":\"%c\",\"ranks\":%d,\"iterations\":%d,"
	       "\"messages_per_iteration\":%.2f,\"bytes_per_iteration\":%.0f,"
	       "\"across_bytes_per_iteration\":%.0f,\"messages_outside\":%.2f,"
	       "\"bytes_outside\":%.0f,\"across_bytes_outside\":%.0f,"
	       "\"ideal_communication_per_iteration_s\":%.6f,\"compute_per_iteration_s\":%.6f}\n",
	       benchmark->name, CLASSES[class], PAPER_RANKS, me.problem.iterations, plan->iteration.messages,
	       plan->iteration.bytes, plan->iteration.across_bytes, plan->outside.messages,
	       plan->outside.bytes, plan->outside.across_bytes, plan->ideal_s, plan->compute_s);
	fflush(stdout);
}

static void run(int iterations)
{
	for (int i = 0; i < (int)options[WARMUP].value; i++)
		benchmark->iterate();
	forget_counts();
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = MPI_Wtime();

	if (benchmark->start)
		benchmark->start();
	for (int i = 0; i < iterations; i++)
		benchmark->iterate();
	if (benchmark->finish)
		benchmark->finish();
	double total_s = MPI_Wtime() - begin;
	double times[3] = { total_s, me.slept_s, total_s - me.slept_s }, longest[3];
	long long counts[2] = { me.messages, me.bytes }, sums[2];

	MPI_Reduce(times, longest, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(counts, sums, 2, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (me.rank)
		return;
	printf("{\"program\":\"npb\",\"benchmark\":\"%s\",\"class\":\"%c\",\"ranks\":%d,\"iterations\":%d,"
	       "\"total_s\":%.6f,\"compute_s\":%.6f,\"communication_s\":%.6f,\"messages\":%lld,"
	       "\"bytes\":%lld}\n",
	       benchmark->name, CLASSES[class], me.ranks, iterations, longest[0], longest[1], longest[2],
	       sums[0], sums[1]);
	fflush(stdout);
}

static void reject(const char *name, const char *value, const char *right)
{
	int rank;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank == 0)
		fprintf(stderr, "mpi_npb: %s: got '%s', want %s\n", name, value ? value : "nothing", right);
	MPI_Finalize();
	exit(2);
}

static void read_args(int argc, char **argv)
{
	for (int at = 1; at < argc; at++) {
		const char *word = argv[at];
		struct option *option = options;
		char *end = NULL;

		if (!strncmp(word, "--", 2)) {
			while (option < options + OPTION_COUNT && strcmp(word, option->name))
				option++;
			if (option == options + OPTION_COUNT)
				reject("option", word,
				       "--iterations, --warmup, --compute-scale, --best or --describe");
			const char *value = ++at < argc ? argv[at] : NULL;

			option->value = value ? strtod(value, &end) : 0;
			if (!value || end == value || *end || !(option->value >= option->least) ||
			    option->value > option->most)
				reject(word, value, option->right);
		} else if (!benchmark) {
			for (int i = 0; i < BENCHMARK_COUNT; i++)
				if (!strcmp(word, BENCHMARKS[i].name))
					benchmark = &BENCHMARKS[i];
			if (!benchmark)
				reject("BENCHMARK", word, "BT, CG, EP, FT, IS, LU, MG or SP");
		} else {
			const char *letter = strlen(word) == 1 ? strchr(CLASSES, word[0]) : NULL;

			if (!letter || class != CLASS_COUNT)
				reject("CLASS", word, "one of S, W, A and B");
			class = (enum class)(letter - CLASSES);
		}
	}
	if (!benchmark)
		reject("BENCHMARK", NULL, "BT, CG, EP, FT, IS, LU, MG or SP");
	if (class == CLASS_COUNT)
		class = B;
}

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	read_args(argc, argv);
	struct plan paper = plan_paper();

	if (options[DESCRIBE].value > 0) {
		if (rank == 0)
			describe(&paper);
		MPI_Finalize();
		return 0;
	}
	if (ranks != 4 && ranks != PAPER_RANKS) {
		char got[16];

		snprintf(got, sizeof(got), "%d", ranks);
		reject("ranks", got, "4 or 16");
	}
	plan_messages(class, ranks);
	become(rank, ranks);
	me.compute_s = paper.compute_s;
	int iterations = (int)options[ITERATIONS].value;
	size_t room = me.slot_bytes * (SLOT_COUNT + 1);

	room = room > me.whole_bytes ? room : me.whole_bytes;
	out = calloc(room, 1); /* never written, so its pages take no memory */
	in = calloc(room, 1);
	if (!out || !in) {
		fprintf(stderr, "mpi_npb: no memory for 2 x %zu bytes: take a smaller CLASS\n", room);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	run(iterations ? iterations : me.problem.iterations);
	free(in);
	free(out);
	MPI_Finalize();
	return 0;
}
