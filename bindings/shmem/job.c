/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "job.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "team.h"

#define KIBI 1024.0

/* Size of the heap without SHMEM_SYMMETRIC_SIZE. */
#define HEAP_BYTES (64 << 20)

struct job job = {.me = -1};

void end_all(int status)
{
    /* The status and a bit that says that there is one. */
    uint64_t word = (1ull << 32) | (uint32_t)status;
    char error[256];
    if (job.node != NULL && !job.is_ending) {
        for (int pe = 0; pe < job.count; pe++) {
            struct kumi_wind_place place = own_place(EXIT_WORD_OFFSET, pe);
            if (pe != job.me)
                (void)kumi_wind_post_put(job.node, job.peers[pe], &place, &word, sizeof word, error,
                                         sizeof error);
        }
        int64_t limit_ns = now_ns() + 1000000000;
        for (int pe = 0; pe < job.count; pe++) {
            int64_t left_ms = (limit_ns - now_ns()) / 1000000;
            if (pe != job.me)
                (void)kumi_wind_flush(job.node, job.peers[pe], left_ms > 0 ? left_ms : 0, error,
                                      sizeof error);
        }
    }
    job.is_ending = true;
    fflush(stdout);
    fflush(stderr);
    _exit(status);
}

void fail(const char *call, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fflush(stdout);
    if (job.me >= 0)
        fprintf(stderr, "kumishmem: PE %d: %s: %s\n", job.me, call, text);
    else
        fprintf(stderr, "kumishmem: %s: %s\n", call, text);
    end_all(1);
}

void check(const char *call, int pe, int outcome, const char *error)
{
    bool has_left = job.is_leaving && outcome == KUMI_WIND_LOST;
    if (outcome != KUMI_WIND_DONE && !job.is_ending && !has_left)
        fail(call, "PE %d: %s", pe, error);
}

void check_started(const char *call)
{
    if (!job.is_started)
        fail(call, "the library is not initialised: call shmem_init before, and shmem_finalize after");
}

/* Returns the bytes that SHMEM_SYMMETRIC_SIZE asks for, such as 512k, 3.1M or 2g. */
static size_t heap_size(void)
{
    const char *name = "SHMEM_SYMMETRIC_SIZE", *text = getenv(name);
    if (text == NULL)
        text = getenv(name = "SMA_SYMMETRIC_SIZE");
    if (text == NULL)
        return HEAP_BYTES;
    char *end;
    double size = strtod(text, &end);
    const char *suffix = "kmgt", *found = *end ? strchr(suffix, *end | 0x20) : NULL;
    if (found != NULL)
        size *= pow(KIBI, (double)(found - suffix + 1));
    if (end == text || (*end && found == NULL) || !(size >= 0) || size > 0x1p46)
        fail("shmem_init", "invalid %s `%s`: expected a number with an optional suffix of k, m, g or t", name,
             text);
    return (size_t)ceil(size);
}

static void print_info(void)
{
    if (job.me != 0)
        return;
    if (getenv("SHMEM_VERSION") != NULL || getenv("SMA_VERSION") != NULL)
        fprintf(stderr, "%s, OpenSHMEM %d.%d\n", SHMEM_VENDOR_STRING, SHMEM_MAJOR_VERSION,
                SHMEM_MINOR_VERSION);
    if (getenv("SHMEM_INFO") != NULL || getenv("SMA_INFO") != NULL)
        fprintf(stderr,
                "SHMEM_VERSION           prints the version at start\n"
                "SHMEM_INFO              prints this text\n"
                "SHMEM_DEBUG             prints how PEs are reached\n"
                "SHMEM_SYMMETRIC_SIZE    bytes of each PE's heap, with a suffix of k, m, g or t (64m)\n"
                "KUMI_SHMEM_INTERFACE    interface on whose addresses this host is reached\n"
                "KUMI_SHMEM_TRUSTED      1: sessions are not encrypted, and kernels with `kumi wind up` "
                "execute puts and gets\n");
    if (getenv("SHMEM_DEBUG") != NULL || getenv("SMA_DEBUG") != NULL)
        fprintf(stderr, "kumishmem: %d PEs; heap %zu MiB; %s executes the operations of other PEs\n",
                job.count, (job.heap.bytes - job.own_bytes) >> 20,
                job.has_kernel ? "the kernel" : "a thread");
}

/* A program that ends without shmem_finalize, as those with start_pes do. */
static void at_exit(int status, void *unused)
{
    (void)unused;
    if (job.is_started && status == 0)
        shmem_finalize();
}

