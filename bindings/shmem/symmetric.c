/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Symmetric memory: the heap, and the static variables of the program. */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "job.h"

/*
 * Number of the region of static variables. Groups number theirs from 1, shared memory from
 * 0x44530000.
 */
enum { STATICS_REGION = 0x53480000 };

/* Time in which all PEs introduce themselves, in ms. */
enum { START_LIMIT_MS = 60000 };

/*
 * A PE introduces itself to each other one twice: when it is reachable, and with the places of its
 * memory. In between, a daemon may be busy for seconds with the heaps of all PEs of a host, and a
 * PE that is not reachable for some seconds is taken for lost.
 */
struct introduction {
    uint64_t magic;
    int32_t pe;
    /* Whether it has the places. */
    int32_t has_places;
    uint64_t heap_bytes;
    uint64_t own_bytes;
    uint64_t statics_bytes;
    struct kumi_wind_place heap, statics;
};

#define MAGIC 0x3531304d48534b55ull

/* Finds the writable segments of the program, which the loader lists first. */
static int find_statics(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[at];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_W))
            continue;
        uintptr_t begin = info->dlpi_addr + header->p_vaddr;
        low = begin < low ? begin : low;
        high = begin + header->p_memsz > high ? begin + header->p_memsz : high;
    }
    if (low < high) {
        struct segment *segment = found;
        segment->base = (char *)(low & ~(uintptr_t)7);
        segment->bytes = high - (uintptr_t)segment->base;
    }
    return 1;
}

static struct kumi_wind_place *new_places(void)
{
    return calloc((size_t)job.count, sizeof(struct kumi_wind_place));
}

/* Sends an introduction to all other PEs. */
static void introduce(const char *call, bool has_places)
{
    char error[256];
    struct introduction own = {
        .magic = MAGIC,
        .pe = job.me,
        .has_places = has_places,
        .heap_bytes = job.heap.bytes,
        .own_bytes = job.own_bytes,
        .statics_bytes = job.statics.bytes,
        .heap = job.heap.places[job.me],
        .statics = job.statics.places[job.me],
    };
    for (int pe = 0; pe < job.count; pe++)
        if (pe != job.me)
            check(call, pe,
                  kumi_wind_send(job.node, job.peers[pe], KUMI_WIND_ORDERED, &own, sizeof own, error,
                                 sizeof error),
                  error);
}

/* Number of introductions that have arrived from each PE. */
static unsigned char *introductions;

/* Compares another PE with this one, and notes its places. */
static void meet(const char *call, const struct introduction *other)
{
    if (other->heap_bytes != job.heap.bytes)
        fail(
            call,
            "PE %d has a heap of %llu bytes and this one of %zu: expected the same SHMEM_SYMMETRIC_SIZE on all PEs",
            other->pe, (unsigned long long)(other->heap_bytes - other->own_bytes),
            job.heap.bytes - job.own_bytes);
    if (other->statics_bytes != job.statics.bytes)
        fail(call, "PE %d runs another program: its static variables have %llu bytes, those of this one %zu",
             other->pe, (unsigned long long)other->statics_bytes, job.statics.bytes);
    if (other->has_places) {
        job.heap.places[other->pe] = other->heap;
        job.statics.places[other->pe] = other->statics;
    }
    introductions[other->pe]++;
}

/* Fails for a PE that is lost, or late, and sends a sign of life to those that are missing. */
static void check_missing(const char *call, int wanted, bool is_late)
{
    char error[256];
    for (int pe = 0; pe < job.count; pe++) {
        if (pe == job.me || introductions[pe] >= wanted)
            continue;
        int outcome = kumi_wind_check(job.node, job.peers[pe], error, sizeof error);
        check(call, pe, outcome == KUMI_WIND_LOST ? outcome : KUMI_WIND_DONE, error);
        if (is_late)
            fail(call, "PE %d did not start within %d s", pe, START_LIMIT_MS / 1000);
        /* One that is gone does not answer it. */
        (void)kumi_wind_try_send(job.node, job.peers[pe], KUMI_WIND_UNORDERED, NULL, NULL, 0, NULL, 0, NULL,
                                 error, sizeof error);
    }
    if (job.heap.base != NULL)
        obey_exit();
}

static int met(int wanted)
{
    int met = 1;
    for (int pe = 0; pe < job.count; pe++)
        met += pe != job.me && introductions[pe] >= wanted;
    return met;
}

