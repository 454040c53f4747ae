/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Collectives (9.9). Short ones go by letters, in ⌈log₂ n⌉ rounds. For long ones each member puts
 * its part to where it belongs, and a synchronisation says that it is there: the memory of all
 * members is ready when they call, as the specification demands.
 */
#include "collectives.h"

#include <stdlib.h>
#include <string.h>

static size_t smaller(size_t one, size_t other)
{
    return one < other ? one : other;
}

/*
 * Sends bytes to member me + 2^round, and receives as many from me - 2^round, in as many letters as
 * needed.
 */
static void exchange(const char *call, const struct kumi_shmem_team *team, int round, const char *out,
                     char *in, size_t bytes)
{
    size_t at_once = letter_bytes_max(team), sent = 0;
    for (size_t got = 0; got < bytes; got += smaller(at_once, bytes - got)) {
        /* As many letters are in flight as the ring holds. */
        for (; sent < bytes && sent < got + LETTERS_AHEAD * at_once; sent += smaller(at_once, bytes - sent))
            send_letter(call, team, round, out + sent, smaller(at_once, bytes - sent));
        receive_letter(call, team, round, in + got, smaller(at_once, bytes - got));
    }
}

/* In each round a member has the blocks of twice as many members before it (Bruck's algorithm). */
void gather_all(const char *call, const struct kumi_shmem_team *team, void *all, const void *mine,
                size_t bytes)
{
    size_t count = (size_t)team->count;
    /* Blocks of this member, the one before it, and so on. */
    char *blocks = malloc(count * bytes + 1);
    memcpy(blocks, mine, bytes);
    for (int round = 0; 1ull << round < count; round++) {
        size_t have = 1ull << round;
        exchange(call, team, round, blocks, blocks + have * bytes, smaller(have, count - have) * bytes);
    }
    for (size_t back = 0; back < count; back++)
        memcpy((char *)all + ((size_t)team->me + count - back) % count * bytes, blocks + back * bytes, bytes);
    free(blocks);
}

void put_to(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
            size_t bytes, int member)
{
    put(call, &collective_context, dest, source, bytes, team_pe(team, member));
}

void complete_puts(const char *call)
{
    quiet(call, &collective_context);
}

/* Passes bytes on from the root along a binomial tree, in letters. */
static void pass_on(const char *call, const struct kumi_shmem_team *team, char *data, size_t bytes, int root)
{
    int distance = (team->me - root + team->count) % team->count;
    int first = 0;
    while (1ll << first <= distance)
        first++;
    size_t at_once = letter_bytes_max(team), at = 0;
    do {
        size_t part = smaller(at_once, bytes - at);
        if (distance > 0)
            receive_letter(call, team, first - 1, data + at, part);
        for (int round = first; distance + (1ll << round) < team->count; round++)
            send_letter(call, team, round, data + at, part);
        at += part;
    } while (at < bytes);
}

/* Puts the root's data to all other members. */
static void put_to_all(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
                       size_t bytes)
{
    char error[256];
    size_t count = 0;
    uint32_t *peers = malloc(sizeof *peers * (size_t)team->count);
    struct kumi_wind_place *places = malloc(sizeof *places * (size_t)team->count);
    for (int next = 1; next < team->count; next++, count++) {
        int pe = team_pe(team, (team->me + next) % team->count);
        peers[count] = job.peers[pe];
        places[count] = place_of(call, dest, bytes, pe);
    }
    int outcome = kumi_wind_put_to_all(job.node, peers, places, count, source, bytes, error, sizeof error);
    if (outcome != KUMI_WIND_DONE)
        fail(call, "%s", error);
    free(peers);
    free(places);
}

static void broadcast(const char *call, const struct kumi_shmem_team *team, void *dest, const void *source,
                      size_t bytes, int root)
{
    if (root < 0 || root >= team->count)
        fail(call, "root %d: expected 0 to %d", root, team->count - 1);
    if (team->count == 1 || bytes == 0)
        return;
    bool is_root = team->me == root;
    if (bytes <= LETTERS_BYTES_MAX) {
        pass_on(call, team, is_root ? (char *)(uintptr_t)source : dest, bytes, root);
        return;
    }
    if (is_root)
        put_to_all(call, team, dest, source, bytes);
    /* Says that the bytes are there. */
    pass_on(call, team, NULL, 0, root);
}

