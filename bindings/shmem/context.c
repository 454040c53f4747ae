/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Contexts, and moves of bytes. A put is sent at once, from a copy of its data, and nothing waits
 * for it. A context notes the PEs to which something is in flight, and quiet waits for these.
 */
#include "context.h"

#include <stdlib.h>
#include <string.h>

static struct kumi_shmem_context default_context;
struct kumi_shmem_context collective_context;

/* Longest get whose parts are all requested before the first one is taken. */
enum { GET_AT_ONCE_MAX = 256 << 10 };

static void start(struct kumi_shmem_context *context, struct kumi_shmem_team *team, long options)
{
    *context = (struct kumi_shmem_context){.team = team, .options = options};
    pthread_mutex_init(&context->lock, NULL);
    context->is_dirty = calloc((size_t)job.count, sizeof *context->is_dirty);
}

void contexts_start(void)
{
    /* The team that the library has, before it is initialised. */
    job.is_started = true;
    struct kumi_shmem_team *world = team_of("shmem_init", SHMEM_TEAM_WORLD);
    start(&default_context, world, 0);
    start(&collective_context, world, 0);
    job.is_started = false;
}

struct kumi_shmem_context *context_of(const char *call, shmem_ctx_t handle)
{
    check_started(call);
    if (handle == SHMEM_CTX_DEFAULT)
        return &default_context;
    if (handle == SHMEM_CTX_INVALID)
        fail(call, "the context is SHMEM_CTX_INVALID");
    return handle;
}

int world_pe(const char *call, const struct kumi_shmem_context *context, int pe)
{
    if (pe < 0 || pe >= context->team->count)
        fail(call, "PE %d: expected 0 to %d", pe, context->team->count - 1);
    return team_pe(context->team, pe);
}

PUBLIC int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t *ctx)
{
    *ctx = SHMEM_CTX_INVALID;
    if (team == SHMEM_TEAM_INVALID ||
        (options & ~(SHMEM_CTX_SERIALIZED | SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE)) != 0)
        return 1;
    struct kumi_shmem_context *made = malloc(sizeof *made);
    if (made == NULL)
        return 1;
    start(made, team_of("shmem_team_create_ctx", team), options);
    *ctx = made;
    return 0;
}

PUBLIC int shmem_ctx_create(long options, shmem_ctx_t *ctx)
{
    check_started("shmem_ctx_create");
    return shmem_team_create_ctx(SHMEM_TEAM_WORLD, options, ctx);
}

PUBLIC void shmem_ctx_destroy(shmem_ctx_t ctx)
{
    static const char *call = "shmem_ctx_destroy";
    if (ctx == SHMEM_CTX_INVALID)
        return;
    struct kumi_shmem_context *gone = context_of(call, ctx);
    if (gone == &default_context)
        fail(call, "the default context cannot be destroyed");
    quiet(call, gone);
    pthread_mutex_destroy(&gone->lock);
    free(gone->is_dirty);
    free(gone);
}

PUBLIC int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t *team)
{
    *team = SHMEM_TEAM_INVALID;
    if (ctx == SHMEM_CTX_INVALID)
        return 1;
    struct kumi_shmem_team *found = context_of("shmem_ctx_get_team", ctx)->team;
    *team = found == team_of("shmem_ctx_get_team", SHMEM_TEAM_WORLD) ? SHMEM_TEAM_WORLD : found;
    if (found == team_of("shmem_ctx_get_team", SHMEM_TEAM_SHARED))
        *team = SHMEM_TEAM_SHARED;
    return 0;
}

/*
 * Continues the transfers of a context. Returns whether all that go to `pe`, or to any PE, are
 * complete.
 */
static bool continue_pending(const char *call, struct kumi_shmem_context *context, int pe)
{
    char error[256];
    bool is_complete = true;
    pthread_mutex_lock(&context->lock);
    for (struct pending **at = &context->pending; *at != NULL;) {
        struct pending *pending = *at;
        int outcome = KUMI_WIND_BUSY;
        if (pe < 0 || pending->pe == pe)
            outcome = kumi_wind_test(job.node, pending->transfer, error, sizeof error);
        if (outcome == KUMI_WIND_BUSY) {
            is_complete &= pe >= 0 && pending->pe != pe;
            at = &pending->next;
            continue;
        }
        check(call, pending->pe, outcome, error);
        kumi_wind_transfer_free(pending->transfer);
        *at = pending->next;
        free(pending);
    }
    pthread_mutex_unlock(&context->lock);
    return is_complete;
}

