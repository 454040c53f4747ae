/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counts collectives by their execution. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tally.h"

static unsigned by_library, planned, at_once, planned_of_part;
/* -1 until the first call. */
static int own_rank = -1;

void kumi_tally(int job_rank, bool is_part, enum kumi_way way)
{
    unsigned *counts[] = {&by_library, &planned, &at_once};
    __atomic_store_n(&own_rank, job_rank, __ATOMIC_RELAXED);
    __atomic_add_fetch(counts[way], 1, __ATOMIC_RELAXED);
    if (way == KUMI_BY_PLAN && is_part)
        __atomic_add_fetch(&planned_of_part, 1, __ATOMIC_RELAXED);
}

bool kumi_is_verbose(void)
{
    const char *verbose = getenv("KUMI_VERBOSE");
    return verbose != NULL && *verbose != '\0' && strcmp(verbose, "0") != 0;
}

__attribute__((destructor)) static void report(void)
{
    if (own_rank != 0 || !kumi_is_verbose())
        return;
    fprintf(stderr, "kumi: %u collectives were planned, %u were left to the MPI library\n", planned,
            by_library);
    if (at_once > 0)
        fprintf(stderr, "kumi: %u all-to-alls sent all blocks at once\n", at_once);
    if (planned_of_part > 0)
        fprintf(
            stderr,
            "kumi: %u of the planned ones ran on some of the job's ranks, with a share of the common links\n",
            planned_of_part);
}
