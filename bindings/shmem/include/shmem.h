/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * OpenSHMEM 1.5 over Wind (libkumishmem.so): the specification describes the functions.
 *
 *    $ kumi-oshcc -o hello hello.c
 *    $ kumi oshrun -n 4 ./hello
 *
 * Symmetric objects are memory of shmem_malloc and the static variables of the program itself;
 * those of shared libraries are not. README.md lists what else differs between implementations.
 */
#ifndef SHMEM_H
#define SHMEM_H

#include <stddef.h>
#include <stdint.h>

#include "shmem_types.h"

#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 5
#define SHMEM_MAX_NAME_LEN 64
#define SHMEM_VENDOR_STRING "Kumihimo"

enum {
    SHMEM_THREAD_SINGLE,
    SHMEM_THREAD_FUNNELED,
    SHMEM_THREAD_SERIALIZED,
    SHMEM_THREAD_MULTIPLE,
};

enum {
    SHMEM_CMP_EQ,
    SHMEM_CMP_NE,
    SHMEM_CMP_GT,
    SHMEM_CMP_GE,
    SHMEM_CMP_LT,
    SHMEM_CMP_LE,
};

enum { SHMEM_SIGNAL_SET, SHMEM_SIGNAL_ADD };

#define SHMEM_CTX_SERIALIZED (1L << 0)
#define SHMEM_CTX_PRIVATE (1L << 1)
#define SHMEM_CTX_NOSTORE (1L << 2)
#define SHMEM_TEAM_NUM_CONTEXTS (1L << 0)
#define SHMEM_MALLOC_ATOMICS_REMOTE (1L << 0)
#define SHMEM_MALLOC_SIGNAL_REMOTE (1L << 1)

/*
 * The library keeps its state elsewhere, so it neither reads nor writes the arrays of these sizes.
 */
#define SHMEM_SYNC_VALUE 0L
#define SHMEM_SYNC_SIZE 1
#define SHMEM_BARRIER_SYNC_SIZE 1
#define SHMEM_BCAST_SYNC_SIZE 1
#define SHMEM_COLLECT_SYNC_SIZE 1
#define SHMEM_REDUCE_SYNC_SIZE 1
#define SHMEM_ALLTOALL_SYNC_SIZE 1
#define SHMEM_ALLTOALLS_SYNC_SIZE 1
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1

/* Deprecated names. */
#define _SHMEM_MAJOR_VERSION SHMEM_MAJOR_VERSION
#define _SHMEM_MINOR_VERSION SHMEM_MINOR_VERSION
#define _SHMEM_MAX_NAME_LEN SHMEM_MAX_NAME_LEN
#define _SHMEM_VENDOR_STRING SHMEM_VENDOR_STRING
#define _SHMEM_CMP_EQ SHMEM_CMP_EQ
#define _SHMEM_CMP_NE SHMEM_CMP_NE
#define _SHMEM_CMP_GT SHMEM_CMP_GT
#define _SHMEM_CMP_GE SHMEM_CMP_GE
#define _SHMEM_CMP_LT SHMEM_CMP_LT
#define _SHMEM_CMP_LE SHMEM_CMP_LE
#define _SHMEM_SYNC_VALUE SHMEM_SYNC_VALUE
#define _SHMEM_SYNC_SIZE SHMEM_SYNC_SIZE
#define _SHMEM_BARRIER_SYNC_SIZE SHMEM_BARRIER_SYNC_SIZE
#define _SHMEM_BCAST_SYNC_SIZE SHMEM_BCAST_SYNC_SIZE
#define _SHMEM_COLLECT_SYNC_SIZE SHMEM_COLLECT_SYNC_SIZE
#define _SHMEM_REDUCE_SYNC_SIZE SHMEM_REDUCE_SYNC_SIZE
#define _SHMEM_REDUCE_MIN_WRKDATA_SIZE SHMEM_REDUCE_MIN_WRKDATA_SIZE