PUBLIC int shmem_init_thread(int requested, int *provided)
{
    if (job.is_started)
        fail("shmem_init_thread", "the library is already initialised");
    if (requested < SHMEM_THREAD_SINGLE || requested > SHMEM_THREAD_MULTIPLE)
        fail("shmem_init_thread", "unknown thread level %d", requested);
    size_t heap_bytes = heap_size();
    job.ranks = find_ranks();
    job.count = 1;
    job.me = 0;
    if (job.ranks != NULL) {
        job.count = kumi_ranks_count(job.ranks);
        job.me = kumi_ranks_rank(job.ranks);
        job.node = kumi_ranks_node(job.ranks);
        job.has_kernel = kumi_wind_has_kernel(job.node) != 0;
        job.peers = calloc((size_t)job.count, sizeof *job.peers);
        for (int pe = 0; pe < job.count; pe++)
            job.peers[pe] = kumi_ranks_peer(job.ranks, pe);
    }
    teams_start();
    job.own_bytes = synchronisation_start(mail_start(CONTROL_BYTES));
    create_segments(job.own_bytes, heap_bytes);
    heap_start(job.heap.base + job.own_bytes, job.heap.bytes - job.own_bytes);
    contexts_start();
    job.thread_level = requested;
    job.is_leaving = job.is_ending = false;
    job.is_started = true;
    watch_start();
    print_info();
    static bool is_registered;
    if (!is_registered)
        on_exit(at_exit, NULL);
    is_registered = true;
    if (provided != NULL)
        *provided = job.thread_level;
    return 0;
}

PUBLIC void shmem_init(void)
{
    int provided;
    (void)shmem_init_thread(SHMEM_THREAD_SINGLE, &provided);
}

PUBLIC void start_pes(int npes)
{
    (void)npes;
    if (!job.is_started)
        shmem_init();
}

PUBLIC void shmem_finalize(void)
{
    if (!job.is_started)
        return;
    static const char *call = "shmem_finalize";
    char error[256];
    quiet(call, context_of(call, SHMEM_CTX_DEFAULT));
    job.is_leaving = true;
    team_sync(call, team_of(call, SHMEM_TEAM_WORLD));
    for (int pe = 0; job.node != NULL && pe < job.count; pe++)
        if (pe != job.me)
            (void)kumi_wind_flush(job.node, job.peers[pe], 3000, error, sizeof error);
    watch_stop();
    job.is_started = false;
    free_segments();
    mail_stop();
    if (job.ranks != NULL)
        kumi_ranks_free(job.ranks);
    leave_launcher();
    free(job.peers);
    job.ranks = NULL;
    job.node = NULL;
    job.peers = NULL;
}

PUBLIC void shmem_global_exit(int status)
{
    check_started("shmem_global_exit");
    end_all(status);
}

PUBLIC void shmem_query_thread(int *provided)
{
    check_started("shmem_query_thread");
    *provided = job.thread_level;
}

PUBLIC int shmem_my_pe(void)
{
    check_started("shmem_my_pe");
    return job.me;
}

PUBLIC int shmem_n_pes(void)
{
    check_started("shmem_n_pes");
    return job.count;
}

PUBLIC int _my_pe(void)
{
    return shmem_my_pe();
}

PUBLIC int _num_pes(void)
{
    return shmem_n_pes();
}

PUBLIC int shmem_pe_accessible(int pe)
{
    check_started("shmem_pe_accessible");
    return pe >= 0 && pe < job.count;
}

PUBLIC int shmem_addr_accessible(const void *addr, int pe)
{
    return shmem_pe_accessible(pe) && is_symmetric(addr, 1);
}

PUBLIC void *shmem_ptr(const void *dest, int pe)
{
    /* The memory of other PEs is not mapped here, also not that of PEs on the same host. */
    return shmem_addr_accessible(dest, pe) && pe == job.me ? (void *)dest : NULL;
}

PUBLIC void shmem_info_get_version(int *major, int *minor)
{
    *major = SHMEM_MAJOR_VERSION;
    *minor = SHMEM_MINOR_VERSION;
}

PUBLIC void shmem_info_get_name(char *name)
{
    strcpy(name, SHMEM_VENDOR_STRING);
}

PUBLIC void shmem_pcontrol(int level, ...)
{
    /* A profiling tool has its own. */
    (void)level;
}

/* Caches are coherent. */
PUBLIC void shmem_clear_cache_inv(void)
{
}
PUBLIC void shmem_set_cache_inv(void)
{
}
PUBLIC void shmem_clear_cache_line_inv(void *dest)
{
    (void)dest;
}
PUBLIC void shmem_set_cache_line_inv(void *dest)
{
    (void)dest;
}
PUBLIC void shmem_udcflush(void)
{
}
PUBLIC void shmem_udcflush_line(void *dest)
{
    (void)dest;
}