static void fcollect(const char *call, const struct kumi_shmem_team *team, char *dest, const void *source,
                     size_t bytes)
{
    if (bytes == 0)
        return;
    if ((size_t)team->count * bytes <= LETTERS_BYTES_MAX) {
        gather_all(call, team, dest, source, bytes);
        return;
    }
    char *place = dest + (size_t)team->me * bytes;
    for (int next = 1; next < team->count; next++)
        put_to(call, team, place, source, bytes, (team->me + next) % team->count);
    memmove(place, source, bytes);
    complete_puts(call);
    team_sync(call, team);
}

static void collect(const char *call, const struct kumi_shmem_team *team, char *dest, const void *source,
                    size_t bytes)
{
    size_t *sizes = malloc(sizeof *sizes * (size_t)team->count);
    gather_all(call, team, sizes, &bytes, sizeof bytes);
    size_t before = 0, total = 0;
    for (int member = 0; member < team->count; member++) {
        before += member < team->me ? sizes[member] : 0;
        total += sizes[member];
    }
    free(sizes);
    if (total == 0)
        return;
    for (int next = 1; next < team->count; next++)
        put_to(call, team, dest + before, source, bytes, (team->me + next) % team->count);
    if (bytes > 0)
        memmove(dest + before, source, bytes);
    complete_puts(call);
    team_sync(call, team);
}

/*
 * Short blocks to all members travel together: a block for the member that is d further goes by the
 * rounds whose bits are set in d (Bruck's algorithm).
 */
static void alltoall_short(const char *call, const struct kumi_shmem_team *team, char *dest,
                           const char *source, size_t bytes)
{
    size_t count = (size_t)team->count, me = (size_t)team->me;
    /* Blocks by the distance that they go, and those of one round. */
    char *blocks = malloc(3 * count * bytes), *out = blocks + count * bytes, *in = out + count * bytes;
    for (size_t distance = 0; distance < count; distance++)
        memcpy(blocks + distance * bytes, source + (me + distance) % count * bytes, bytes);
    for (int round = 0; 1ull << round < count; round++) {
        size_t moved = 0;
        for (size_t distance = 0; distance < count; distance++)
            if (distance >> round & 1)
                memcpy(out + moved++ * bytes, blocks + distance * bytes, bytes);
        exchange(call, team, round, out, in, moved * bytes);
        moved = 0;
        for (size_t distance = 0; distance < count; distance++)
            if (distance >> round & 1)
                memcpy(blocks + distance * bytes, in + moved++ * bytes, bytes);
    }
    for (size_t distance = 0; distance < count; distance++)
        memcpy(dest + (me + count - distance) % count * bytes, blocks + distance * bytes, bytes);
    free(blocks);
}

static void alltoall(const char *call, const struct kumi_shmem_team *team, char *dest, const char *source,
                     size_t bytes)
{
    if (bytes == 0)
        return;
    if ((size_t)(team->count + 1) / 2 * bytes <= letter_bytes_max(team)) {
        alltoall_short(call, team, dest, source, bytes);
        return;
    }
    char *place = dest + (size_t)team->me * bytes;
    for (int next = 1; next < team->count; next++) {
        int member = (team->me + next) % team->count;
        put_to(call, team, place, source + (size_t)member * bytes, bytes, member);
    }
    memmove(place, source + (size_t)team->me * bytes, bytes);
    complete_puts(call);
    team_sync(call, team);
}