#ifdef __cplusplus
extern "C" {
#endif

__extension__ typedef float _Complex kumi_shmem_float_complex;
__extension__ typedef double _Complex kumi_shmem_double_complex;

typedef struct kumi_shmem_context *shmem_ctx_t;
typedef struct kumi_shmem_team *shmem_team_t;
typedef struct {
    int num_contexts;
} shmem_team_config_t;

#define SHMEM_CTX_INVALID ((shmem_ctx_t)0)
#define SHMEM_CTX_DEFAULT ((shmem_ctx_t)1)
#define SHMEM_TEAM_INVALID ((shmem_team_t)0)
#define SHMEM_TEAM_WORLD ((shmem_team_t)1)
#define SHMEM_TEAM_SHARED ((shmem_team_t)2)

/* --- Set-up and queries (9.1) --- */

void shmem_init(void);
int shmem_my_pe(void);
int shmem_n_pes(void);
void shmem_finalize(void);
void shmem_global_exit(int status);
int shmem_pe_accessible(int pe);
int shmem_addr_accessible(const void *addr, int pe);
void *shmem_ptr(const void *dest, int pe);
void shmem_info_get_version(int *major, int *minor);
void shmem_info_get_name(char *name);
void start_pes(int npes);

/* --- Threads (9.2) --- */

int shmem_init_thread(int requested, int *provided);
void shmem_query_thread(int *provided);

/* --- Memory (9.3) --- */

void *shmem_malloc(size_t size);
void shmem_free(void *ptr);
void *shmem_realloc(void *ptr, size_t size);
void *shmem_align(size_t alignment, size_t size);
void *shmem_malloc_with_hints(size_t size, long hints);
void *shmem_calloc(size_t count, size_t size);

/* --- Teams and contexts (9.4, 9.5) --- */

int shmem_team_my_pe(shmem_team_t team);
int shmem_team_n_pes(shmem_team_t team);
int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t *config);
int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team);
int shmem_team_split_strided(shmem_team_t parent_team, int start, int stride, int size,
                             const shmem_team_config_t *config, long config_mask, shmem_team_t *new_team);
int shmem_team_split_2d(shmem_team_t parent_team, int xrange, const shmem_team_config_t *xaxis_config,
                        long xaxis_mask, shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config,
                        long yaxis_mask, shmem_team_t *yaxis_team);
void shmem_team_destroy(shmem_team_t team);

int shmem_ctx_create(long options, shmem_ctx_t *ctx);
int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t *ctx);
void shmem_ctx_destroy(shmem_ctx_t ctx);
int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t *team);

/* --- Puts and gets (9.6) --- */

#define KUMI_SHMEM_DECLARE_MOVES(CTX_NAME, NAME, TYPE, ...)                                                  \
    void shmem_##CTX_NAME##put##NAME(__VA_ARGS__ TYPE *dest, const TYPE *source, size_t nelems, int pe);     \
    void shmem_##CTX_NAME##get##NAME(__VA_ARGS__ TYPE *dest, const TYPE *source, size_t nelems, int pe);     \
    void shmem_##CTX_NAME##put##NAME##_nbi(__VA_ARGS__ TYPE *dest, const TYPE *source, size_t nelems,        \
                                           int pe);                                                          \
    void shmem_##CTX_NAME##get##NAME##_nbi(__VA_ARGS__ TYPE *dest, const TYPE *source, size_t nelems,        \
                                           int pe);                                                          \
    void shmem_##CTX_NAME##put##NAME##_signal(__VA_ARGS__ TYPE *dest, const TYPE *source, size_t nelems,     \
                                              uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);      \
    void shmem_##CTX_NAME##put##NAME##_signal_nbi(__VA_ARGS__ TYPE *dest, const TYPE *source, size_t nelems, \
                                                  uint64_t *sig_addr, uint64_t signal, int sig_op, int pe);
#define KUMI_SHMEM_DECLARE_STRIDED(CTX_NAME, NAME, TYPE, ...)                                    \
    void shmem_##CTX_NAME##iput##NAME(__VA_ARGS__ TYPE *dest, const TYPE *source, ptrdiff_t dst, \
                                      ptrdiff_t sst, size_t nelems, int pe);                     \
    void shmem_##CTX_NAME##iget##NAME(__VA_ARGS__ TYPE *dest, const TYPE *source, ptrdiff_t dst, \
                                      ptrdiff_t sst, size_t nelems, int pe);

