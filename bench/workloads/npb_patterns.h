/*
 * Messages of the NAS Parallel Benchmarks (NPB 2.3, MPI) in an iteration, for mpi_npb.c: receivers,
 * sizes, MPI calls and their order. Sleeps between them stand for the computation.
 *
 * The table is for class B and 16 ranks, as mpi_npb --describe 1 prints it. An iteration is that of
 * NPB. Messages, MB (10^6 bytes) and computation are per rank and iteration, on average. MB across
 * are the bytes of all ranks from the first eight ranks to the others. The computation is that of
 * the GridMPI paper's standard TCP (mpi_npb.c).
 *
 *      grid         iterations  messages     MB  MB across  computation s
 *  BT  4 x 4 ranks         200        24   2.64       7.04          1.046
 *  CG  4 x 4                75       184  11.70      15.60          1.973
 *  EP  -                  1024         0   0.00       0.00          0.026
 *  FT  16 slabs             20      15.9  31.46     134.22          1.585
 *  IS  16                   10        34   7.88      33.59          0.854
 *  LU  4 x 4               250       303   0.92       1.23          0.422
 *  MG  2 x 2 x 4            20       133   2.16       4.40          0.550
 *  SP  4 x 4               400        24   2.38       6.34          0.710
 *
 *  BT SP  A rank has 4 cells of 26^3 along a diagonal. copy_faces sends two layers of 5 variables
 *         of 3 cells to each of 6 neighbours. Along x, y and z, 3 messages go forward and 3 back,
 *         each after the one before. In BT all messages have 26^2 x (30 forward, 5 back)
 *         doubles. In SP a message has the cell's inner face x (22 forward, 10 back) doubles.
 *  CG     25 inner iterations. Each has a sum over the row in 2 exchanges of n/4 doubles. Each also
 *         has one exchange with the transposed rank, and two dot products of 2 exchanges of one
 *         double.
 *  EP     3 MPI_Allreduce (1, 1 and 10 doubles) at the end. NPB counts one iteration. Here an
 *         iteration is a batch of 2^16 pairs.
 *  FT     MPI_Alltoall of the array, MPI_Reduce of a checksum. One more MPI_Alltoall at the start.
 *  IS     MPI_Allreduce of bucket sizes, MPI_Alltoall of counts, MPI_Alltoallv of the keys. NPB
 *         balances the buckets, so here each rank sends the same number of keys to each other rank.
 *  LU     A wavefront up and one down the 100 inner planes. In each plane, two neighbours get 5
 *         doubles per boundary point (1 kB). Then exchange_3 sends two layers of all planes in 4
 *         directions. At the end 2 MPI_Allreduce of 5 doubles.
 *  MG     23 times comm3, which sends a face to each of 6 neighbours, axis after axis: three times
 *         on levels 8 .. 2, and twice on level 1. On level 1 half of the ranks have no point. Once
 *         a message goes to those ranks. At the start and the end 2 MPI_Allreduce of a double.
 *
 * npb_traces.json has what NPB 3.4.3 sent in classes S, W and A (npb_trace.c), and a test compares.
 * Class W of MG is that of NPB 3: 128^3 points.
 *
 * A collective counts as the messages of its simplest algorithm: n - 1 for an all-to-all, log2(n)
 * for an MPI_Allreduce, one for an MPI_Reduce.
 */
#ifndef NPB_PATTERNS
#define NPB_PATTERNS
#define _POSIX_C_SOURCE 200809L /* clock_nanosleep */
#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <time.h>

#define PAPER_RANKS 16
#define SLEEP_MIN_S 100e-6 /* shorter computations accumulate: a sleep ends about 60 us late */
#define SLOT_COUNT 6       /* messages in flight to a rank at once */
#define LOG2(x) (31 - __builtin_clz(x))

/*
 * Size of a problem. n is its edge. For CG it is the order, for EP log2 of the pairs, and for IS
 * log2 of the keys.
 */
struct problem {
	int n, ny, nz, iterations; /* ny: for CG NPB's NONZER, for IS the number of buckets */
};

/* State of one rank. With is_plan, messages are only counted. */
static struct {
	int rank, ranks, side; /* side: edge of a square of ranks */
	int is_plan;
	struct problem problem;
	double compute_s; /* computation of an iteration */
	double due_s, slept_s;
	long long messages, bytes, across_bytes;
	size_t slot_bytes, whole_bytes; /* largest message; largest buffer of a collective */
} me;

