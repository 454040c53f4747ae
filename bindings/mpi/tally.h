/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How many collectives were done by a plan, said at exit with KUMI_VERBOSE. */
#ifndef KUMI_MPI_TALLY_H
#define KUMI_MPI_TALLY_H

#include <stdbool.h>

#include "kumi_page_access.h"

/* Counts a call; `is_part` says that its communicator has only some of the job's ranks. Rank 0
 * of the job reports. */
KUMI_HIDDEN void kumi_tally(int job_rank, bool is_part, bool is_planned);

#endif