/* Functions with a type in their names: shmem_int_put, and with a context shmem_ctx_int_put. */
#define KUMI_SHMEM_DECLARE_SINGLE(CTX_NAME, TYPE, ...)                     \
    void shmem_##CTX_NAME##_p(__VA_ARGS__ TYPE *dest, TYPE value, int pe); \
    TYPE shmem_##CTX_NAME##_g(__VA_ARGS__ const TYPE *source, int pe);
#define KUMI_SHMEM_DECLARE_RMA(NAME, TYPE, ...)                          \
    KUMI_SHMEM_DECLARE_MOVES(NAME##_, , TYPE)                            \
    KUMI_SHMEM_DECLARE_MOVES(ctx_##NAME##_, , TYPE, shmem_ctx_t ctx, )   \
    KUMI_SHMEM_DECLARE_STRIDED(NAME##_, , TYPE)                          \
    KUMI_SHMEM_DECLARE_STRIDED(ctx_##NAME##_, , TYPE, shmem_ctx_t ctx, ) \
    KUMI_SHMEM_DECLARE_SINGLE(NAME, TYPE)                                \
    KUMI_SHMEM_DECLARE_SINGLE(ctx_##NAME, TYPE, shmem_ctx_t ctx, )
KUMI_SHMEM_RMA_TYPES(KUMI_SHMEM_DECLARE_RMA, )

/* Functions with a size in their names: shmem_put32. */
#define KUMI_SHMEM_DECLARE_SIZED(BITS, BYTES, ...)                \
    KUMI_SHMEM_DECLARE_MOVES(, BITS, void)                        \
    KUMI_SHMEM_DECLARE_MOVES(ctx_, BITS, void, shmem_ctx_t ctx, ) \
    KUMI_SHMEM_DECLARE_STRIDED(, BITS, void)                      \
    KUMI_SHMEM_DECLARE_STRIDED(ctx_, BITS, void, shmem_ctx_t ctx, )
KUMI_SHMEM_SIZES(KUMI_SHMEM_DECLARE_SIZED, )
KUMI_SHMEM_DECLARE_MOVES(, mem, void)
KUMI_SHMEM_DECLARE_MOVES(ctx_, mem, void, shmem_ctx_t ctx, )

/* --- Atomic operations (9.7) --- */

#define KUMI_SHMEM_DECLARE_FETCH_SET(NAME, TYPE, ...)                                   \
    TYPE shmem_##NAME##_fetch(__VA_ARGS__ const TYPE *source, int pe);                  \
    void shmem_##NAME##_set(__VA_ARGS__ TYPE *dest, TYPE value, int pe);                \
    TYPE shmem_##NAME##_swap(__VA_ARGS__ TYPE *dest, TYPE value, int pe);               \
    void shmem_##NAME##_fetch_nbi(__VA_ARGS__ TYPE *fetch, const TYPE *source, int pe); \
    void shmem_##NAME##_swap_nbi(__VA_ARGS__ TYPE *fetch, TYPE *dest, TYPE value, int pe);
#define KUMI_SHMEM_DECLARE_ARITHMETIC(NAME, TYPE, ...)                                               \
    TYPE shmem_##NAME##_compare_swap(__VA_ARGS__ TYPE *dest, TYPE cond, TYPE value, int pe);         \
    TYPE shmem_##NAME##_fetch_inc(__VA_ARGS__ TYPE *dest, int pe);                                   \
    void shmem_##NAME##_inc(__VA_ARGS__ TYPE *dest, int pe);                                         \
    TYPE shmem_##NAME##_fetch_add(__VA_ARGS__ TYPE *dest, TYPE value, int pe);                       \
    void shmem_##NAME##_add(__VA_ARGS__ TYPE *dest, TYPE value, int pe);                             \
    void shmem_##NAME##_compare_swap_nbi(__VA_ARGS__ TYPE *fetch, TYPE *dest, TYPE cond, TYPE value, \
                                         int pe);                                                    \
    void shmem_##NAME##_fetch_inc_nbi(__VA_ARGS__ TYPE *fetch, TYPE *dest, int pe);                  \
    void shmem_##NAME##_fetch_add_nbi(__VA_ARGS__ TYPE *fetch, TYPE *dest, TYPE value, int pe);
#define KUMI_SHMEM_DECLARE_BITWISE_ONE(NAME, OPERATION, TYPE, ...)                     \
    TYPE shmem_##NAME##_fetch_##OPERATION(__VA_ARGS__ TYPE *dest, TYPE value, int pe); \
    void shmem_##NAME##_##OPERATION(__VA_ARGS__ TYPE *dest, TYPE value, int pe);       \
    void shmem_##NAME##_fetch_##OPERATION##_nbi(__VA_ARGS__ TYPE *fetch, TYPE *dest, TYPE value, int pe);
#define KUMI_SHMEM_DECLARE_BITWISE(NAME, ...)              \
    KUMI_SHMEM_DECLARE_BITWISE_ONE(NAME, and, __VA_ARGS__) \
    KUMI_SHMEM_DECLARE_BITWISE_ONE(NAME, or, __VA_ARGS__)  \
    KUMI_SHMEM_DECLARE_BITWISE_ONE(NAME, xor, __VA_ARGS__)
#define KUMI_SHMEM_DECLARE_BOTH(NAME, TYPE, DECLARE) \
    DECLARE(NAME##_atomic, TYPE)                     \
    DECLARE(ctx_##NAME##_atomic, TYPE, shmem_ctx_t ctx, )
KUMI_SHMEM_EXTENDED_AMO_TYPES(KUMI_SHMEM_DECLARE_BOTH, KUMI_SHMEM_DECLARE_FETCH_SET)
KUMI_SHMEM_AMO_TYPES(KUMI_SHMEM_DECLARE_BOTH, KUMI_SHMEM_DECLARE_ARITHMETIC)
KUMI_SHMEM_BITWISE_AMO_TYPES(KUMI_SHMEM_DECLARE_BOTH, KUMI_SHMEM_DECLARE_BITWISE)

/* Deprecated names. */
#define KUMI_SHMEM_DECLARE_OLD_FETCH_SET(NAME, TYPE, ...)    \
    TYPE shmem_##NAME##_fetch(const TYPE *source, int pe);   \
    void shmem_##NAME##_set(TYPE *dest, TYPE value, int pe); \
    TYPE shmem_##NAME##_swap(TYPE *dest, TYPE value, int pe);
#define KUMI_SHMEM_DECLARE_OLD_ARITHMETIC(NAME, TYPE, ...)                \
    TYPE shmem_##NAME##_cswap(TYPE *dest, TYPE cond, TYPE value, int pe); \
    TYPE shmem_##NAME##_finc(TYPE *dest, int pe);                         \
    void shmem_##NAME##_inc(TYPE *dest, int pe);                          \
    TYPE shmem_##NAME##_fadd(TYPE *dest, TYPE value, int pe);             \
    void shmem_##NAME##_add(TYPE *dest, TYPE value, int pe);
#define KUMI_SHMEM_OLD_AMO_TYPES(X, ...) \
    X(int, int, __VA_ARGS__)             \
    X(long, long, __VA_ARGS__)           \
    X(longlong, long long, __VA_ARGS__)
KUMI_SHMEM_OLD_AMO_TYPES(KUMI_SHMEM_DECLARE_OLD_FETCH_SET, )
KUMI_SHMEM_DECLARE_OLD_FETCH_SET(float, float)
KUMI_SHMEM_DECLARE_OLD_FETCH_SET(double, double)
KUMI_SHMEM_OLD_AMO_TYPES(KUMI_SHMEM_DECLARE_OLD_ARITHMETIC, )

/* --- Signals (9.8) --- */

uint64_t shmem_signal_fetch(const uint64_t *sig_addr);
uint64_t shmem_signal_wait_until(uint64_t *sig_addr, int cmp, uint64_t cmp_value);

/* --- Collectives (9.9) --- */

void shmem_barrier_all(void);
void shmem_sync_all(void);
int shmem_team_sync(shmem_team_t team);

#define KUMI_SHMEM_DECLARE_COLLECTIVES(NAME, SUFFIX, TYPE)                                                \
    int shmem_##NAME##alltoall##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems); \
    int shmem_##NAME##alltoalls##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source, ptrdiff_t dst, \
                                        ptrdiff_t sst, size_t nelems);                                    \
    int shmem_##NAME##broadcast##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems, \
                                        int PE_root);                                                     \
    int shmem_##NAME##collect##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems);  \
    int shmem_##NAME##fcollect##SUFFIX(shmem_team_t team, TYPE *dest, const TYPE *source, size_t nelems);
#define KUMI_SHMEM_DECLARE_TYPED_COLLECTIVES(NAME, TYPE, ...) KUMI_SHMEM_DECLARE_COLLECTIVES(NAME##_, , TYPE)
KUMI_SHMEM_RMA_TYPES(KUMI_SHMEM_DECLARE_TYPED_COLLECTIVES, )
KUMI_SHMEM_DECLARE_COLLECTIVES(, mem, void)

#define KUMI_SHMEM_DECLARE_REDUCE(NAME, TYPE, OPERATION)                                       \
    int shmem_##NAME##_##OPERATION##_reduce(shmem_team_t team, TYPE *dest, const TYPE *source, \
                                            size_t nreduce);
#define KUMI_SHMEM_BITWISE_REDUCTIONS(X)    \
    KUMI_SHMEM_BITWISE_REDUCE_TYPES(X, and) \
    KUMI_SHMEM_BITWISE_REDUCE_TYPES(X, or)  \
    KUMI_SHMEM_BITWISE_REDUCE_TYPES(X, xor)
#define KUMI_SHMEM_ORDERED_REDUCTIONS(X)    \
    KUMI_SHMEM_ORDERED_REDUCE_TYPES(X, min) \
    KUMI_SHMEM_ORDERED_REDUCE_TYPES(X, max)
#define KUMI_SHMEM_ARITHMETIC_REDUCTIONS(X)  \
    KUMI_SHMEM_ORDERED_REDUCE_TYPES(X, sum)  \
    KUMI_SHMEM_ORDERED_REDUCE_TYPES(X, prod) \
    KUMI_SHMEM_COMPLEX_TYPES(X, sum)         \
    KUMI_SHMEM_COMPLEX_TYPES(X, prod)
KUMI_SHMEM_BITWISE_REDUCTIONS(KUMI_SHMEM_DECLARE_REDUCE)
KUMI_SHMEM_ORDERED_REDUCTIONS(KUMI_SHMEM_DECLARE_REDUCE)
KUMI_SHMEM_ARITHMETIC_REDUCTIONS(KUMI_SHMEM_DECLARE_REDUCE)

/* Deprecated: active sets. */
void shmem_barrier(int PE_start, int logPE_stride, int PE_size, long *pSync);
void shmem_sync(int PE_start, int logPE_stride, int PE_size, long *pSync);
#define KUMI_SHMEM_DECLARE_ACTIVE_SET(BITS)                                                                  \
    void shmem_alltoall##BITS(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, \
                              int PE_size, long *pSync);                                                     \
    void shmem_alltoalls##BITS(void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems,  \
                               int PE_start, int logPE_stride, int PE_size, long *pSync);                    \
    void shmem_broadcast##BITS(void *dest, const void *source, size_t nelems, int PE_root, int PE_start,     \
                               int logPE_stride, int PE_size, long *pSync);                                  \
    void shmem_collect##BITS(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride,  \
                             int PE_size, long *pSync);                                                      \
    void shmem_fcollect##BITS(void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, \
                              int PE_size, long *pSync);
