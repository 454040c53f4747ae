/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libkumi.so, loaded when the first collective is replaced, and what the user asked for. */
#ifndef KUMI_MPI_PLANNER_H
#define KUMI_MPI_PLANNER_H

#include <stdbool.h>

#include "kumi_coll.h"
#include "kumi_page_access.h"

struct kumi_planner {
    __typeof__(kumi_coll_ranks_in_job) *ranks_in_job;
    __typeof__(kumi_coll_ranks_free) *ranks_free;
    __typeof__(kumi_coll_ranks_is_flat) *ranks_is_flat;
    __typeof__(kumi_coll_ranks_is_far) *ranks_is_far;
    __typeof__(kumi_coll_work_new) *work_new;
    __typeof__(kumi_coll_work_begin) *work_begin;
    __typeof__(kumi_coll_work_over) *work_over;
    __typeof__(kumi_coll_work_is_over) *work_is_over;
    __typeof__(kumi_coll_work_free) *work_free;
};

/* The library, or NULL, said once, if it cannot be loaded. */
KUMI_HIDDEN const struct kumi_planner *kumi_planner(void);

/* The topology file, or NULL if none was named. */
KUMI_HIDDEN const char *kumi_topology_file(void);

/* Whether anything is to be planned at all. */
KUMI_HIDDEN bool kumi_coll_is_on(void);

/* Whether KUMI_COLL has the collective: `all`, or a list with the MPI name in lower case without its prefix. */
KUMI_HIDDEN bool kumi_coll_asked_for(const char *name);

#endif
