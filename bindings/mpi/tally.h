/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How many collectives were done by a plan, said at exit with KUMI_VERBOSE. */
#ifndef KUMI_MPI_TALLY_H
#define KUMI_MPI_TALLY_H

#include <stdbool.h>

#include "kumi_page_access.h"

/* One more, on a communicator of `size` ranks; the rank of the first is the process's, and rank 0 says it. */
KUMI_HIDDEN void kumi_tally(int rank, int size, bool is_planned);

#endif