KUMI_SHMEM_DECLARE_ACTIVE_SET(32)
KUMI_SHMEM_DECLARE_ACTIVE_SET(64)

#define KUMI_SHMEM_DECLARE_TO_ALL(NAME, TYPE, OPERATION)                                                \
    void shmem_##NAME##_##OPERATION##_to_all(TYPE *dest, const TYPE *source, int nreduce, int PE_start, \
                                             int logPE_stride, int PE_size, TYPE *pWrk, long *pSync);
#define KUMI_SHMEM_TO_ALL_REDUCTIONS(X) \
    KUMI_SHMEM_TO_ALL_INTEGERS(X, and)  \
    KUMI_SHMEM_TO_ALL_INTEGERS(X, or)   \
    KUMI_SHMEM_TO_ALL_INTEGERS(X, xor)  \
    KUMI_SHMEM_TO_ALL_ORDERED(X, min)   \
    KUMI_SHMEM_TO_ALL_ORDERED(X, max)   \
    KUMI_SHMEM_TO_ALL_ORDERED(X, sum)   \
    KUMI_SHMEM_TO_ALL_ORDERED(X, prod)  \
    KUMI_SHMEM_COMPLEX_TYPES(X, sum)    \
    KUMI_SHMEM_COMPLEX_TYPES(X, prod)
