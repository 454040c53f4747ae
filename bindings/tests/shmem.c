/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Conformance of the OpenSHMEM library: every function with every type, on any number of PEs. */
#include "shmem.h"

#include <stdio.h>

int me, count, next, before;

/* Failures of each PE, at PE 0, and the first one's text at each. */
static int *failures;
static char first[256];
static int own_failures, has_failed;

void note(bool holds, const char *what, int line)
{
    if (holds)
        return;
    if (own_failures++ == 0)
        snprintf(first, sizeof first, "PE %d, line %d: %s", me, line, what);
}

void claim(const char *text)
{
    const char *label = getenv("KUMI_TEST_LABEL");
    if (own_failures > 0)
        fprintf(stderr, "%s\n", first);
    shmem_int_p(&failures[me], own_failures, 0);
    shmem_barrier_all();
    int sum = 0;
    for (int pe = 0; pe < count; pe++)
        sum += failures[pe];
    if (me == 0)
        printf("%s %s: %s\n", sum == 0 ? "ok    " : "FAILED", label ? label : "?", text);
    has_failed |= me == 0 && sum > 0;
    own_failures = 0;
    shmem_barrier_all();
}

int main(void)
{
    int provided = -1, level = -1, major = 0, minor = 0;
    char name[SHMEM_MAX_NAME_LEN];
    note(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided) == 0, "shmem_init_thread", __LINE__);
    me = shmem_my_pe();
    count = shmem_n_pes();
    next = (me + 1) % count;
    before = (me + count - 1) % count;
    failures = shmem_calloc((size_t)count, sizeof *failures);
    shmem_query_thread(&level);
    HOLDS(provided == SHMEM_THREAD_MULTIPLE && level == provided);
    shmem_info_get_version(&major, &minor);
    HOLDS(major == 1 && minor == 5 && SHMEM_MAJOR_VERSION == 1 && SHMEM_MINOR_VERSION == 5);
    shmem_info_get_name(name);
    HOLDS(strcmp(name, SHMEM_VENDOR_STRING) == 0);
    HOLDS(shmem_pe_accessible(count - 1) && !shmem_pe_accessible(count) && !shmem_pe_accessible(-1));
    static int in_program;
    int on_stack;
    HOLDS(shmem_addr_accessible(&in_program, next) && !shmem_addr_accessible(&on_stack, next));
    HOLDS(shmem_ptr(&in_program, me) == &in_program && (count == 1 || shmem_ptr(&in_program, next) == NULL));
    shmem_pcontrol(1);
    claim("the library says what it is and what is symmetric");
    test_moves();
    test_atomics();
    test_waits();
    test_collectives();
    test_reductions();
    test_teams();
    test_memory();
    test_old();
    shmem_free(failures);
    shmem_finalize();
    return has_failed;
}
