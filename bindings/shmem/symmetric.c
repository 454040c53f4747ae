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

/* Time in which all PEs send their places, in ms. */
enum { PLACES_LIMIT_MS = 60000 };

/* First message of a PE to each other one. */
struct introduction {
    uint64_t magic;
    int32_t pe;
    int32_t count;
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

void create_segments(size_t own_bytes, size_t heap_bytes)
{
    char error[256] = "";
    job.heap =
        (struct segment){.bytes = own_bytes + ((heap_bytes + 4095) & ~(size_t)4095), .places = new_places()};
    job.statics = (struct segment){.places = new_places()};
    dl_iterate_phdr(find_statics, &job.statics);
    if (job.node == NULL) {
        job.heap.base = mmap(NULL, job.heap.bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (job.heap.base == MAP_FAILED)
            fail("shmem_init", "cannot map a heap of %zu bytes: %m", job.heap.bytes);
        return;
    }
    job.heap.region =
        kumi_wind_region_new(job.node, job.heap.bytes, &job.heap.places[job.me], error, sizeof error);
    if (job.heap.region == NULL)
        fail("shmem_init", "cannot create a heap of %zu bytes: %s", job.heap.bytes, error);
    job.heap.base = kumi_wind_region_memory(job.heap.region);
    if (job.statics.bytes == 0)
        return;
    uint8_t secret[KUMI_WIND_SECRET_BYTES];
    kumi_ranks_secret(job.ranks, secret);
    struct kumi_wind_place *place = &job.statics.places[job.me];
    place->region = STATICS_REGION;
    kumi_wind_region_key(secret, STATICS_REGION, place->key);
    explicit_bzero(secret, sizeof secret);
    job.statics.region =
        kumi_wind_region_borrow(job.node, job.statics.base, job.statics.bytes, place, error, sizeof error);
    if (job.statics.region == NULL)
        fail("shmem_init", "cannot register the static variables: %s", error);
}

/* Compares a PE with this one, and notes its places. */
static void introduce(const struct introduction *other, const struct introduction *own)
{
    static const char *call = "shmem_init";
    if (other->heap_bytes != own->heap_bytes)
        fail(
            call,
            "PE %d has a heap of %llu bytes and this one of %llu: expected the same SHMEM_SYMMETRIC_SIZE on all PEs",
            other->pe, (unsigned long long)(other->heap_bytes - other->own_bytes),
            (unsigned long long)(own->heap_bytes - own->own_bytes));
    if (other->statics_bytes != own->statics_bytes)
        fail(call, "PE %d runs another program: its static variables have %llu bytes, those of this one %llu",
             other->pe, (unsigned long long)other->statics_bytes, (unsigned long long)own->statics_bytes);
    job.heap.places[other->pe] = other->heap;
    job.statics.places[other->pe] = other->statics;
}

void exchange_segments(void)
{
    static const char *call = "shmem_init";
    char error[256];
    struct introduction own = {
        .magic = MAGIC,
        .pe = job.me,
        .count = job.count,
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
    bool *is_known = calloc((size_t)job.count, sizeof *is_known);
    int64_t limit_ns = now_ns() + PLACES_LIMIT_MS * 1000000ll;
    for (int known = 1; known < job.count;) {
        int64_t left_ms = (limit_ns - now_ns()) / 1000000;
        /* In parts, to notice a PE that is lost. */
        struct kumi_wind_message *message = kumi_wind_receive(job.node, left_ms < 300 ? left_ms : 300);
        if (message == NULL) {
            for (int pe = 0; pe < job.count; pe++) {
                if (pe == job.me || is_known[pe])
                    continue;
                int outcome = kumi_wind_check(job.node, job.peers[pe], error, sizeof error);
                check(call, pe, outcome == KUMI_WIND_LOST ? outcome : KUMI_WIND_DONE, error);
                if (left_ms <= 0)
                    fail(call, "PE %d did not start within %d s", pe, PLACES_LIMIT_MS / 1000);
            }
            continue;
        }
        struct introduction other;
        if (message->data_bytes == sizeof other) {
            memcpy(&other, message->data, sizeof other);
            bool is_valid =
                other.magic == MAGIC && other.pe >= 0 && other.pe < job.count && other.pe != job.me;
            if (is_valid && !is_known[other.pe]) {
                introduce(&other, &own);
                is_known[other.pe] = true;
                known++;
            }
        }
        kumi_wind_message_free(message);
    }
    free(is_known);
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