KUMI_SHMEM_TO_ALL_REDUCTIONS(KUMI_SHMEM_DECLARE_TO_ALL)

/* --- Waiting for values (9.10) --- */

#define KUMI_SHMEM_DECLARE_WAIT(NAME, TYPE, ...)                                                             \
    void shmem_##NAME##_wait_until(TYPE *ivar, int cmp, TYPE cmp_value);                                     \
    void shmem_##NAME##_wait_until_all(TYPE *ivars, size_t nelems, const int *status, int cmp,               \
                                       TYPE cmp_value);                                                      \
    size_t shmem_##NAME##_wait_until_any(TYPE *ivars, size_t nelems, const int *status, int cmp,             \
                                         TYPE cmp_value);                                                    \
    size_t shmem_##NAME##_wait_until_some(TYPE *ivars, size_t nelems, size_t *indices, const int *status,    \
                                          int cmp, TYPE cmp_value);                                          \
    void shmem_##NAME##_wait_until_all_vector(TYPE *ivars, size_t nelems, const int *status, int cmp,        \
                                              TYPE *cmp_values);                                             \
    size_t shmem_##NAME##_wait_until_any_vector(TYPE *ivars, size_t nelems, const int *status, int cmp,      \
                                                TYPE *cmp_values);                                           \
    size_t shmem_##NAME##_wait_until_some_vector(TYPE *ivars, size_t nelems, size_t *indices,                \
                                                 const int *status, int cmp, TYPE *cmp_values);              \
    int shmem_##NAME##_test(TYPE *ivar, int cmp, TYPE cmp_value);                                            \
    int shmem_##NAME##_test_all(TYPE *ivars, size_t nelems, const int *status, int cmp, TYPE cmp_value);     \
    size_t shmem_##NAME##_test_any(TYPE *ivars, size_t nelems, const int *status, int cmp, TYPE cmp_value);  \
    size_t shmem_##NAME##_test_some(TYPE *ivars, size_t nelems, size_t *indices, const int *status, int cmp, \
                                    TYPE cmp_value);                                                         \
    int shmem_##NAME##_test_all_vector(TYPE *ivars, size_t nelems, const int *status, int cmp,               \
                                       TYPE *cmp_values);                                                    \
    size_t shmem_##NAME##_test_any_vector(TYPE *ivars, size_t nelems, const int *status, int cmp,            \
                                          TYPE *cmp_values);                                                 \
    size_t shmem_##NAME##_test_some_vector(TYPE *ivars, size_t nelems, size_t *indices, const int *status,   \
                                           int cmp, TYPE *cmp_values);
