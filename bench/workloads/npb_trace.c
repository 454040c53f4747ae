/*
 * Counts what a NAS Parallel Benchmark sends, to check npb_patterns.h against the real programs.
 *
 *   mpicc -shared -fPIC -O2 -o npb_trace.so npb_trace.c
 *   mpirun -np 16 -x LD_PRELOAD=./npb_trace.so cg.W.x
 *
 * Prints one JSON object at the end: messages and bytes per rank, and the bytes of all ranks from
 * the first half of the ranks to the others. A collective counts as the messages of its simplest
 * algorithm, as in npb_patterns.h. The benchmarks wait in a barrier before the timed part, so only
 * the busiest part between two barriers counts. For IS, it has one more iteration, which is not
 * timed. npb_traces.json is a list of these objects, with the iterations counted.
 *
 * Fortran programs call symbols of their own in Open MPI and MPICH, in lower case with an
 * underscore.
 */
#include <mpi.h>
#include <stdio.h>

#define PARTS_MAX 256

enum { MESSAGES, BYTES, ACROSS_BYTES, COUNTERS };

static double counters[PARTS_MAX][COUNTERS];
static int part_count = 1;

static void count(int to, double bytes)
{
	double *now = counters[part_count - 1];
	int rank, ranks;

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
	now[MESSAGES]++;
	now[BYTES] += bytes;
	if (rank < ranks / 2 && to >= ranks / 2)
		now[ACROSS_BYTES] += bytes;
}

static double bytes_of(int elements, MPI_Datatype type)
{
	int size;

	PMPI_Type_size(type, &size);
	return (double)elements * size;
}

/* Returns the rank in MPI_COMM_WORLD, or a negative value if nothing is sent. */
static int world_rank(int rank, MPI_Comm comm)
{
	MPI_Group group, world;
	int translated;

	if (rank == MPI_PROC_NULL)
		return -1;
	PMPI_Comm_group(comm, &group);
	PMPI_Comm_group(MPI_COMM_WORLD, &world);
	PMPI_Group_translate_ranks(group, 1, &rank, world, &translated);
	PMPI_Group_free(&group);
	PMPI_Group_free(&world);
	return translated;
}

static void count_send(int elements, MPI_Datatype type, int to, MPI_Comm comm)
{
	int rank = world_rank(to, comm);

	if (rank >= 0)
		count(rank, bytes_of(elements, type));
}

static void count_all_reduce(int elements, MPI_Datatype type)
{
	int rank, ranks;

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int bit = 1; bit < ranks; bit *= 2)
		count(rank ^ bit, bytes_of(elements, type));
}

static void count_reduce(int elements, MPI_Datatype type, int root)
{
	int rank;

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank != root)
		count(root, bytes_of(elements, type));
}

static void count_all_to_all(const int *elements, int is_same, MPI_Datatype type)
{
	int rank, ranks;

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int peer = 0; peer < ranks; peer++)
		if (peer != rank)
			count(peer, bytes_of(elements[is_same ? 0 : peer], type));
}

static void begin_part(void)
{
	if (part_count == PARTS_MAX) {
		fprintf(stderr, "npb_trace: more than %d barriers\n", PARTS_MAX - 1);
		PMPI_Abort(MPI_COMM_WORLD, 1);
	}
	part_count++;
}

