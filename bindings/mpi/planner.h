/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libkumi.so, which is loaded when MPI is initialised, and the options of `kumi run`. */
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
    __typeof__(kumi_coll_ranks_is_single_switch) *ranks_is_single_switch;
    __typeof__(kumi_coll_ranks_is_multi_site) *ranks_is_multi_site;
    __typeof__(kumi_coll_ranks_fair_share) *ranks_fair_share;
    __typeof__(kumi_coll_ranks_sending_order) *ranks_sending_order;
    __typeof__(kumi_coll_work_new) *work_new;
    __typeof__(kumi_coll_work_equal) *work_equal;
    __typeof__(kumi_coll_work_begin) *work_begin;
    __typeof__(kumi_coll_work_complete) *work_complete;
    __typeof__(kumi_coll_work_is_complete) *work_is_complete;
    __typeof__(kumi_coll_work_free) *work_free;
};

/*
 * Returns the library. If it cannot be loaded or has another interface, writes one message to
 * stderr and returns NULL.
 */
KUMI_HIDDEN const struct kumi_planner *kumi_planner(void);

/* Returns the path of the topology file, or NULL if none was given. */
KUMI_HIDDEN const char *kumi_topology_file(void);

/*
 * Returns KUMI_COLL: `off`, `auto`, `all`, or a list of names. Returns NULL if it is not set, as
 * without `kumi run`.
 */
KUMI_HIDDEN const char *kumi_coll_list(void);

/*
 * Returns KUMI_COLL_WHY, the reason for which `kumi run` switched planning off on this rank. If it
 * is not set, returns "KUMI_COLL=off".
 */
KUMI_HIDDEN const char *kumi_coll_why_off(void);

/* Returns whether any collective may be planned. */
KUMI_HIDDEN bool kumi_coll_is_on(void);

/*
 * Returns whether KUMI_COLL is `auto`. A collective is then planned only where plans were measured
 * to be faster (ADR 030).
 */
KUMI_HIDDEN bool kumi_coll_is_automatic(void);

/* Returns whether `kumi run --reproducible` leaves all reductions to the MPI library. */
KUMI_HIDDEN bool kumi_coll_is_reproducible(void);

/*
 * Returns whether KUMI_COLL requests the collective. `name` is the MPI name in lower case without
 * its prefix. `all` and `auto` request every one.
 */
KUMI_HIDDEN bool kumi_coll_is_requested(const char *name);

#endif