KUMI_SHMEM_WAIT_TYPES(KUMI_SHMEM_DECLARE_WAIT, )

/* Deprecated. */
void shmem_short_wait(short *ivar, short cmp_value);
void shmem_int_wait(int *ivar, int cmp_value);
void shmem_long_wait(long *ivar, long cmp_value);
void shmem_longlong_wait(long long *ivar, long long cmp_value);
void shmem_wait(long *ivar, long cmp_value);

/* --- Order (9.11), locks (9.12), profiling (10) --- */

void shmem_fence(void);
void shmem_ctx_fence(shmem_ctx_t ctx);
void shmem_quiet(void);
void shmem_ctx_quiet(shmem_ctx_t ctx);

void shmem_set_lock(long *lock);
void shmem_clear_lock(long *lock);
int shmem_test_lock(long *lock);

void shmem_pcontrol(int level, ...);

/* --- Deprecated since 1.2 and 1.3 --- */

int _my_pe(void);
int _num_pes(void);
void *shmalloc(size_t size);
void shfree(void *ptr);
void *shrealloc(void *ptr, size_t size);
void *shmemalign(size_t alignment, size_t size);
void shmem_clear_cache_inv(void);
void shmem_set_cache_inv(void);
void shmem_clear_cache_line_inv(void *dest);
void shmem_set_cache_line_inv(void *dest);
void shmem_udcflush(void);
void shmem_udcflush_line(void *dest);

#ifdef __cplusplus
}
#endif

#if !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#include "shmem_generic.h"
#endif

#endif