void add_pending(const char *call, struct kumi_shmem_context *context, struct kumi_wind_transfer *transfer,
                 int pe)
{
    char error[256];
    /* Its first parts leave now. */
    int outcome = kumi_wind_test(job.node, transfer, error, sizeof error);
    if (outcome != KUMI_WIND_BUSY) {
        check(call, pe, outcome, error);
        kumi_wind_transfer_free(transfer);
        return;
    }
    struct pending *pending = malloc(sizeof *pending);
    *pending = (struct pending){.transfer = transfer, .pe = pe};
    pthread_mutex_lock(&context->lock);
    pending->next = context->pending;
    context->pending = pending;
    pthread_mutex_unlock(&context->lock);
}

static void flush(const char *call, struct kumi_shmem_context *context, int pe)
{
    char error[256];
    if (atomic_exchange(&context->is_dirty[pe], 0))
        check(call, pe, kumi_wind_flush(job.node, job.peers[pe], -1, error, sizeof error), error);
}

void quiet_pe(const char *call, struct kumi_shmem_context *context, int pe)
{
    struct waiting waiting = {.call = call};
    while (context->pending != NULL && !continue_pending(call, context, pe))
        wait_turn(&waiting);
    flush(call, context, pe);
}

void quiet(const char *call, struct kumi_shmem_context *context)
{
    struct waiting waiting = {.call = call};
    while (context->pending != NULL && !continue_pending(call, context, -1))
        wait_turn(&waiting);
    if (atomic_exchange(&context->has_dirty, false))
        for (int pe = 0; pe < job.count; pe++)
            flush(call, context, pe);
    atomic_thread_fence(memory_order_seq_cst);
}

PUBLIC void shmem_ctx_quiet(shmem_ctx_t ctx)
{
    if (ctx != SHMEM_CTX_INVALID)
        quiet("shmem_quiet", context_of("shmem_ctx_quiet", ctx));
}

PUBLIC void shmem_quiet(void)
{
    shmem_ctx_quiet(SHMEM_CTX_DEFAULT);
}

/* Wind executes operations in any order, so what comes before a fence is completed. */
PUBLIC void shmem_ctx_fence(shmem_ctx_t ctx)
{
    if (ctx != SHMEM_CTX_INVALID)
        quiet("shmem_fence", context_of("shmem_ctx_fence", ctx));
}

PUBLIC void shmem_fence(void)
{
    shmem_ctx_fence(SHMEM_CTX_DEFAULT);
}

void put(const char *call, struct kumi_shmem_context *context, void *dest, const void *source, size_t bytes,
         int pe)
{
    char error[256];
    if (bytes == 0)
        return;
    struct kumi_wind_place place = place_of(call, dest, bytes, pe);
    if (pe == job.me) {
        memmove(dest, source, bytes);
        return;
    }
    mark_dirty(context, pe);
    check(call, pe, kumi_wind_post_put(job.node, job.peers[pe], &place, source, bytes, error, sizeof error),
          error);
}

static void complete(const char *call, struct kumi_wind_transfer *transfer, int pe)
{
    char error[256];
    int outcome;
    struct waiting waiting = {.call = call};
    while ((outcome = kumi_wind_test(job.node, transfer, error, sizeof error)) == KUMI_WIND_BUSY)
        wait_turn(&waiting);
    kumi_wind_transfer_free(transfer);
    check(call, pe, outcome, error);
}

void get(const char *call, void *dest, const void *source, size_t bytes, int pe)
{
    char error[256];
    if (bytes == 0)
        return;
    struct kumi_wind_place place = place_of(call, source, bytes, pe);
    if (pe == job.me)
        memmove(dest, source, bytes);
    else if (bytes <= GET_AT_ONCE_MAX)
        check(call, pe, kumi_wind_get(job.node, job.peers[pe], &place, dest, bytes, error, sizeof error),
              error);
    else
        complete(call, kumi_wind_start_get(job.peers[pe], &place, dest, bytes), pe);
}

void get_nbi(const char *call, struct kumi_shmem_context *context, void *dest, const void *source,
             size_t bytes, int pe)
{
    if (bytes == 0)
        return;
    struct kumi_wind_place place = place_of(call, source, bytes, pe);
    if (pe == job.me)
        memmove(dest, source, bytes);
    else
        add_pending(call, context, kumi_wind_start_get(job.peers[pe], &place, dest, bytes), pe);
}
