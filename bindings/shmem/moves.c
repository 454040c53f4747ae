/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Puts and gets (9.6), and puts with a signal (9.8), of each type and size. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "context.h"

/* A get of elements with gaps of up to this many bytes gets the gaps as well. */
enum { GAP_BYTES_MAX = 64 };

/* Most bytes of such a get, with gaps. */
enum { STRIDED_BYTES_MAX = 64 << 10 };

static void put_signal(const char *call, struct kumi_shmem_context *context, void *dest, const void *source,
                       size_t bytes, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe)
{
    char error[256];
    if (sig_op != SHMEM_SIGNAL_SET && sig_op != SHMEM_SIGNAL_ADD)
        fail(call, "unknown signal operation %d: expected SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD", sig_op);
    put(call, context, dest, source, bytes, pe);
    if (pe == job.me || sig_op == SHMEM_SIGNAL_ADD) {
        /* The signal comes after the data. */
        if (pe != job.me)
            quiet_pe(call, context, pe);
        enum word_operation operation = sig_op == SHMEM_SIGNAL_ADD ? WORD_ADD : WORD_SET;
        word_post(call, context, operation, sig_addr, sizeof *sig_addr, signal, pe);
        return;
    }
    /* An ordered message is placed after all operations before it, without a wait here. */
    struct kumi_wind_place place = place_of(call, sig_addr, sizeof *sig_addr, pe);
    mark_dirty(context, pe);
    check(call, pe,
          kumi_wind_send_to(job.node, job.peers[pe], KUMI_WIND_ORDERED, KUMI_WIND_DIRECT_MAP, &place, NULL, 0,
                            &signal, sizeof signal, error, sizeof error),
          error);
    /* What waits to be sent with others leaves now: the receiver may wait for it. */
    progress();
}

static void iput(const char *call, struct kumi_shmem_context *context, char *dest, const char *source,
                 ptrdiff_t dst, ptrdiff_t sst, size_t bytes, size_t nelems, int pe)
{
    if (dst == 1 && sst == 1) {
        put(call, context, dest, source, bytes * nelems, pe);
        return;
    }
    for (size_t at = 0; at < nelems; at++)
        put(call, context, dest + (ptrdiff_t)(at * bytes) * dst, source + (ptrdiff_t)(at * bytes) * sst,
            bytes, pe);
}

static void iget(const char *call, struct kumi_shmem_context *context, char *dest, const char *source,
                 ptrdiff_t dst, ptrdiff_t sst, size_t bytes, size_t nelems, int pe)
{
    size_t step = bytes * (size_t)(sst < 0 ? 1 : sst);
    if (sst < 1 || step - bytes > GAP_BYTES_MAX || pe == job.me) {
        for (size_t at = 0; at < nelems; at++)
            get_nbi(call, context, dest + (ptrdiff_t)(at * bytes) * dst,
                    source + (ptrdiff_t)(at * bytes) * sst, bytes, pe);
        quiet_pe(call, context, pe);
        return;
    }
    /* The gaps between the elements come along. */
    size_t at_once = STRIDED_BYTES_MAX / step + 1;
    char *all = malloc(at_once * step);
    for (size_t begin = 0; begin < nelems; begin += at_once) {
        size_t count = nelems - begin < at_once ? nelems - begin : at_once;
        get(call, all, source + begin * step, (count - 1) * step + bytes, pe);
        for (size_t at = 0; at < count; at++)
            memcpy(dest + (ptrdiff_t)((begin + at) * bytes) * dst, all + at * step, bytes);
    }
    free(all);
}

#define ARGUMENTS(...) __VA_ARGS__

/*
 * A function with a context, and the one with the default context. CALL is the second one's name.
 */
#define WITH_CONTEXT(RESULT, RETURN, BEFORE, FUNCTION, PARAMETERS, BODY, ...) \
    PUBLIC RESULT shmem_ctx_##BEFORE##FUNCTION(shmem_ctx_t ctx, __VA_ARGS__)  \
    {                                                                         \
        static const char *call = "shmem_" #BEFORE #FUNCTION;                 \
        struct kumi_shmem_context *context = context_of(call, ctx);           \
        int to = world_pe(call, context, pe);                                 \
        BODY                                                                  \
    }                                                                         \
    PUBLIC RESULT shmem_##BEFORE##FUNCTION(__VA_ARGS__)                       \
    {                                                                         \
        RETURN shmem_ctx_##BEFORE##FUNCTION(SHMEM_CTX_DEFAULT, PARAMETERS);   \
    }

