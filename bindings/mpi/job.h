/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* On which hosts the job's ranks are, told when MPI begins. */
#ifndef KUMI_MPI_JOB_H
#define KUMI_MPI_JOB_H

#include "kumi_page_access.h"

/* HOST_NAME_MAX of Linux, with the zero. */
enum { KUMI_HOST_BYTES = 65 };

/* Names of the hosts of all ranks, KUMI_HOST_BYTES each, and how many; NULL if nobody told. */
KUMI_HIDDEN const char *kumi_job_hosts(int *count);

#endif
