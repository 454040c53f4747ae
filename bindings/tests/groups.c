/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A group that MPI starts: MPI_Allgather exchanges the cards, kumi_group.h does the collectives. */

#include <kumi_group.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

enum { ERROR_BYTES = 512, COUNT = 10000 };

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect_rank(rank);

    char error[ERROR_BYTES] = "", card[KUMI_CARD_BYTES];
    expect_true("the library has the interface of its headers",
                kumi_abi() == KUMI_ABI && strchr(kumi_version(), '+') != NULL);
    struct kumi_group_config config = {.interface = "none-such"};
    struct kumi_listening *listening = kumi_group_listen(&config, card, error, sizeof error);
    expect_true("a struct without its size is refused by name",
                listening == NULL && strstr(error, "kumi_group_config.size is 0") != NULL);
    config.size = sizeof config;
    listening = kumi_group_listen(&config, card, error, sizeof error);
    expect_true("an interface that is none is refused by name",
                listening == NULL && strstr(error, "`none-such` has no address") != NULL);

    config.interface = "lo";
    listening = kumi_group_listen(&config, card, error, sizeof error);
    char *cards = malloc((size_t)ranks * KUMI_CARD_BYTES);
    MPI_Allgather(card, KUMI_CARD_BYTES, MPI_CHAR, cards, KUMI_CARD_BYTES, MPI_CHAR, MPI_COMM_WORLD);
    struct kumi_group *group = kumi_group_join(listening, rank, ranks, cards, error, sizeof error);
    expect_true("a group is joined by cards that MPI brought",
                group != NULL && kumi_group_rank(group) == rank && kumi_group_size(group) == ranks);
    if (group == NULL)
        return 1;

    static double mine[COUNT], sums[COUNT];
    for (int i = 0; i < COUNT; i++)
        mine[i] = i * (rank + 1);
    int outcome = kumi_all_reduce(group, mine, sums, COUNT, KUMI_F64, KUMI_SUM, error, sizeof error);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        wrong += sums[i] != i * (ranks * (ranks + 1) / 2.0);
    expect_true("kumi_all_reduce sums", outcome == KUMI_DONE && wrong == 0);

    outcome = kumi_broadcast(group, sums, sizeof sums, ranks, error, sizeof error);
    expect_true("a root that is none is refused by number",
                outcome == KUMI_ARGUMENT && strstr(error, "out of range") != NULL);
    memcpy(sums, mine, sizeof sums);
    outcome = kumi_broadcast(group, sums, sizeof sums, ranks - 1, error, sizeof error);
    expect_true("kumi_broadcast brings", outcome == KUMI_DONE && sums[COUNT - 1] == (COUNT - 1) * ranks);

    uint64_t wrong_bytes[] = {8, 8};
    const void *from[] = {mine};
    void *to[] = {sums};
    struct kumi_group_call call = {
        sizeof call, KUMI_COLL_ALL_REDUCE, 0, KUMI_F64, KUMI_SUM, wrong_bytes, 2, from, to};
    outcome = kumi_group_do(group, &call, error, sizeof error);
    expect_true("a table of another length is refused",
                outcome == KUMI_ARGUMENT && strstr(error, "2 block sizes given") != NULL);
    call.element = 99;
    outcome = kumi_group_do(group, &call, error, sizeof error);
    expect_true("an element type that is none is refused",
                outcome == KUMI_ARGUMENT && strstr(error, "invalid element 99") != NULL);

    expect_true("kumi_barrier returns", kumi_barrier(group, error, sizeof error) == KUMI_DONE);
    kumi_group_free(group);
    free(cards);
    MPI_Finalize();
    return expect_result();
}
