/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counts of collectives by their execution, reported at exit if KUMI_VERBOSE is set. */
#ifndef KUMI_MPI_TALLY_H
#define KUMI_MPI_TALLY_H

#include <stdbool.h>

#include "trial.h"

/*
 * Counts a call. `is_part` is true if its communicator has only some of the job's ranks. Rank 0 of
 * the job reports.
 */
KUMI_HIDDEN void kumi_tally(int job_rank, bool is_part, enum kumi_way way);

/* Returns whether KUMI_VERBOSE asks for messages about what was done. */
KUMI_HIDDEN bool kumi_is_verbose(void);

#endif
