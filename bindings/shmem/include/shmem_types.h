/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Types of OpenSHMEM 1.5, as lists: each calls X(NAME, TYPE, ...) for the names in the functions.
 * The numbers are those of the tables of the specification.
 */
#ifndef KUMI_SHMEM_TYPES_H
#define KUMI_SHMEM_TYPES_H

/* Integers of the C language, and those of a fixed width or for sizes. */
#define KUMI_SHMEM_INT32_AND_UP(X, ...)  \
    X(int, int, __VA_ARGS__)             \
    X(long, long, __VA_ARGS__)           \
    X(longlong, long long, __VA_ARGS__)  \
    X(uint, unsigned int, __VA_ARGS__)   \
    X(ulong, unsigned long, __VA_ARGS__) \
    X(ulonglong, unsigned long long, __VA_ARGS__)

/* Table 6: standard types of atomic operations. */
#define KUMI_SHMEM_AMO_TYPES(X, ...)        \
    KUMI_SHMEM_INT32_AND_UP(X, __VA_ARGS__) \
    X(int32, int32_t, __VA_ARGS__)          \
    X(int64, int64_t, __VA_ARGS__)          \
    X(uint32, uint32_t, __VA_ARGS__)        \
    X(uint64, uint64_t, __VA_ARGS__)        \
    X(size, size_t, __VA_ARGS__)            \
    X(ptrdiff, ptrdiff_t, __VA_ARGS__)

/* Table 12: types of the wait and test functions. */
#define KUMI_SHMEM_WAIT_TYPES(X, ...)    \
    KUMI_SHMEM_AMO_TYPES(X, __VA_ARGS__) \
    X(short, short, __VA_ARGS__)         \
    X(ushort, unsigned short, __VA_ARGS__)

/* Table 7: types of fetch, set and swap. */
#define KUMI_SHMEM_EXTENDED_AMO_TYPES(X, ...) \
    X(float, float, __VA_ARGS__)              \
    X(double, double, __VA_ARGS__)            \
    KUMI_SHMEM_AMO_TYPES(X, __VA_ARGS__)

/* Table 8: types of the bitwise atomic operations. */
#define KUMI_SHMEM_BITWISE_AMO_TYPES(X, ...)      \
    X(uint, unsigned int, __VA_ARGS__)            \
    X(ulong, unsigned long, __VA_ARGS__)          \
    X(ulonglong, unsigned long long, __VA_ARGS__) \
    X(int32, int32_t, __VA_ARGS__)                \
    X(int64, int64_t, __VA_ARGS__)                \
    X(uint32, uint32_t, __VA_ARGS__)              \
    X(uint64, uint64_t, __VA_ARGS__)

/* Table 5: types of puts and gets, and of collectives that move data. */
#define KUMI_SHMEM_RMA_TYPES(X, ...)        \
    X(longdouble, long double, __VA_ARGS__) \
    X(char, char, __VA_ARGS__)              \
    X(schar, signed char, __VA_ARGS__)      \
    X(short, short, __VA_ARGS__)            \
    X(uchar, unsigned char, __VA_ARGS__)    \
    X(ushort, unsigned short, __VA_ARGS__)  \
    X(int8, int8_t, __VA_ARGS__)            \
    X(int16, int16_t, __VA_ARGS__)          \
    X(uint8, uint8_t, __VA_ARGS__)          \
    X(uint16, uint16_t, __VA_ARGS__)        \
    KUMI_SHMEM_EXTENDED_AMO_TYPES(X, __VA_ARGS__)

/* Table 10: types of reductions. AND, OR and XOR; further ones of MAX and MIN; of SUM and PROD. */
#define KUMI_SHMEM_UNSIGNED_TYPES(X, ...)         \
    X(uchar, unsigned char, __VA_ARGS__)          \
    X(ushort, unsigned short, __VA_ARGS__)        \
    X(uint, unsigned int, __VA_ARGS__)            \
    X(ulong, unsigned long, __VA_ARGS__)          \
    X(ulonglong, unsigned long long, __VA_ARGS__) \
    X(size, size_t, __VA_ARGS__)
#define KUMI_SHMEM_BITWISE_REDUCE_TYPES(X, ...) \
    KUMI_SHMEM_UNSIGNED_TYPES(X, __VA_ARGS__)   \
    X(int8, int8_t, __VA_ARGS__)                \
    X(int16, int16_t, __VA_ARGS__)              \
    X(int32, int32_t, __VA_ARGS__)              \
    X(int64, int64_t, __VA_ARGS__)              \
    X(uint8, uint8_t, __VA_ARGS__)              \
    X(uint16, uint16_t, __VA_ARGS__)            \
    X(uint32, uint32_t, __VA_ARGS__)            \
    X(uint64, uint64_t, __VA_ARGS__)
#define KUMI_SHMEM_ORDERED_REDUCE_TYPES(X, ...)     \
    KUMI_SHMEM_BITWISE_REDUCE_TYPES(X, __VA_ARGS__) \
    X(char, char, __VA_ARGS__)                      \
    X(schar, signed char, __VA_ARGS__)              \
    X(short, short, __VA_ARGS__)                    \
    X(int, int, __VA_ARGS__)                        \
    X(long, long, __VA_ARGS__)                      \
    X(longlong, long long, __VA_ARGS__)             \
    X(ptrdiff, ptrdiff_t, __VA_ARGS__)              \
    X(float, float, __VA_ARGS__)                    \
    X(double, double, __VA_ARGS__)                  \
    X(longdouble, long double, __VA_ARGS__)
#define KUMI_SHMEM_COMPLEX_TYPES(X, ...)               \
    X(complexf, kumi_shmem_float_complex, __VA_ARGS__) \
    X(complexd, kumi_shmem_double_complex, __VA_ARGS__)

/* Table 11, deprecated: types of reductions over active sets. */
#define KUMI_SHMEM_TO_ALL_INTEGERS(X, ...) \
    X(short, short, __VA_ARGS__)           \
    X(int, int, __VA_ARGS__)               \
    X(long, long, __VA_ARGS__)             \
    X(longlong, long long, __VA_ARGS__)
#define KUMI_SHMEM_TO_ALL_ORDERED(X, ...)      \
    KUMI_SHMEM_TO_ALL_INTEGERS(X, __VA_ARGS__) \
    X(float, float, __VA_ARGS__)               \
    X(double, double, __VA_ARGS__)             \
    X(longdouble, long double, __VA_ARGS__)

/* Sizes in bits of functions such as shmem_put32, with X(BITS, BYTES, ...). */
#define KUMI_SHMEM_SIZES(X, ...) \
    X(8, 1, __VA_ARGS__)         \
    X(16, 2, __VA_ARGS__)        \
    X(32, 4, __VA_ARGS__)        \
    X(64, 8, __VA_ARGS__)        \
    X(128, 16, __VA_ARGS__)

#endif
