/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libkumi.so, loaded when MPI begins, and what the user asked for. */
#ifndef KUMI_MPI_PLANNER_H
#define KUMI_MPI_PLANNER_H

#include <stdbool.h>

#include "kumi_coll.h"
#include "kumi_page_access.h"
#include "kumi_version.h"

struct kumi_planner {
    __typeof__(kumi_version) *version;
    __typeof__(kumi_coll_network_digest) *network_digest;
    __typeof__(kumi_coll_ranks_in_job) *ranks_in_job;
    __typeof__(kumi_coll_ranks_free) *ranks_free;
    __typeof__(kumi_coll_ranks_is_flat) *ranks_is_flat;
    __typeof__(kumi_coll_ranks_is_far) *ranks_is_far;
    __typeof__(kumi_coll_work_new) *work_new;
    __typeof__(kumi_coll_work_like) *work_like;
    __typeof__(kumi_coll_work_begin) *work_begin;
    __typeof__(kumi_coll_work_over) *work_over;
    __typeof__(kumi_coll_work_is_over) *work_is_over;
    __typeof__(kumi_coll_work_free) *work_free;
};

/* The library, or NULL, said once, if it cannot be loaded or has another interface. */
KUMI_HIDDEN const struct kumi_planner *kumi_planner(void);

/* The topology file, or NULL if none was named. */
KUMI_HIDDEN const char *kumi_topology_file(void);

/* KUMI_COLL: `off`, `auto`, `all`, or a list of names. NULL if it is not set, as without `kumi
 * run`. */
KUMI_HIDDEN const char *kumi_coll_list(void);

/* KUMI_COLL_WHY: why `kumi run` has this rank plan nothing. */
KUMI_HIDDEN const char *kumi_coll_why_off(void);

/* Whether any collective may be planned. */
KUMI_HIDDEN bool kumi_coll_is_on(void);

/* Whether KUMI_COLL is `auto`: a collective is planned only where that was measured to win. */
KUMI_HIDDEN bool kumi_coll_is_automatic(void);

/* Whether `kumi run --reproducible` leaves all reductions to the MPI library. */
KUMI_HIDDEN bool kumi_coll_is_reproducible(void);

/* Whether a list names the collective: the MPI name in lower case without its prefix. `all` and
 * `auto` name every one. */
KUMI_HIDDEN bool kumi_coll_asked_for(const char *name);

#endif