/* Strides are in elements of `bytes` bytes. */
static void alltoalls(const char *call, const struct kumi_shmem_team *team, char *dest, const char *source,
                      ptrdiff_t dst, ptrdiff_t sst, size_t nelems, size_t bytes)
{
    if (nelems == 0)
        return;
    char *packed = malloc(nelems * bytes);
    for (int next = 0; next < team->count; next++) {
        int member = (team->me + next) % team->count;
        const char *from = source + (ptrdiff_t)((size_t)member * nelems * bytes) * sst;
        char *to = dest + (ptrdiff_t)((size_t)team->me * nelems * bytes) * dst;
        for (size_t at = 0; at < nelems; at++)
            memcpy(packed + at * bytes, from + (ptrdiff_t)(at * bytes) * sst, bytes);
        if (dst == 1) {
            put_to(call, team, to, packed, nelems * bytes, member);
            continue;
        }
        for (size_t at = 0; at < nelems; at++)
            put_to(call, team, to + (ptrdiff_t)(at * bytes) * dst, packed + at * bytes, bytes, member);
    }
    free(packed);
    complete_puts(call);
    team_sync(call, team);
}

PUBLIC int shmem_team_sync(shmem_team_t team)
{
    if (team == SHMEM_TEAM_INVALID)
        return -1;
    team_sync("shmem_team_sync", team_of("shmem_team_sync", team));
    return 0;
}

PUBLIC void shmem_sync_all(void)
{
    team_sync("shmem_sync_all", team_of("shmem_sync_all", SHMEM_TEAM_WORLD));
}

PUBLIC void shmem_barrier_all(void)
{
    static const char *call = "shmem_barrier_all";
    quiet(call, context_of(call, SHMEM_CTX_DEFAULT));
    team_sync(call, team_of(call, SHMEM_TEAM_WORLD));
}

#define DEFINE_COLLECTIVES(NAME, SUFFIX, TYPE, BYTES)                                                      \
    PUBLIC int shmem_##NAME##alltoall##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source,           \
                                              size_t nelems)                                               \
    {                                                                                                      \
        static const char *call = "shmem_" #NAME "alltoall" #SUFFIX;                                       \
        alltoall(call, team_of(call, team), (char *)dest, (const char *)source, nelems *BYTES);            \
        return 0;                                                                                          \
    }                                                                                                      \
    PUBLIC int shmem_##NAME##alltoalls##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source,          \
                                               ptrdiff_t dst, ptrdiff_t sst, size_t nelems)                \
    {                                                                                                      \
        static const char *call = "shmem_" #NAME "alltoalls" #SUFFIX;                                      \
        alltoalls(call, team_of(call, team), (char *)dest, (const char *)source, dst, sst, nelems, BYTES); \
        return 0;                                                                                          \
    }                                                                                                      \
    PUBLIC int shmem_##NAME##broadcast##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source,          \
                                               size_t nelems, int PE_root)                                 \
    {                                                                                                      \
        static const char *call = "shmem_" #NAME "broadcast" #SUFFIX;                                      \
        const struct kumi_shmem_team *members = team_of(call, team);                                       \
        broadcast(call, members, dest, source, nelems *BYTES, PE_root);                                    \
        if (members->me == PE_root && nelems > 0)                                                          \
            memmove(dest, source, nelems *BYTES);                                                          \
        return 0;                                                                                          \
    }                                                                                                      \
    PUBLIC int shmem_##NAME##collect##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source,            \
                                             size_t nelems)                                                \
    {                                                                                                      \
        static const char *call = "shmem_" #NAME "collect" #SUFFIX;                                        \
        collect(call, team_of(call, team), (char *)dest, source, nelems *BYTES);                           \
        return 0;                                                                                          \
    }                                                                                                      \
    PUBLIC int shmem_##NAME##fcollect##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source,           \
                                              size_t nelems)                                               \
    {                                                                                                      \
        static const char *call = "shmem_" #NAME "fcollect" #SUFFIX;                                       \
        fcollect(call, team_of(call, team), (char *)dest, source, nelems *BYTES);                          \
        return 0;                                                                                          \
    }
#define DEFINE_TYPED_COLLECTIVES(NAME, TYPE, ...) DEFINE_COLLECTIVES(NAME##_, , TYPE, sizeof(TYPE))
KUMI_SHMEM_RMA_TYPES(DEFINE_TYPED_COLLECTIVES, )
DEFINE_COLLECTIVES(, mem, void, 1)

/* --- Active sets --- */