/* Functions of an element of BYTES bytes. */
#define DEFINE_MOVES(BEFORE, NAME, TYPE, BYTES)                                                         \
    WITH_CONTEXT(void, , BEFORE, put##NAME, ARGUMENTS(dest, source, nelems, pe),                        \
                 put(call, context, dest, source, nelems *BYTES, to);                                   \
                 , TYPE * dest, const TYPE *source, size_t nelems, int pe)                              \
    WITH_CONTEXT(void, , BEFORE, put##NAME##_nbi, ARGUMENTS(dest, source, nelems, pe),                  \
                 put(call, context, dest, source, nelems *BYTES, to);                                   \
                 , TYPE * dest, const TYPE *source, size_t nelems, int pe)                              \
    WITH_CONTEXT(void, , BEFORE, get##NAME, ARGUMENTS(dest, source, nelems, pe), (void)context;         \
                 get(call, dest, source, nelems * BYTES, to);                                           \
                 , TYPE * dest, const TYPE *source, size_t nelems, int pe)                              \
    WITH_CONTEXT(void, , BEFORE, get##NAME##_nbi, ARGUMENTS(dest, source, nelems, pe),                  \
                 get_nbi(call, context, dest, source, nelems *BYTES, to);                               \
                 , TYPE * dest, const TYPE *source, size_t nelems, int pe)                              \
    WITH_CONTEXT(void, , BEFORE, put##NAME##_signal,                                                    \
                 ARGUMENTS(dest, source, nelems, sig_addr, signal, sig_op, pe),                         \
                 put_signal(call, context, dest, source, nelems *BYTES, sig_addr, signal, sig_op, to);  \
                 , TYPE * dest, const TYPE *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, \
                 int sig_op, int pe)                                                                    \
    WITH_CONTEXT(void, , BEFORE, put##NAME##_signal_nbi,                                                \
                 ARGUMENTS(dest, source, nelems, sig_addr, signal, sig_op, pe),                         \
                 put_signal(call, context, dest, source, nelems *BYTES, sig_addr, signal, sig_op, to);  \
                 , TYPE * dest, const TYPE *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, \
                 int sig_op, int pe)
#define DEFINE_STRIDED(BEFORE, NAME, TYPE, BYTES)                                                        \
    WITH_CONTEXT(void, , BEFORE, iput##NAME, ARGUMENTS(dest, source, dst, sst, nelems, pe),              \
                 iput(call, context, (char *)dest, (const char *)source, dst, sst, BYTES, nelems, to);   \
                 , TYPE * dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe) \
    WITH_CONTEXT(void, , BEFORE, iget##NAME, ARGUMENTS(dest, source, dst, sst, nelems, pe),              \
                 iget(call, context, (char *)dest, (const char *)source, dst, sst, BYTES, nelems, to);   \
                 , TYPE * dest, const TYPE *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe)

#define DEFINE_RMA(NAME, TYPE, ...)                                                          \
    DEFINE_MOVES(NAME##_, , TYPE, sizeof(TYPE))                                              \
    DEFINE_STRIDED(NAME##_, , TYPE, sizeof(TYPE))                                            \
    WITH_CONTEXT(void, , NAME##_, p, ARGUMENTS(dest, value, pe),                             \
                 put(call, context, dest, &value, sizeof value, to);                         \
                 , TYPE * dest, TYPE value, int pe)                                          \
    WITH_CONTEXT(TYPE, return, NAME##_, g, ARGUMENTS(source, pe), (void)context; TYPE value; \
                 get(call, &value, source, sizeof value, to); return value;, const TYPE *source, int pe)
KUMI_SHMEM_RMA_TYPES(DEFINE_RMA, )

#define DEFINE_SIZED(BITS, BYTES, ...) \
    DEFINE_MOVES(, BITS, void, BYTES)  \
    DEFINE_STRIDED(, BITS, void, BYTES)
KUMI_SHMEM_SIZES(DEFINE_SIZED, )
DEFINE_MOVES(, mem, void, 1)
