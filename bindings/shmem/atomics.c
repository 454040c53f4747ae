/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The atomic functions of each type (9.7), and their deprecated names. */
#include <string.h>

#include "context.h"

/* Returns the bits of a value, in the lower bytes. */
static uint64_t bits_of(const void *value, size_t bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, value, bytes);
    return bits;
}
#define BITS_OF(TYPE, value) bits_of(&(TYPE){value}, sizeof(TYPE))

#define VALUE_OF(TYPE, bits)                      \
    uint64_t found = bits;                        \
    TYPE value_of_bits;                           \
    memcpy(&value_of_bits, &found, sizeof(TYPE)); \
    return value_of_bits;

/* The functions of one name: with the default context, with another one, and without a wait. */
#define FETCHING(NAME, TYPE, FUNCTION, OPERATION, PARAMETERS, DEST, VALUE, CONDITION, ...)            \
    PUBLIC TYPE shmem_ctx_##NAME##_atomic_##FUNCTION(shmem_ctx_t ctx, __VA_ARGS__)                    \
    {                                                                                                 \
        static const char *call = "shmem_" #NAME "_atomic_" #FUNCTION;                                \
        int to = world_pe(call, context_of(call, ctx), pe);                                           \
        VALUE_OF(TYPE, word_fetch(call, OPERATION, (void *)DEST, sizeof(TYPE), VALUE, CONDITION, to)) \
    }                                                                                                 \
    PUBLIC TYPE shmem_##NAME##_atomic_##FUNCTION(__VA_ARGS__)                                         \
    {                                                                                                 \
        return shmem_ctx_##NAME##_atomic_##FUNCTION(SHMEM_CTX_DEFAULT, PARAMETERS);                   \
    }                                                                                                 \
    PUBLIC void shmem_ctx_##NAME##_atomic_##FUNCTION##_nbi(shmem_ctx_t ctx, TYPE *fetch, __VA_ARGS__) \
    {                                                                                                 \
        *fetch = shmem_ctx_##NAME##_atomic_##FUNCTION(ctx, PARAMETERS);                               \
    }                                                                                                 \
    PUBLIC void shmem_##NAME##_atomic_##FUNCTION##_nbi(TYPE *fetch, __VA_ARGS__)                      \
    {                                                                                                 \
        *fetch = shmem_ctx_##NAME##_atomic_##FUNCTION(SHMEM_CTX_DEFAULT, PARAMETERS);                 \
    }
#define ARGUMENTS(...) __VA_ARGS__
#define POSTING(NAME, TYPE, FUNCTION, OPERATION, PARAMETERS, VALUE, ...)                             \
    PUBLIC void shmem_ctx_##NAME##_atomic_##FUNCTION(shmem_ctx_t ctx, __VA_ARGS__)                   \
    {                                                                                                \
        static const char *call = "shmem_" #NAME "_atomic_" #FUNCTION;                               \
        struct kumi_shmem_context *context = context_of(call, ctx);                                  \
        word_post(call, context, OPERATION, dest, sizeof(TYPE), VALUE, world_pe(call, context, pe)); \
    }                                                                                                \
    PUBLIC void shmem_##NAME##_atomic_##FUNCTION(__VA_ARGS__)                                        \
    {                                                                                                \
        shmem_ctx_##NAME##_atomic_##FUNCTION(SHMEM_CTX_DEFAULT, PARAMETERS);                         \
    }

#define DEFINE_FETCH_SET(NAME, TYPE, ...)                                                                    \
    FETCHING(NAME, TYPE, fetch, WORD_FETCH, ARGUMENTS(source, pe), source, 0, 0, const TYPE *source, int pe) \
    FETCHING(NAME, TYPE, swap, WORD_SET, ARGUMENTS(dest, value, pe), dest, BITS_OF(TYPE, value), 0,          \
             TYPE *dest, TYPE value, int pe)                                                                 \
    POSTING(NAME, TYPE, set, WORD_SET, ARGUMENTS(dest, value, pe), BITS_OF(TYPE, value), TYPE *dest,         \
            TYPE value, int pe)
KUMI_SHMEM_EXTENDED_AMO_TYPES(DEFINE_FETCH_SET, )

