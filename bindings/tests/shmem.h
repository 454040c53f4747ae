/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Claims of the OpenSHMEM conformance program. It has its own lists of types, from the tables of
 * the specification, and not those of the library's header.
 */
#ifndef SHMEM_TEST_H
#define SHMEM_TEST_H

#include <shmem.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Every PE notes what does not hold, and PE 0 prints the claim. All PEs call this. */
void claim(const char *text);
/* Notes that something does not hold. */
void note(bool holds, const char *what, int line);
#define HOLDS(condition) note(condition, #condition, __LINE__)

extern int me, count, next, before;

void test_moves(void);
void test_atomics(void);
void test_waits(void);
void test_collectives(void);
void test_reductions(void);
void test_teams(void);
void test_memory(void);
void test_old(void);

#define STANDARD_AMO(X)              \
    X(int, int)                      \
    X(long, long)                    \
    X(longlong, long long)           \
    X(uint, unsigned int)            \
    X(ulong, unsigned long)          \
    X(ulonglong, unsigned long long) \
    X(int32, int32_t)                \
    X(int64, int64_t)                \
    X(uint32, uint32_t)              \
    X(uint64, uint64_t)              \
    X(size, size_t)                  \
    X(ptrdiff, ptrdiff_t)
#define EXTENDED_AMO(X) \
    STANDARD_AMO(X)     \
    X(float, float)     \
    X(double, double)
#define BITWISE_AMO(X)               \
    X(uint, unsigned int)            \
    X(ulong, unsigned long)          \
    X(ulonglong, unsigned long long) \
    X(int32, int32_t)                \
    X(int64, int64_t)                \
    X(uint32, uint32_t)              \
    X(uint64, uint64_t)
#define STANDARD_RMA(X)        \
    EXTENDED_AMO(X)            \
    X(longdouble, long double) \
    X(char, char)              \
    X(schar, signed char)      \
    X(short, short)            \
    X(uchar, unsigned char)    \
    X(ushort, unsigned short)  \
    X(int8, int8_t)            \
    X(int16, int16_t)          \
    X(uint8, uint8_t)          \
    X(uint16, uint16_t)
#define WAITS(X)    \
    STANDARD_AMO(X) \
    X(short, short) \
    X(ushort, unsigned short)

#endif
