/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Mistakes of a program, one for each argument. The library ends it with a message. */
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long word, lock;

int main(int count, char **arguments)
{
    const char *mistake = count > 1 ? arguments[1] : "";
    int on_stack = 0;
    if (strcmp(mistake, "not-started") == 0)
        return shmem_my_pe();
    shmem_init();
    int me = shmem_my_pe(), pes = shmem_n_pes();
    if (strcmp(mistake, "started-twice") == 0)
        shmem_init();
    else if (strcmp(mistake, "stack") == 0)
        shmem_int_p(&on_stack, 1, (me + 1) % pes);
    else if (strcmp(mistake, "pe") == 0)
        shmem_long_p(&word, 1, pes);
    else if (strcmp(mistake, "end") == 0)
        shmem_putmem((char *)&word, arguments, 1 << 30, 0);
    else if (strcmp(mistake, "unaligned") == 0)
        shmem_int_atomic_inc((int *)((char *)&word + 1), 0);
    else if (strcmp(mistake, "sizes") == 0)
        (void)shmem_malloc(100 + (size_t)me);
    else if (strcmp(mistake, "stranger") == 0)
        shmem_clear_lock(&lock);
    else if (strcmp(mistake, "team") == 0)
        shmem_long_sum_reduce(SHMEM_TEAM_INVALID, &word, &word, 1);
    else if (strcmp(mistake, "comparison") == 0)
        shmem_long_wait_until(&word, 9, 1);
    else if (strcmp(mistake, "exit") == 0 && me == 0)
        shmem_global_exit(7);
    else if (strcmp(mistake, "kill-at-start") == 0 && me == 0)
        raise(SIGKILL);
    else if (strcmp(mistake, "kill") == 0) {
        shmem_barrier_all(); /* All have left shmem_init. */
        if (me == 0)
            raise(SIGKILL);
    } else if (strcmp(mistake, "implicit") == 0) {
        shmem_long_p(&word, me + 1, (me + 1) % pes);
        printf("left without shmem_finalize\n");
        return 0;
    }
    /* In a loop of its own, and in a barrier. */
    while (strcmp(mistake, "exit") == 0)
        pause();
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