struct kumi_shmem_team active_set(const char *call, int start, int log_stride, int size)
{
    check_started(call);
    long long stride = log_stride >= 0 && log_stride < 31 ? 1ll << log_stride : 0;
    if (start < 0 || stride == 0 || size < 1 || start + (size - 1) * stride >= job.count)
        fail(call, "active set of %d PEs from PE %d with log stride %d: expected PEs 0 to %d", size, start,
             log_stride, job.count - 1);
    struct kumi_shmem_team team = {.start = start, .stride = (int)stride, .count = size, .index = ACTIVE_SET};
    team.me = team_member(&team, job.me);
    if (team.me < 0)
        fail(call, "this PE is not in the active set of %d PEs from PE %d with log stride %d", size, start,
             log_stride);
    return team;
}

PUBLIC void(shmem_sync)(int PE_start, int logPE_stride, int PE_size, long *pSync)
{
    (void)pSync;
    struct kumi_shmem_team team = active_set("shmem_sync", PE_start, logPE_stride, PE_size);
    team_sync("shmem_sync", &team);
}

PUBLIC void shmem_barrier(int PE_start, int logPE_stride, int PE_size, long *pSync)
{
    static const char *call = "shmem_barrier";
    (void)pSync;
    struct kumi_shmem_team team = active_set(call, PE_start, logPE_stride, PE_size);
    quiet(call, context_of(call, SHMEM_CTX_DEFAULT));
    team_sync(call, &team);
}

#define DEFINE_ACTIVE_SET(BITS, BYTES)                                                                      \
    PUBLIC void shmem_alltoall##BITS(void *dest, const void *source, size_t nelems, int PE_start,           \
                                     int logPE_stride, int PE_size, long *pSync)                            \
    {                                                                                                       \
        (void)pSync;                                                                                        \
        struct kumi_shmem_team team = active_set("shmem_alltoall" #BITS, PE_start, logPE_stride, PE_size);  \
        alltoall("shmem_alltoall" #BITS, &team, dest, source, nelems *BYTES);                               \
    }                                                                                                       \
    PUBLIC void shmem_alltoalls##BITS(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst,         \
                                      size_t nelems, int PE_start, int logPE_stride, int PE_size,           \
                                      long *pSync)                                                          \
    {                                                                                                       \
        (void)pSync;                                                                                        \
        struct kumi_shmem_team team = active_set("shmem_alltoalls" #BITS, PE_start, logPE_stride, PE_size); \
        alltoalls("shmem_alltoalls" #BITS, &team, dest, source, dst, sst, nelems, BYTES);                   \
    }                                                                                                       \
    PUBLIC void shmem_broadcast##BITS(void *dest, const void *source, size_t nelems, int PE_root,           \
                                      int PE_start, int logPE_stride, int PE_size, long *pSync)             \
    {                                                                                                       \
        (void)pSync;                                                                                        \
        struct kumi_shmem_team team = active_set("shmem_broadcast" #BITS, PE_start, logPE_stride, PE_size); \
        broadcast("shmem_broadcast" #BITS, &team, dest, source, nelems *BYTES, PE_root);                    \
    }                                                                                                       \
    PUBLIC void shmem_collect##BITS(void *dest, const void *source, size_t nelems, int PE_start,            \
                                    int logPE_stride, int PE_size, long *pSync)                             \
    {                                                                                                       \
        (void)pSync;                                                                                        \
        struct kumi_shmem_team team = active_set("shmem_collect" #BITS, PE_start, logPE_stride, PE_size);   \
        collect("shmem_collect" #BITS, &team, dest, source, nelems *BYTES);                                 \
    }                                                                                                       \
    PUBLIC void shmem_fcollect##BITS(void *dest, const void *source, size_t nelems, int PE_start,           \
                                     int logPE_stride, int PE_size, long *pSync)                            \
    {                                                                                                       \
        (void)pSync;                                                                                        \
        struct kumi_shmem_team team = active_set("shmem_fcollect" #BITS, PE_start, logPE_stride, PE_size);  \
        fcollect("shmem_fcollect" #BITS, &team, dest, source, nelems *BYTES);                               \
    }
DEFINE_ACTIVE_SET(32, 4)
DEFINE_ACTIVE_SET(64, 8)