static void print_busiest(void)
{
	static double sums[PARTS_MAX][COUNTERS];
	int rank, ranks, busiest = 0;

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
	PMPI_Reduce(counters, sums, PARTS_MAX * COUNTERS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	for (int part = 1; part < part_count; part++)
		if (sums[part][BYTES] > sums[busiest][BYTES])
			busiest = part;
	if (rank == 0)
		printf("{\"ranks\":%d,\"messages\":%.2f,\"bytes\":%.0f,\"across_bytes\":%.0f}\n", ranks,
		       sums[busiest][MESSAGES] / ranks, sums[busiest][BYTES] / ranks,
		       sums[busiest][ACROSS_BYTES]);
}

/* ---- Calls of C ---- */

int MPI_Send(const void *data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
	count_send(elements, type, to, comm);
	return PMPI_Send(data, elements, type, to, tag, comm);
}

int MPI_Isend(const void *data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm,
	      MPI_Request *request)
{
	count_send(elements, type, to, comm);
	return PMPI_Isend(data, elements, type, to, tag, comm, request);
}

int MPI_Allreduce(const void *data, void *result, int elements, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
	count_all_reduce(elements, type);
	return PMPI_Allreduce(data, result, elements, type, op, comm);
}

int MPI_Reduce(const void *data, void *result, int elements, MPI_Datatype type, MPI_Op op, int root,
	       MPI_Comm comm)
{
	count_reduce(elements, type, root);
	return PMPI_Reduce(data, result, elements, type, op, root, comm);
}

int MPI_Alltoall(const void *data, int elements, MPI_Datatype type, void *result, int more,
		 MPI_Datatype result_type, MPI_Comm comm)
{
	count_all_to_all(&elements, 1, type);
	return PMPI_Alltoall(data, elements, type, result, more, result_type, comm);
}

int MPI_Alltoallv(const void *data, const int *elements, const int *offsets, MPI_Datatype type, void *result,
		  const int *more, const int *result_offsets, MPI_Datatype result_type, MPI_Comm comm)
{
	count_all_to_all(elements, 0, type);
	return PMPI_Alltoallv(data, elements, offsets, type, result, more, result_offsets, result_type, comm);
}

int MPI_Barrier(MPI_Comm comm)
{
	begin_part();
	return PMPI_Barrier(comm);
}

int MPI_Finalize(void)
{
	print_busiest();
	return PMPI_Finalize();
}

/* ---- Calls of Fortran ---- */

void pmpi_send_(void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void pmpi_isend_(void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void pmpi_allreduce_(void *, void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void pmpi_reduce_(void *, void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void pmpi_alltoall_(void *, MPI_Fint *, MPI_Fint *, void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void pmpi_barrier_(MPI_Fint *, MPI_Fint *);
void pmpi_finalize_(MPI_Fint *);

void mpi_send_(void *data, MPI_Fint *elements, MPI_Fint *type, MPI_Fint *to, MPI_Fint *tag, MPI_Fint *comm,
	       MPI_Fint *error)
{
	count_send(*elements, MPI_Type_f2c(*type), *to, MPI_Comm_f2c(*comm));
	pmpi_send_(data, elements, type, to, tag, comm, error);
}

void mpi_isend_(void *data, MPI_Fint *elements, MPI_Fint *type, MPI_Fint *to, MPI_Fint *tag, MPI_Fint *comm,
		MPI_Fint *request, MPI_Fint *error)
{
	count_send(*elements, MPI_Type_f2c(*type), *to, MPI_Comm_f2c(*comm));
	pmpi_isend_(data, elements, type, to, tag, comm, request, error);
}

void mpi_allreduce_(void *data, void *result, MPI_Fint *elements, MPI_Fint *type, MPI_Fint *op,
		    MPI_Fint *comm, MPI_Fint *error)
{
	count_all_reduce(*elements, MPI_Type_f2c(*type));
	pmpi_allreduce_(data, result, elements, type, op, comm, error);
}

void mpi_reduce_(void *data, void *result, MPI_Fint *elements, MPI_Fint *type, MPI_Fint *op, MPI_Fint *root,
		 MPI_Fint *comm, MPI_Fint *error)
{
	count_reduce(*elements, MPI_Type_f2c(*type), *root);
	pmpi_reduce_(data, result, elements, type, op, root, comm, error);
}

void mpi_alltoall_(void *data, MPI_Fint *elements, MPI_Fint *type, void *result, MPI_Fint *more,
		   MPI_Fint *result_type, MPI_Fint *comm, MPI_Fint *error)
{
	int same = *elements;

	count_all_to_all(&same, 1, MPI_Type_f2c(*type));
	pmpi_alltoall_(data, elements, type, result, more, result_type, comm, error);
}

void mpi_barrier_(MPI_Fint *comm, MPI_Fint *error)
{
	begin_part();
	pmpi_barrier_(comm, error);
}

void mpi_finalize_(MPI_Fint *error)
{
	print_busiest();
	pmpi_finalize_(error);
}
