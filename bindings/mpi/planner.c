/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Loads libkumi.so and reads KUMI_COLL, KUMI_COLL_LIBRARY, KUMI_COLL_WHY, KUMI_REPRODUCIBLE and
 * KUMI_TOPOLOGY, which `kumi run` sets.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner.h"

static bool load(struct kumi_planner *planner)
{
    const char *file = getenv("KUMI_COLL_LIBRARY");
    void *library = dlopen(file == NULL ? "libkumi.so" : file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "kumi: collectives are left to the MPI library: %s\n", dlerror());
        return false;
    }
    __typeof__(kumi_abi) *abi = (__typeof__(kumi_abi) *)dlsym(library, "kumi_abi");
    uint32_t found = abi == NULL ? 0 : abi();
    if (found != KUMI_ABI) {
        fprintf(stderr,
                "kumi: collectives are left to the MPI library: %s has interface %u, expected %u: install "
                "libkumi.so and kumi of the same version\n",
                file == NULL ? "libkumi.so" : file, found, KUMI_ABI);
        return false;
    }
    const char *missing = NULL;
#define FIND_AS(name, symbol)                                          \
    planner->name = (__typeof__(planner->name))dlsym(library, symbol); \
    if (planner->name == NULL)                                         \
        missing = symbol;
#define FIND(name) FIND_AS(name, "kumi_coll_" #name)
    FIND_AS(version, "kumi_version")
    FIND(network_digest)
    FIND(ranks_in_job)
    FIND(ranks_free)
    FIND(ranks_is_single_switch)
    FIND(ranks_is_multi_site)
    FIND(ranks_fair_share)
    FIND(ranks_sending_order)
    FIND(work_new)
    FIND(work_equal)
    FIND(work_begin)
    FIND(work_complete)
    FIND(work_is_complete)
    FIND(work_free)
#undef FIND
#undef FIND_AS
    if (missing != NULL)
        fprintf(stderr, "kumi: collectives are left to the MPI library: libkumi.so has no %s\n", missing);
    return missing == NULL;
}

const struct kumi_planner *kumi_planner(void)
{
    static struct kumi_planner planner;
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    static bool is_asked, is_loaded;
    pthread_mutex_lock(&loading);
    if (!is_asked) {
        is_asked = true;
        is_loaded = load(&planner);
    }
    pthread_mutex_unlock(&loading);
    return is_loaded ? &planner : NULL;
}

const char *kumi_topology_file(void)
{
    const char *file = getenv("KUMI_TOPOLOGY");
    return file == NULL || *file == '\0' ? NULL : file;
}

const char *kumi_coll_list(void)
{
    return getenv("KUMI_COLL");
}

const char *kumi_coll_why_off(void)
{
    const char *why = getenv("KUMI_COLL_WHY");
    return why == NULL || *why == '\0' ? "KUMI_COLL=off" : why;
}

bool kumi_coll_is_on(void)
{
    const char *list = kumi_coll_list();
    return list != NULL && *list != '\0' && strcmp(list, "off") != 0;
}

bool kumi_coll_is_automatic(void)
{
    const char *list = kumi_coll_list();
    return list != NULL && strcmp(list, "auto") == 0;
}

bool kumi_coll_is_reproducible(void)
{
    const char *asked = getenv("KUMI_REPRODUCIBLE");
    return asked != NULL && strcmp(asked, "1") == 0;
}

bool kumi_coll_is_requested(const char *name)
{
    if (!kumi_coll_is_on())
        return false;
    const char *list = kumi_coll_list();
    if (strcmp(list, "all") == 0 || kumi_coll_is_automatic())
        return true;
    size_t bytes = strlen(name);
    for (const char *item = list; *item != '\0'; item += strspn(item, ",")) {
        size_t item_bytes = strcspn(item, ",");
        if (item_bytes == bytes && strncmp(item, name, bytes) == 0)
            return true;
        item += item_bytes;
    }
    return false;
}
