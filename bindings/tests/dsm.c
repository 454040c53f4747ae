/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared memory from C: two nodes, one in each process. */
#include <errno.h>
#include <fcntl.h>
#include <kumi_dsm.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expect.h"

static char error[512];

static bool says(const char *text)
{
    return strstr(error, text) != NULL;
}

int main(void)
{
    struct kumi_dsm *dsm = kumi_dsm_from_environment(NULL, error, sizeof error);
    if (dsm == NULL)
        return 1;
    int node = kumi_dsm_node(dsm);
    expect_rank(node);
    expect_true("both nodes are there", kumi_dsm_nodes(dsm) == 2);

    char *bytes = kumi_dsm_alloc(dsm, 100000, KUMI_DSM_CYCLIC, 1, error, sizeof error);
    uint64_t *words = kumi_dsm_alloc(dsm, 4096, KUMI_DSM_ON, 1, error, sizeof error);
    memset(bytes + 50000 * node, 'a' + node, 50000);
    words[node] = (uint64_t)(uintptr_t)bytes;
    kumi_dsm_barrier(dsm, error, sizeof error);
    expect_true("the memory has one address", words[0] == words[1]);
    expect_true("bytes of the other node are there",
                bytes[50000 * !node] == 'a' + !node && bytes[50000 * !node + 49999] == 'a' + !node);
    kumi_dsm_barrier(dsm, error, sizeof error);

    /* After a barrier in which the other node wrote them, pages are closed. */
    memset(bytes + 50000 * node, 'c' + node, 50000);
    kumi_dsm_barrier(dsm, error, sizeof error);
    int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY), file[2];
    char *far = bytes + 50000 * !node + 8192, *remote = far;
    if (((far - bytes) / 4096) % 2 == node)
        remote = far + 4096;
    bool has_pipe = pipe(file) == 0;
    errno = 0;
    expect_true("a system call into a closed page returns EFAULT",
                has_pipe && write(file[1], remote, 10) == -1 && errno == EFAULT);
    expect_true("a prefetch opens it", kumi_dsm_prefetch(dsm, remote, 10, error, sizeof error) == 0 &&
                                           write(file[1], remote, 10) == 10);
    kumi_dsm_barrier(dsm, error, sizeof error);
    if (node == 0) {
        kumi_dsm_prefetch(dsm, bytes, 8192, error, sizeof error);
        expect_true("a system call writes", read(zero, bytes, 8192) == 8192);
    }
    kumi_dsm_barrier(dsm, error, sizeof error);
    expect_true("what it wrote is seen", bytes[0] == 0 && bytes[8191] == 0 && bytes[8192] != 0);
    close(null);
    kumi_dsm_barrier(dsm, error, sizeof error);
    bool reads = kumi_dsm_pin(dsm, remote, 10, error, sizeof error) == 0;
    for (char round = 0; round < 5; round++) {
        /* The other node writes the page at each round. */
        char *its = bytes + 50000 * node;
        for (char *at = its; at < its + 50000; at += 1000)
            *at = 'A' + round;
        kumi_dsm_barrier(dsm, error, sizeof error);
        reads &= write(file[1], remote, 10) == 10;
        kumi_dsm_lock(dsm, 3, error, sizeof error);
        reads &= write(file[1], remote, 10) == 10;
        kumi_dsm_unlock(dsm, 3, error, sizeof error);
        kumi_dsm_barrier(dsm, error, sizeof error);
    }
    expect_true("a system call reads a pinned page behind each barrier and lock", reads);
    expect_true("a pin ends", kumi_dsm_unpin(dsm, remote, 10, error, sizeof error) == 0);

    expect_true("a placement that is none is refused",
                kumi_dsm_alloc(dsm, 1, 7, 0, error, sizeof error) == NULL &&
                    says("invalid placement 7 with parameter 0: expected 0 (blocks)"));
    expect_true("a lock that is not held is not released",
                kumi_dsm_unlock(dsm, 9, error, sizeof error) == KUMI_DSM_ARGUMENT &&
                    says("lock 9 is not held by this node"));
    struct kumi_dsm_recovery recovery = {.size = sizeof recovery};
    expect_true("replicas begin before the first allocation",
                kumi_dsm_keep_replicas(dsm, error, sizeof error) == KUMI_DSM_ARGUMENT &&
                    says("replicas of 2 regions: expected the call before the first allocation"));
    expect_true("a recovery needs replicas",
                kumi_dsm_recover(dsm, &recovery, error, sizeof error) == KUMI_DSM_ARGUMENT &&
                    says("there are no replicas"));
    recovery.size = 0;
    expect_true("a recovery without a size is refused",
                kumi_dsm_recover(dsm, &recovery, error, sizeof error) == KUMI_DSM_ARGUMENT &&
                    says("kumi_dsm_recovery.size is 0"));
    expect_true("all nodes are left", kumi_dsm_is_left(dsm, 0) == 1 && kumi_dsm_is_left(dsm, 1) == 1 &&
                                          kumi_dsm_is_left(dsm, 2) == 0 && kumi_dsm_is_left(dsm, -1) == 0);
    expect_true("memory that is not shared is not prefetched",
                kumi_dsm_prefetch(dsm, error, 1, error, sizeof error) == KUMI_DSM_ARGUMENT &&
                    says("is not in shared memory"));
    expect_true("bytes beyond a region are not prefetched",
                kumi_dsm_prefetch(dsm, bytes, 200000, error, sizeof error) == KUMI_DSM_ARGUMENT &&
                    says("of a region of 100000"));
    kumi_dsm_barrier(dsm, error, sizeof error);
    kumi_dsm_free(dsm);

    unsetenv("WORLD_SIZE");
    expect_true("a variable that is missing is named",
                kumi_dsm_from_environment(NULL, error, sizeof error) == NULL &&
                    says("WORLD_SIZE is not set"));
    return expect_result();
}
