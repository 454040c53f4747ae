/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Type-generic names of OpenSHMEM 1.5 in C11: shmem_put(dest, source, nelems, pe) calls the
 * function of the type that dest points to. A context may come first where the specification has
 * one.
 */
#ifndef KUMI_SHMEM_GENERIC_H
#define KUMI_SHMEM_GENERIC_H

/* Chosen for a type that an operation does not have, so that the compiler names it. */
void shmem_operation_has_no_such_type(void);

#define KUMI_SHMEM_FIRST(FIRST, ...) FIRST
#define KUMI_SHMEM_SECOND(FIRST, SECOND, ...) SECOND

/* Branches of a selection, for pointers to the types of C. Other types are names of these. */
#define KUMI_SHMEM_BRANCH(TYPE, FUNCTION) \
    TYPE * : FUNCTION, const TYPE * : FUNCTION, volatile TYPE * : FUNCTION,
#define KUMI_SHMEM_AMO_BRANCHES(BEFORE, AFTER)             \
    KUMI_SHMEM_BRANCH(int, BEFORE##int##AFTER)             \
    KUMI_SHMEM_BRANCH(long, BEFORE##long##AFTER)           \
    KUMI_SHMEM_BRANCH(long long, BEFORE##longlong##AFTER)  \
    KUMI_SHMEM_BRANCH(unsigned int, BEFORE##uint##AFTER)   \
    KUMI_SHMEM_BRANCH(unsigned long, BEFORE##ulong##AFTER) \
    KUMI_SHMEM_BRANCH(unsigned long long, BEFORE##ulonglong##AFTER)
#define KUMI_SHMEM_WAIT_BRANCHES(BEFORE, AFTER)    \
    KUMI_SHMEM_AMO_BRANCHES(BEFORE, AFTER)         \
    KUMI_SHMEM_BRANCH(short, BEFORE##short##AFTER) \
    KUMI_SHMEM_BRANCH(unsigned short, BEFORE##ushort##AFTER)
#define KUMI_SHMEM_EXTENDED_BRANCHES(BEFORE, AFTER) \
    KUMI_SHMEM_AMO_BRANCHES(BEFORE, AFTER)          \
    KUMI_SHMEM_BRANCH(float, BEFORE##float##AFTER)  \
    KUMI_SHMEM_BRANCH(double, BEFORE##double##AFTER)
#define KUMI_SHMEM_BITWISE_AMO_BRANCHES(BEFORE, AFTER)              \
    KUMI_SHMEM_BRANCH(unsigned int, BEFORE##uint##AFTER)            \
    KUMI_SHMEM_BRANCH(unsigned long, BEFORE##ulong##AFTER)          \
    KUMI_SHMEM_BRANCH(unsigned long long, BEFORE##ulonglong##AFTER) \
    KUMI_SHMEM_BRANCH(int32_t, BEFORE##int32##AFTER)                \
    KUMI_SHMEM_BRANCH(int64_t, BEFORE##int64##AFTER)
#define KUMI_SHMEM_RMA_BRANCHES(BEFORE, AFTER)                \
    KUMI_SHMEM_EXTENDED_BRANCHES(BEFORE, AFTER)               \
    KUMI_SHMEM_BRANCH(long double, BEFORE##longdouble##AFTER) \
    KUMI_SHMEM_BRANCH(char, BEFORE##char##AFTER)              \
    KUMI_SHMEM_BRANCH(signed char, BEFORE##schar##AFTER)      \
    KUMI_SHMEM_BRANCH(unsigned char, BEFORE##uchar##AFTER)    \
    KUMI_SHMEM_BRANCH(short, BEFORE##short##AFTER)            \
    KUMI_SHMEM_BRANCH(unsigned short, BEFORE##ushort##AFTER)
#define KUMI_SHMEM_BITWISE_REDUCE_BRANCHES(BEFORE, AFTER)    \
    KUMI_SHMEM_BITWISE_AMO_BRANCHES(BEFORE, AFTER)           \
    KUMI_SHMEM_BRANCH(unsigned char, BEFORE##uchar##AFTER)   \
    KUMI_SHMEM_BRANCH(unsigned short, BEFORE##ushort##AFTER) \
    KUMI_SHMEM_BRANCH(int8_t, BEFORE##int8##AFTER)           \
    KUMI_SHMEM_BRANCH(int16_t, BEFORE##int16##AFTER)
#define KUMI_SHMEM_ARITHMETIC_BRANCHES(BEFORE, AFTER)                    \
    KUMI_SHMEM_RMA_BRANCHES(BEFORE, AFTER)                               \
    KUMI_SHMEM_BRANCH(kumi_shmem_float_complex, BEFORE##complexf##AFTER) \
    KUMI_SHMEM_BRANCH(kumi_shmem_double_complex, BEFORE##complexd##AFTER)

/* Selects by one argument, and by the first or, after a context, the second one. */
#define KUMI_SHMEM_BY(ARGUMENT, BRANCHES, BEFORE, AFTER) \
    _Generic((ARGUMENT), BRANCHES(BEFORE, AFTER) default : shmem_operation_has_no_such_type)
#define KUMI_SHMEM_BY_CONTEXT(BRANCHES, AFTER, ...)                                                   \
    _Generic((KUMI_SHMEM_FIRST(__VA_ARGS__, 0)), shmem_ctx_t                                          \
             : KUMI_SHMEM_BY(KUMI_SHMEM_SECOND(__VA_ARGS__, 0), BRANCHES, shmem_ctx_, AFTER), default \
             : KUMI_SHMEM_BY(KUMI_SHMEM_FIRST(__VA_ARGS__, 0), BRANCHES, shmem_, AFTER))(__VA_ARGS__)

#define shmem_put(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _put, __VA_ARGS__)
#define shmem_get(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _get, __VA_ARGS__)
#define shmem_put_nbi(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _put_nbi, __VA_ARGS__)
#define shmem_get_nbi(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _get_nbi, __VA_ARGS__)
#define shmem_iput(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _iput, __VA_ARGS__)
#define shmem_iget(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _iget, __VA_ARGS__)
#define shmem_p(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _p, __VA_ARGS__)
#define shmem_g(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _g, __VA_ARGS__)
#define shmem_put_signal(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _put_signal, __VA_ARGS__)
#define shmem_put_signal_nbi(...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_RMA_BRANCHES, _put_signal_nbi, __VA_ARGS__)

#define KUMI_SHMEM_EXTENDED(AFTER, ...) \
    KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_EXTENDED_BRANCHES, AFTER, __VA_ARGS__)
#define shmem_atomic_fetch(...) KUMI_SHMEM_EXTENDED(_atomic_fetch, __VA_ARGS__)
#define shmem_atomic_set(...) KUMI_SHMEM_EXTENDED(_atomic_set, __VA_ARGS__)
#define shmem_atomic_swap(...) KUMI_SHMEM_EXTENDED(_atomic_swap, __VA_ARGS__)
#define shmem_atomic_fetch_nbi(...) KUMI_SHMEM_EXTENDED(_atomic_fetch_nbi, __VA_ARGS__)
#define shmem_atomic_swap_nbi(...) KUMI_SHMEM_EXTENDED(_atomic_swap_nbi, __VA_ARGS__)

#define KUMI_SHMEM_STANDARD(AFTER, ...) KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_AMO_BRANCHES, AFTER, __VA_ARGS__)
#define shmem_atomic_compare_swap(...) KUMI_SHMEM_STANDARD(_atomic_compare_swap, __VA_ARGS__)
#define shmem_atomic_fetch_inc(...) KUMI_SHMEM_STANDARD(_atomic_fetch_inc, __VA_ARGS__)
#define shmem_atomic_inc(...) KUMI_SHMEM_STANDARD(_atomic_inc, __VA_ARGS__)
#define shmem_atomic_fetch_add(...) KUMI_SHMEM_STANDARD(_atomic_fetch_add, __VA_ARGS__)
#define shmem_atomic_add(...) KUMI_SHMEM_STANDARD(_atomic_add, __VA_ARGS__)
#define shmem_atomic_compare_swap_nbi(...) KUMI_SHMEM_STANDARD(_atomic_compare_swap_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_inc_nbi(...) KUMI_SHMEM_STANDARD(_atomic_fetch_inc_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_add_nbi(...) KUMI_SHMEM_STANDARD(_atomic_fetch_add_nbi, __VA_ARGS__)

#define KUMI_SHMEM_BITWISE(AFTER, ...) \
    KUMI_SHMEM_BY_CONTEXT(KUMI_SHMEM_BITWISE_AMO_BRANCHES, AFTER, __VA_ARGS__)
#define shmem_atomic_fetch_and(...) KUMI_SHMEM_BITWISE(_atomic_fetch_and, __VA_ARGS__)
#define shmem_atomic_and(...) KUMI_SHMEM_BITWISE(_atomic_and, __VA_ARGS__)
#define shmem_atomic_fetch_or(...) KUMI_SHMEM_BITWISE(_atomic_fetch_or, __VA_ARGS__)
#define shmem_atomic_or(...) KUMI_SHMEM_BITWISE(_atomic_or, __VA_ARGS__)
#define shmem_atomic_fetch_xor(...) KUMI_SHMEM_BITWISE(_atomic_fetch_xor, __VA_ARGS__)
#define shmem_atomic_xor(...) KUMI_SHMEM_BITWISE(_atomic_xor, __VA_ARGS__)
#define shmem_atomic_fetch_and_nbi(...) KUMI_SHMEM_BITWISE(_atomic_fetch_and_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_or_nbi(...) KUMI_SHMEM_BITWISE(_atomic_fetch_or_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_xor_nbi(...) KUMI_SHMEM_BITWISE(_atomic_fetch_xor_nbi, __VA_ARGS__)

/* Deprecated names. */
#define shmem_fetch(...)                                                                                 \
    KUMI_SHMEM_BY(KUMI_SHMEM_FIRST(__VA_ARGS__, 0), KUMI_SHMEM_EXTENDED_BRANCHES, shmem_, _atomic_fetch) \
    (__VA_ARGS__)
#define shmem_set(...)                                                                                 \
    KUMI_SHMEM_BY(KUMI_SHMEM_FIRST(__VA_ARGS__, 0), KUMI_SHMEM_EXTENDED_BRANCHES, shmem_, _atomic_set) \
    (__VA_ARGS__)
#define shmem_swap(...)                                                                                 \
    KUMI_SHMEM_BY(KUMI_SHMEM_FIRST(__VA_ARGS__, 0), KUMI_SHMEM_EXTENDED_BRANCHES, shmem_, _atomic_swap) \
    (__VA_ARGS__)
#define KUMI_SHMEM_OLD(AFTER, ...) \
    KUMI_SHMEM_BY(KUMI_SHMEM_FIRST(__VA_ARGS__, 0), KUMI_SHMEM_AMO_BRANCHES, shmem_, AFTER)(__VA_ARGS__)
#define shmem_cswap(...) KUMI_SHMEM_OLD(_atomic_compare_swap, __VA_ARGS__)
#define shmem_finc(...) KUMI_SHMEM_OLD(_atomic_fetch_inc, __VA_ARGS__)
#define shmem_inc(...) KUMI_SHMEM_OLD(_atomic_inc, __VA_ARGS__)
#define shmem_fadd(...) KUMI_SHMEM_OLD(_atomic_fetch_add, __VA_ARGS__)
#define shmem_add(...) KUMI_SHMEM_OLD(_atomic_add, __VA_ARGS__)

#define KUMI_SHMEM_WAIT(AFTER, ...) \
    KUMI_SHMEM_BY(KUMI_SHMEM_FIRST(__VA_ARGS__, 0), KUMI_SHMEM_WAIT_BRANCHES, shmem_, AFTER)(__VA_ARGS__)
#define shmem_wait_until(...) KUMI_SHMEM_WAIT(_wait_until, __VA_ARGS__)
#define shmem_test(...) KUMI_SHMEM_WAIT(_test, __VA_ARGS__)
#define shmem_wait_until_all(...) KUMI_SHMEM_WAIT(_wait_until_all, __VA_ARGS__)
#define shmem_wait_until_any(...) KUMI_SHMEM_WAIT(_wait_until_any, __VA_ARGS__)
#define shmem_wait_until_some(...) KUMI_SHMEM_WAIT(_wait_until_some, __VA_ARGS__)
#define shmem_wait_until_all_vector(...) KUMI_SHMEM_WAIT(_wait_until_all_vector, __VA_ARGS__)
#define shmem_wait_until_any_vector(...) KUMI_SHMEM_WAIT(_wait_until_any_vector, __VA_ARGS__)
#define shmem_wait_until_some_vector(...) KUMI_SHMEM_WAIT(_wait_until_some_vector, __VA_ARGS__)
#define shmem_test_all(...) KUMI_SHMEM_WAIT(_test_all, __VA_ARGS__)
#define shmem_test_any(...) KUMI_SHMEM_WAIT(_test_any, __VA_ARGS__)
#define shmem_test_some(...) KUMI_SHMEM_WAIT(_test_some, __VA_ARGS__)
#define shmem_test_all_vector(...) KUMI_SHMEM_WAIT(_test_all_vector, __VA_ARGS__)
#define shmem_test_any_vector(...) KUMI_SHMEM_WAIT(_test_any_vector, __VA_ARGS__)
#define shmem_test_some_vector(...) KUMI_SHMEM_WAIT(_test_some_vector, __VA_ARGS__)

/* The team comes first, and the second argument has the type. */
#define KUMI_SHMEM_OF_TEAM(BRANCHES, AFTER, ...) \
    KUMI_SHMEM_BY(KUMI_SHMEM_SECOND(__VA_ARGS__, 0), BRANCHES, shmem_, AFTER)(__VA_ARGS__)
#define shmem_alltoall(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _alltoall, __VA_ARGS__)
#define shmem_alltoalls(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _alltoalls, __VA_ARGS__)
#define shmem_broadcast(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _broadcast, __VA_ARGS__)
#define shmem_collect(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _collect, __VA_ARGS__)
#define shmem_fcollect(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _fcollect, __VA_ARGS__)
#define shmem_and_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_BITWISE_REDUCE_BRANCHES, _and_reduce, __VA_ARGS__)
#define shmem_or_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_BITWISE_REDUCE_BRANCHES, _or_reduce, __VA_ARGS__)
#define shmem_xor_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_BITWISE_REDUCE_BRANCHES, _xor_reduce, __VA_ARGS__)
#define shmem_max_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _max_reduce, __VA_ARGS__)
#define shmem_min_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_RMA_BRANCHES, _min_reduce, __VA_ARGS__)
#define shmem_sum_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_ARITHMETIC_BRANCHES, _sum_reduce, __VA_ARGS__)
#define shmem_prod_reduce(...) KUMI_SHMEM_OF_TEAM(KUMI_SHMEM_ARITHMETIC_BRANCHES, _prod_reduce, __VA_ARGS__)

/* shmem_sync has a team, or an active set (deprecated). */
#define shmem_sync(...)                                       \
    _Generic((KUMI_SHMEM_FIRST(__VA_ARGS__, 0)), shmem_team_t \
             : shmem_team_sync, default                       \
             : shmem_sync)(__VA_ARGS__)

#endif