static char *out, *in;
static MPI_Request requests[2 * SLOT_COUNT];
static MPI_Status statuses[2 * SLOT_COUNT];
static int request_count;

/* ---- Computing and sending ---- */

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Sleeps for the computation. A late wake-up shortens the next sleep, so that no rank drifts. */
static void compute(double time_s)
{
	me.due_s += time_s;
	if (me.is_plan || me.due_s < SLEEP_MIN_S)
		return;
	double begin = now_s(), end = begin + me.due_s;
	struct timespec deadline = { .tv_sec = (time_t)end, .tv_nsec = (long)((end - (time_t)end) * 1e9) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
		continue;
	double slept_s = now_s() - begin;

	me.due_s -= slept_s;
	me.slept_s += slept_s;
}

static void count(int to, size_t bytes)
{
	me.messages++;
	me.bytes += bytes;
	if (me.rank < me.ranks / 2 && to >= me.ranks / 2)
		me.across_bytes += bytes;
	if (bytes > me.slot_bytes)
		me.slot_bytes = bytes;
}

static void post_receive(int from, size_t bytes, int tag)
{
	if (me.is_plan)
		return;
	MPI_Irecv(in + request_count * me.slot_bytes, (int)bytes, MPI_CHAR, from, tag, MPI_COMM_WORLD,
		  &requests[request_count]);
	request_count++;
}

static void wait_all(void)
{
	MPI_Waitall(request_count, requests, statuses);
	request_count = 0;
}

static void send_now(int to, size_t bytes, int tag)
{
	count(to, bytes);
	if (!me.is_plan)
		MPI_Send(out, (int)bytes, MPI_CHAR, to, tag, MPI_COMM_WORLD);
}

static void post_send(int to, size_t bytes, int tag)
{
	count(to, bytes);
	if (!me.is_plan)
		MPI_Isend(out, (int)bytes, MPI_CHAR, to, tag, MPI_COMM_WORLD, &requests[request_count++]);
}

/* Exchanges messages with a peer as CG does: MPI_Irecv, MPI_Send, MPI_Wait. */
static void exchange(int peer, size_t bytes, int tag)
{
	post_receive(peer, bytes, tag);
	send_now(peer, bytes, tag);
	wait_all();
}

static void all_reduce(int elements, MPI_Datatype type)
{
	int element_bytes;

	MPI_Type_size(type, &element_bytes);
	for (int bit = 1; bit < me.ranks; bit *= 2)
		count(me.rank ^ bit, (size_t)elements * element_bytes);
	if (!me.is_plan)
		MPI_Allreduce(out, in, elements, type, MPI_SUM, MPI_COMM_WORLD);
}

static void count_all_to_all(size_t bytes)
{
	for (int peer = 0; peer < me.ranks; peer++)
		if (peer != me.rank)
			count(peer, bytes);
	if (bytes * me.ranks > me.whole_bytes)
		me.whole_bytes = bytes * me.ranks;
}

static int part(int whole, int parts, int index)
{
	return whole / parts + (index < whole % parts);
}

/* ---- BT and SP: cells along a diagonal of a side x side x side cube ---- */

/* Returns the coordinate along an axis of the rank's cell in a layer of z. */
static int cell_coordinate(int axis, int layer)
{
	int side = me.side, x = me.rank % side, y = me.rank / side;

	return axis == 0 ? (x + layer) % side : axis == 1 ? (y - layer + side) % side : layer;
}

/* Returns the rank that has the neighbours of all of this rank's cells. Along z it is diagonal. */
static int cell_neighbour(int axis, int step)
{
	int side = me.side, x = me.rank % side, y = me.rank / side;
	int dx = axis == 0 ? step : axis == 2 ? -step : 0, dy = axis == 0 ? 0 : step;

	return (x + dx + side) % side + side * ((y + dy + side) % side);
}

/* Returns the points of a cell's face across `axis`; if `is_inner`, without the cube's surface. */
static size_t cell_face(int axis, int layer, int is_inner)
{
	size_t points = 1;

	for (int other = 0; other < 3; other++) {
		int at = cell_coordinate(other, layer);

		if (other != axis)
			points *= part(me.problem.n, me.side, at) -
				  (is_inner ? (at == 0) + (at == me.side - 1) : 0);
	}
	return points;
}

static void copy_faces(void)
{
	for (int is_send = 0; is_send < 2; is_send++)
		for (int axis = 0; axis < 3; axis++)
			for (int up = 1; up >= 0; up--) {
				int peer = cell_neighbour(axis, up ? 1 : -1), edge = up ? me.side - 1 : 0;
				size_t bytes = 0;

				for (int layer = 0; layer < me.side; layer++)
					if (cell_coordinate(axis, layer) != edge)
						bytes += cell_face(axis, layer, 0) * 2 * 5 * sizeof(double);
				if (is_send)
					post_send(peer, bytes, 2 * axis + up);
				else
					post_receive(peer, bytes, 2 * axis + !up);
			}
	wait_all();
}

/*
 * Sweeps along an axis from cell to cell, forward (elimination) and then back (substitution).
 * forward_s and back_s are the computation of a cell. The next stage waits for a stage's send
 * together with its own receive.
 */
static void sweep(int axis, int is_sp, double forward_s, double back_s)
{
	size_t edge = me.problem.n / me.side + 1; /* of the largest cell: BT sends only this size */

	for (int is_back = 0; is_back < 2; is_back++) {
		int from = cell_neighbour(axis, is_back ? 1 : -1),
		    to = cell_neighbour(axis, is_back ? -1 : 1);

		for (int at = 0; at < me.side; at++) {
			int stage = is_back ? me.side - 1 - at : at, layer = 0;

			while (cell_coordinate(axis, layer) != stage)
				layer++;
			size_t doubles = is_sp ? cell_face(axis, layer, 1) * (is_back ? 10 : 22)
					       : edge * edge * (is_back ? 5 : 30);

			if (at > 0)
				post_receive(from, doubles * sizeof(double), 10 + is_back);
			wait_all();
			compute(is_back ? back_s : forward_s);
			if (at < me.side - 1)
				post_send(to, doubles * sizeof(double), 10 + is_back);
		}
	}
}

/* The right-hand side takes a quarter of the computation, and each sweep another quarter. */
static void iterate_multipartition(int is_sp, double forward_share)
{
	double cell_s = me.compute_s / 4 / me.side;

	copy_faces();
	compute(me.compute_s / 4);
	for (int axis = 0; axis < 3; axis++)
		sweep(axis, is_sp, cell_s * forward_share, cell_s * (1 - forward_share));
}

static void iterate_bt(void)
{
	iterate_multipartition(0, 0.9); /* elimination of 5 x 5 blocks is most of the work */
}

static void iterate_sp(void)
{
	iterate_multipartition(1, 0.6);
}

/* ---- CG: a sparse matrix on a square of ranks; each row of ranks is on one site ---- */

#define CG_INNER 25

static void sum_over_row(int doubles, int is_rising)
{
	int steps = LOG2(me.side), row = me.rank / me.side * me.side;

	for (int step = 0; step < steps; step++) {
		int bit = me.side >> (1 + (is_rising ? steps - 1 - step : step));

		exchange(row + ((me.rank - row) ^ bit), doubles * sizeof(double), step);
	}
}

static void multiply_matrix(void)
{
	int doubles = part(me.problem.n, me.side, me.rank / me.side);

	compute(me.compute_s / (CG_INNER + 1));
	sum_over_row(doubles, 1);
	/* A rank on the diagonal sends to itself, as in the benchmark. */
	exchange(me.rank % me.side * me.side + me.rank / me.side, doubles * sizeof(double), 9);
}

static void iterate_cg(void)
{
	sum_over_row(1, 0);
	for (int inner = 0; inner < CG_INNER; inner++) {
		multiply_matrix();
		sum_over_row(1, 0);
		sum_over_row(1, 0);
	}
	multiply_matrix();
	sum_over_row(1, 0);
	sum_over_row(2, 0);
}

/* ---- EP, FT, IS: collectives ---- */

static void iterate_ep(void)
{
	compute(me.compute_s);
}

static void finish_ep(void)
{
	all_reduce(1, MPI_DOUBLE);
	all_reduce(1, MPI_DOUBLE);
	all_reduce(10, MPI_DOUBLE);
}

static void transpose(void)
{
	double points = (double)me.problem.n * me.problem.ny * me.problem.nz;
	int pair = (int)(points / me.ranks / me.ranks);

	compute(me.compute_s / 2);
	count_all_to_all(pair * 2 * sizeof(double));
	if (!me.is_plan)
		MPI_Alltoall(out, 2 * pair, MPI_DOUBLE, in, 2 * pair, MPI_DOUBLE, MPI_COMM_WORLD);
	compute(me.compute_s / 2);
}

static void iterate_ft(void)
{
	transpose();
	if (me.rank)
		count(0, 2 * sizeof(double));
	if (!me.is_plan)
		MPI_Reduce(out, in, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void iterate_is(void)
{
	static int counts[64], displacements[64];
	int pair = (1 << me.problem.n) / me.ranks / me.ranks;

	compute(me.compute_s / 2);
	all_reduce(me.problem.ny + 5, MPI_INT); /* buckets, and 5 test keys */
	count_all_to_all(sizeof(int));
	count_all_to_all(pair * sizeof(int));
	if (!me.is_plan) {
		for (int peer = 0; peer < me.ranks; peer++) {
			counts[peer] = pair;
			displacements[peer] = peer * pair;
		}
		MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
		MPI_Alltoallv(out, counts, displacements, MPI_INT, in, counts, displacements, MPI_INT,
			      MPI_COMM_WORLD);
	}
	compute(me.compute_s / 2);
}

/* ---- LU: a wavefront over columns of a square of ranks ---- */

/* Ranks are numbered from north to south in a column, and columns from west to east. */
enum { NORTH, SOUTH, WEST, EAST };

static int lu_neighbour(int direction)
{
	int step = direction % 2 ? 1 : -1, is_column = direction >= WEST;
	int at = is_column ? me.rank / me.side : me.rank % me.side;

	if (at + step < 0 || at + step >= me.side)
		return MPI_PROC_NULL;
	return me.rank + step * (is_column ? me.side : 1);
}

/* Returns the points on the border with a neighbour; if `is_inner`, without the cube's surface. */
static int lu_border(int direction, int is_inner)
{
	int at = direction >= WEST ? me.rank % me.side : me.rank / me.side;

	return part(me.problem.n, me.side, at) - (is_inner ? (at == 0) + (at == me.side - 1) : 0);
}

static void wavefront(int is_up, double plane_s)
{
	for (int plane = 1; plane < me.problem.n - 1; plane++)
		for (int step = 0; step < 4; step++) { /* N and W, or S and E; then the other two */
			int is_send = step >= 2, direction = 2 * (step % 2) + (is_up != is_send);
			int peer = lu_neighbour(direction);
			size_t bytes = 5 * lu_border(direction, 1) * sizeof(double);

			if (step == 2)
				compute(plane_s);
			if (peer != MPI_PROC_NULL && is_send)
				send_now(peer, bytes, step % 2);
			else if (peer != MPI_PROC_NULL && !me.is_plan)
				MPI_Recv(in, (int)bytes, MPI_CHAR, peer, step % 2, MPI_COMM_WORLD,
					 MPI_STATUS_IGNORE);
		}
}

static void shift_layers(int from_side, int to_side)
{
	int from = lu_neighbour(from_side), to = lu_neighbour(to_side);
	size_t bytes = (size_t)10 * lu_border(from_side, 0) * me.problem.n * sizeof(double);

	if (from != MPI_PROC_NULL)
		post_receive(from, bytes, 2);
	if (to != MPI_PROC_NULL)
		send_now(to, bytes, 2);
	wait_all();
}

/* The right-hand side takes a third of the computation, and the planes take the rest. */
static void iterate_lu(void)
{
	double plane_s = me.compute_s / 3 / (me.problem.n - 2);

	wavefront(0, plane_s);
	wavefront(1, plane_s);
	shift_layers(NORTH, SOUTH);
	shift_layers(SOUTH, NORTH);
	compute(me.compute_s / 6);
	shift_layers(WEST, EAST);
	shift_layers(EAST, WEST);
	compute(me.compute_s / 6);
}

static void finish_lu(void)
{
	all_reduce(5, MPI_DOUBLE);
	all_reduce(5, MPI_DOUBLE);
}

/* ---- MG: halos of a cube on every level of a V-cycle ---- */

static int mg_ranks(int axis)
{
	int log2 = LOG2(me.ranks), x = log2 / 3, y = (log2 - x) / 2;

	return 1 << (axis == 0 ? x : axis == 1 ? y : log2 - x - y);
}

static int mg_place(int axis)
{
	int x = mg_ranks(0), y = mg_ranks(1);

	return axis == 0 ? me.rank % x : axis == 1 ? me.rank / x % y : me.rank / (x * y);
}

/* Returns the rank's points along an axis on a level with edge 2^level; 0 on some coarse levels. */
static int mg_points(int axis, int level)
{
	int ranks = mg_ranks(axis), place = mg_place(axis);

	return ((place + 1) << level) / ranks - (place << level) / ranks;
}

static int mg_neighbour(int axis, int step, int level)
{
	int ranks = mg_ranks(axis), stride = axis == 0   ? 1
					     : axis == 1 ? mg_ranks(0)
							 : mg_ranks(0) * mg_ranks(1);
	int far = ranks >> level > 1 ? ranks >> level : 1; /* skips ranks without points */
	int place = (mg_place(axis) + step * far + ranks) % ranks;

	return me.rank + (place - mg_place(axis)) * stride;
}

/*
 * Returns the size of a face, with the halo of the axes that were exchanged before. If `is_whole`,
 * with the halo of both axes.
 */
static size_t mg_face_bytes(int axis, int level, int is_whole)
{
	size_t bytes = sizeof(double);

	for (int other = 0; other < 3; other++)
		if (other != axis)
			bytes *= mg_points(other, level) + (other < axis || is_whole ? 2 : 0);
	return bytes;
}

static void comm3(int level)
{
	if (!mg_points(0, level) || !mg_points(1, level) || !mg_points(2, level))
		return;
	for (int axis = 0; axis < 3; axis++) {
		size_t bytes = mg_face_bytes(axis, level, 0);

		post_receive(mg_neighbour(axis, 1, level), bytes, 2 * axis);
		post_receive(mg_neighbour(axis, -1, level), bytes, 2 * axis + 1);
		send_now(mg_neighbour(axis, 1, level), bytes, 2 * axis + 1);
		send_now(mg_neighbour(axis, -1, level), bytes, 2 * axis);
		wait_all();
	}
}

/* After interpolation to `level`, sends to the ranks that had no point on the coarser level. */
static void comm3_ex(int level)
{
	for (int axis = 0; axis < 3; axis++) {
		size_t bytes = mg_face_bytes(axis, level, 1);
		int up = mg_neighbour(axis, 1, level), down = mg_neighbour(axis, -1, level);

		if (1 << (level - 1) >= mg_ranks(axis))
			continue;
		if (mg_points(axis, level - 1)) {
			send_now(up, 2 * bytes, 7);
			send_now(down, bytes, 6);
		} else {
			post_receive(up, bytes, 6);
			post_receive(down, 2 * bytes, 7);
			wait_all();
		}
	}
}

/*
 * Computes in proportion to the points of a level: per V-cycle 3 * 8^level, and 2 * 8 on level 1.
 * Then exchanges its faces.
 */
static void mg_smooth(int level)
{
	int top = LOG2(me.problem.n);
	double sum = 0;

	for (int k = top; k >= 1; k--)
		sum += (k == 1 ? 2.0 : 3.0) / (1LL << 3 * (top - k));
	compute(me.compute_s / sum / (1LL << 3 * (top - level)));
	comm3(level);
}

static void iterate_mg(void)
{
	int top = LOG2(me.problem.n);

	for (int level = top - 1; level >= 1; level--)
		mg_smooth(level); /* rprj3 */
	mg_smooth(1);             /* psinv */
	for (int level = 2; level <= top; level++) {
		comm3_ex(level);  /* interp */
		mg_smooth(level); /* resid */
		mg_smooth(level); /* psinv */
	}
	mg_smooth(top); /* resid */
}

static void norm_mg(void)
{
	all_reduce(1, MPI_DOUBLE);
	all_reduce(1, MPI_DOUBLE);
}

static void start_mg(void)
{
	comm3(LOG2(me.problem.n));
	norm_mg();
}

#endif /* NPB_PATTERNS */