/* Waits until `wanted` introductions of each PE have arrived. */
static void await_introductions(const char *call, int wanted)
{
    int64_t limit_ns = now_ns() + START_LIMIT_MS * 1000000ll;
    while (met(wanted) < job.count) {
        /* In parts, to notice a PE that is lost. A negative limit would be none. */
        int64_t left_ms = (limit_ns - now_ns()) / 1000000;
        int64_t part_ms = left_ms < 0 ? 0 : left_ms < 300 ? left_ms : 300;
        struct kumi_wind_message *message = kumi_wind_receive(job.node, part_ms);
        if (message == NULL) {
            check_missing(call, wanted, left_ms <= 0);
            continue;
        }
        struct introduction other;
        if (message->data_bytes == sizeof other) {
            memcpy(&other, message->data, sizeof other);
            if (other.magic == MAGIC && other.pe >= 0 && other.pe < job.count && other.pe != job.me)
                meet(call, &other);
        }
        kumi_wind_message_free(message);
    }
}

static void register_statics(const char *call)
{
    char error[256];
    uint8_t secret[KUMI_WIND_SECRET_BYTES];
    kumi_ranks_secret(job.ranks, secret);
    struct kumi_wind_place *place = &job.statics.places[job.me];
    place->region = STATICS_REGION;
    kumi_wind_region_key(secret, STATICS_REGION, place->key);
    explicit_bzero(secret, sizeof secret);
    job.statics.region =
        kumi_wind_region_borrow(job.node, job.statics.base, job.statics.bytes, place, error, sizeof error);
    if (job.statics.region == NULL)
        fail(call, "cannot register the static variables: %s", error);
}

void create_segments(size_t own_bytes, size_t heap_bytes)
{
    static const char *call = "shmem_init";
    char error[256] = "";
    job.heap =
        (struct segment){.bytes = own_bytes + ((heap_bytes + 4095) & ~(size_t)4095), .places = new_places()};
    job.statics = (struct segment){.places = new_places()};
    dl_iterate_phdr(find_statics, &job.statics);
    if (job.node == NULL) {
        job.heap.base = mmap(NULL, job.heap.bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (job.heap.base == MAP_FAILED)
            fail(call, "cannot map a heap of %zu bytes: %m", job.heap.bytes);
        return;
    }
    introductions = calloc((size_t)job.count, sizeof *introductions);
    introduce(call, false);
    await_introductions(call, 1);
    job.heap.region =
        kumi_wind_region_new(job.node, job.heap.bytes, &job.heap.places[job.me], error, sizeof error);
    if (job.heap.region == NULL)
        fail(call, "cannot create a heap of %zu bytes: %s", job.heap.bytes, error);
    job.heap.base = kumi_wind_region_memory(job.heap.region);
    if (job.statics.bytes > 0)
        register_statics(call);
    introduce(call, true);
    await_introductions(call, 2);
    free(introductions);
}

void free_segments(void)
{
    if (job.node != NULL) {
        kumi_wind_region_free(job.node, job.heap.region);
        kumi_wind_region_free(job.node, job.statics.region);
    } else {
        munmap(job.heap.base, job.heap.bytes);
    }
    free(job.heap.places);
    free(job.statics.places);
    job.heap = job.statics = (struct segment){0};
}

static bool contains(const struct segment *segment, size_t begin, const void *at, size_t bytes)
{
    size_t offset = (size_t)((const char *)at - segment->base);
    return (const char *)at >= segment->base + begin && offset <= segment->bytes &&
           bytes <= segment->bytes - offset;
}

bool is_symmetric(const void *at, size_t bytes)
{
    return contains(&job.heap, job.own_bytes, at, bytes) || contains(&job.statics, 0, at, bytes);
}

struct kumi_wind_place place_of(const char *call, const void *at, size_t bytes, int pe)
{
    const struct segment *segment;
    if (contains(&job.heap, job.own_bytes, at, bytes))
        segment = &job.heap;
    else if (contains(&job.statics, 0, at, bytes))
        segment = &job.statics;
    else
        fail(
            call,
            "%zu bytes at %p are not symmetric: expected memory of shmem_malloc, or a static variable of the program",
            bytes, at);
    struct kumi_wind_place place = segment->places[pe];
    place.offset += (uint64_t)((const char *)at - segment->base);
    return place;
}

struct kumi_wind_place own_place(size_t offset, int pe)
{
    if (job.heap.places == NULL)
        return (struct kumi_wind_place){0};
    struct kumi_wind_place place = job.heap.places[pe];
    place.offset += offset;
    return place;
}
