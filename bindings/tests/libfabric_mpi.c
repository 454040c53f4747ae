/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * MPI over the libfabric provider.
 *
 *   libfabric_mpi messages     point-to-point messages of all kinds, and collectives
 *   libfabric_mpi one-sided    windows
 */
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

enum { BYTES_MAX = 16 << 20, BURST = 2000 };

static int rank, ranks, left, right;

/* Claims on all ranks: each rank reports its own failure. */
static void claim(const char *text, bool holds)
{
    int own = holds, all = 0;
    MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    expect_true(text, rank == 0 ? all : holds);
}

static uint8_t pattern(size_t at, size_t bytes, int sender)
{
    return (uint8_t)(at * 7 + bytes + (size_t)sender);
}

static void sizes(void)
{
    uint8_t *out = malloc(BYTES_MAX), *in = malloc(BYTES_MAX);
    bool is_right = true;
    for (size_t bytes = 0;; bytes = bytes == 0 ? 1 : bytes * 3 + 1) {
        MPI_Status status;
        int count;
        if (bytes > BYTES_MAX)
            bytes = BYTES_MAX;
        for (size_t at = 0; at < bytes; at++)
            out[at] = pattern(at, bytes, rank);
        memset(in, 0, bytes);
        MPI_Sendrecv(out, (int)bytes, MPI_BYTE, right, 5, in, (int)bytes, MPI_BYTE, left, 5, MPI_COMM_WORLD,
                     &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        is_right &= (size_t)count == bytes;
        for (size_t at = 0; at < bytes; at++)
            is_right &= in[at] == pattern(at, bytes, left);
        if (bytes == BYTES_MAX)
            break;
    }
    claim("messages of 0 bytes to 16 MB arrive", is_right);
    free(out);
    free(in);
}

/* Rank 0 takes messages of all ranks in any order: it probes for them, and they are unexpected. */
static void wildcards(void)
{
    bool is_right = true;
    if (rank != 0) {
        for (int number = 0; number < 20; number++) {
            int *values = calloc((size_t)number * 1000 + 1, sizeof *values);
            for (int at = 0; at < number * 1000; at++)
                values[at] = rank;
            MPI_Send(values, number * 1000, MPI_INT, 0, number, MPI_COMM_WORLD);
            free(values);
        }
    } else {
        for (int taken = 0; taken < (ranks - 1) * 20; taken++) {
            MPI_Status status;
            int is_found = 0, count;
            while (!is_found)
                MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_found, &status);
            MPI_Get_count(&status, MPI_INT, &count);
            int *values = malloc(((size_t)count + 1) * sizeof *values);
            MPI_Recv(values, count, MPI_INT, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
            is_right &= count == status.MPI_TAG * 1000;
            is_right &= count == 0 || values[count - 1] == status.MPI_SOURCE;
            free(values);
        }
    }
    claim("wildcards and probes find each message", is_right);
    int value = rank == 0 ? 17 : 0;
    if (rank == 0) {
        for (int target = 1; target < ranks; target++)
            MPI_Send(&value, 1, MPI_INT, target, 9, MPI_COMM_WORLD);
    } else {
        MPI_Message message;
        MPI_Mprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(&value, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    }
    claim("a matched probe receives its message", value == 17);
}

static void bursts(void)
{
    static int out[BURST], in[BURST];
    static MPI_Request requests[2 * BURST];
    bool is_right = true;
    for (int at = 0; at < BURST; at++) {
        out[at] = at + rank;
        MPI_Irecv(&in[at], 1, MPI_INT, left, 3, MPI_COMM_WORLD, &requests[at]);
    }
    for (int at = 0; at < BURST; at++)
        MPI_Isend(&out[at], 1, MPI_INT, right, 3, MPI_COMM_WORLD, &requests[BURST + at]);
    MPI_Waitall(2 * BURST, requests, MPI_STATUSES_IGNORE);
    for (int at = 0; at < BURST; at++)
        is_right &= in[at] == at + left;
    claim("2000 messages keep their order", is_right);
}

static void kinds(void)
{
    int value = rank, got = -1, is_cancelled = 0;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&got, 1, MPI_INT, rank, 1, MPI_COMM_WORLD, &request);
    MPI_Send(&value, 1, MPI_INT, rank, 1, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    claim("a rank sends to itself", got == rank);
    MPI_Irecv(&got, 1, MPI_INT, left, 2, MPI_COMM_WORLD, &request);
    MPI_Ssend(&value, 1, MPI_INT, right, 2, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    claim("a synchronous send completes", got == left);
    MPI_Irecv(&got, 1, MPI_INT, left, 77, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &is_cancelled);
    claim("a receive is cancelled", is_cancelled);
}

static void collectives(void)
{
    bool is_right = true;
    for (int count = 1; count <= 1 << 17; count *= 8) {
        size_t total = (size_t)count * (size_t)ranks;
        int *out = malloc(total * sizeof *out), *in = malloc(total * sizeof *in);
        for (size_t at = 0; at < total; at++)
            out[at] = rank * 1000003 + (int)at;
        MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            for (int at = 0; at < count; at++)
                is_right &= in[from * count + at] == from * 1000003 + rank * count + at;
        MPI_Allreduce(MPI_IN_PLACE, out, (int)total, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        is_right &= out[total - 1] == (ranks - 1) * 1000003 + (int)total - 1;
        free(out);
        free(in);
    }
    claim("all-to-alls and reductions of 4 B to 512 KB are right", is_right);
}

static void transfers(void)
{
    enum { COUNT = 1 << 18 };
    int *window_memory, *values = malloc(COUNT * sizeof *values);
    MPI_Win window;
    bool is_right = true;
    MPI_Win_allocate(COUNT * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory,
                     &window);
    for (int at = 0; at < COUNT; at++)
        values[at] = rank * 7 + at;
    MPI_Win_fence(0, window);
    MPI_Put(values, COUNT, MPI_INT, right, 0, COUNT, MPI_INT, window);
    MPI_Win_fence(0, window);
    for (int at = 0; at < COUNT; at++)
        is_right &= window_memory[at] == left * 7 + at;
    claim("a put of 1 MB is in the window", is_right);
    memset(values, 0, COUNT * sizeof *values);
    MPI_Get(values, COUNT, MPI_INT, right, 0, COUNT, MPI_INT, window);
    MPI_Win_fence(0, window);
    for (int at = 0; at < COUNT; at++)
        is_right &= values[at] == rank * 7 + at;
    claim("a get of 1 MB returns it", is_right);
    MPI_Win_free(&window);
    free(values);
}

static void updates(void)
{
    int64_t *words, one = 1, before;
    int32_t small[16] = {0}, small_one = 1, expected = 0, winner = rank + 1, found = -1;
    MPI_Win window, small_window;
    MPI_Win_allocate(2 * sizeof *words, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
    words[0] = words[1] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int count = 0; count < 100; count++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, MPI_SUM, window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    claim("sums of 64 bits by all ranks count each",
          rank != 0 || (words[0] == 100 * ranks && words[1] == ranks));
    MPI_Win_create(small, sizeof small, sizeof *small, MPI_INFO_NULL, MPI_COMM_WORLD, &small_window);
    for (int count = 0; count < 20; count++) {
        int target = (rank + count) % ranks;
        int32_t value;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, small_window);
        MPI_Get(&value, 1, MPI_INT32_T, target, 3, 1, MPI_INT32_T, small_window);
        MPI_Win_flush(target, small_window);
        value++;
        MPI_Put(&value, 1, MPI_INT32_T, target, 3, 1, MPI_INT32_T, small_window);
        MPI_Win_unlock(target, small_window);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, small_window);
        MPI_Accumulate(&small_one, 1, MPI_INT32_T, 0, 5, 1, MPI_INT32_T, MPI_SUM, small_window);
        MPI_Win_unlock(0, small_window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int sum = 0, own = small[3];
    MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    claim("exclusive locks exclude", sum == 20 * ranks);
    claim("sums of 32 bits count each", rank != 0 || small[5] == 20 * ranks);
    MPI_Win_lock_all(0, small_window);
    MPI_Compare_and_swap(&winner, &expected, &found, MPI_INT32_T, 0, 9, small_window);
    MPI_Win_unlock_all(small_window);
    int won = found == 0;
    MPI_Allreduce(MPI_IN_PLACE, &won, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    claim("one of the ranks swaps", won == 1);
    MPI_Win_free(&small_window);
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    left = (rank + ranks - 1) % ranks;
    right = (rank + 1) % ranks;
    expect_rank(rank);
    if (argc == 2 && strcmp(argv[1], "one-sided") == 0) {
        transfers();
        updates();
    } else {
        sizes();
        wildcards();
        bursts();
        kinds();
        collectives();
    }
    MPI_Finalize();
    return expect_result();
}