#define DEFINE_ARITHMETIC(NAME, TYPE, ...)                                                               \
    FETCHING(NAME, TYPE, compare_swap, WORD_COMPARE_SWAP, ARGUMENTS(dest, cond, value, pe), dest,        \
             BITS_OF(TYPE, value), BITS_OF(TYPE, cond), TYPE *dest, TYPE cond, TYPE value, int pe)       \
    FETCHING(NAME, TYPE, fetch_inc, WORD_ADD, ARGUMENTS(dest, pe), dest, 1, 0, TYPE *dest, int pe)       \
    FETCHING(NAME, TYPE, fetch_add, WORD_ADD, ARGUMENTS(dest, value, pe), dest, BITS_OF(TYPE, value), 0, \
             TYPE *dest, TYPE value, int pe)                                                             \
    POSTING(NAME, TYPE, inc, WORD_ADD, ARGUMENTS(dest, pe), 1, TYPE *dest, int pe)                       \
    POSTING(NAME, TYPE, add, WORD_ADD, ARGUMENTS(dest, value, pe), BITS_OF(TYPE, value), TYPE *dest,     \
            TYPE value, int pe)
KUMI_SHMEM_AMO_TYPES(DEFINE_ARITHMETIC, )

#define DEFINE_BITWISE_ONE(NAME, TYPE, FUNCTION, OPERATION)                                                \
    FETCHING(NAME, TYPE, fetch_##FUNCTION, OPERATION, ARGUMENTS(dest, value, pe), dest,                    \
             BITS_OF(TYPE, value), 0, TYPE *dest, TYPE value, int pe)                                      \
    POSTING(NAME, TYPE, FUNCTION, OPERATION, ARGUMENTS(dest, value, pe), BITS_OF(TYPE, value), TYPE *dest, \
            TYPE value, int pe)
#define DEFINE_BITWISE(NAME, TYPE, ...)           \
    DEFINE_BITWISE_ONE(NAME, TYPE, and, WORD_AND) \
    DEFINE_BITWISE_ONE(NAME, TYPE, or, WORD_OR)   \
    DEFINE_BITWISE_ONE(NAME, TYPE, xor, WORD_XOR)
KUMI_SHMEM_BITWISE_AMO_TYPES(DEFINE_BITWISE, )

#define DEFINE_OLD_FETCH_SET(NAME, TYPE, ...)                       \
    PUBLIC TYPE shmem_##NAME##_fetch(const TYPE *source, int pe)    \
    {                                                               \
        return shmem_##NAME##_atomic_fetch(source, pe);             \
    }                                                               \
    PUBLIC void shmem_##NAME##_set(TYPE *dest, TYPE value, int pe)  \
    {                                                               \
        shmem_##NAME##_atomic_set(dest, value, pe);                 \
    }                                                               \
    PUBLIC TYPE shmem_##NAME##_swap(TYPE *dest, TYPE value, int pe) \
    {                                                               \
        return shmem_##NAME##_atomic_swap(dest, value, pe);         \
    }
KUMI_SHMEM_OLD_AMO_TYPES(DEFINE_OLD_FETCH_SET, )
DEFINE_OLD_FETCH_SET(float, float)
DEFINE_OLD_FETCH_SET(double, double)

#define DEFINE_OLD_ARITHMETIC(NAME, TYPE, ...)                                  \
    PUBLIC TYPE shmem_##NAME##_cswap(TYPE *dest, TYPE cond, TYPE value, int pe) \
    {                                                                           \
        return shmem_##NAME##_atomic_compare_swap(dest, cond, value, pe);       \
    }                                                                           \
    PUBLIC TYPE shmem_##NAME##_finc(TYPE *dest, int pe)                         \
    {                                                                           \
        return shmem_##NAME##_atomic_fetch_inc(dest, pe);                       \
    }                                                                           \
    PUBLIC void shmem_##NAME##_inc(TYPE *dest, int pe)                          \
    {                                                                           \
        shmem_##NAME##_atomic_inc(dest, pe);                                    \
    }                                                                           \
    PUBLIC TYPE shmem_##NAME##_fadd(TYPE *dest, TYPE value, int pe)             \
    {                                                                           \
        return shmem_##NAME##_atomic_fetch_add(dest, value, pe);                \
    }                                                                           \
    PUBLIC void shmem_##NAME##_add(TYPE *dest, TYPE value, int pe)              \
    {                                                                           \
        shmem_##NAME##_atomic_add(dest, value, pe);                             \
    }
KUMI_SHMEM_OLD_AMO_TYPES(DEFINE_OLD_ARITHMETIC, )
