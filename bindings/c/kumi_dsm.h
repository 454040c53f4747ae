/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that the processes of a job share, on different machines (libkumi.so).
 *
 *    // MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set.
 *    struct kumi_dsm *dsm = kumi_dsm_from_environment(NULL, error, sizeof error);
 *    double *grid = kumi_dsm_alloc(dsm, bytes, KUMI_DSM_BLOCKS, 0, error, sizeof error);
 *    ... grid[mine] = ...;
 *    kumi_dsm_barrier(dsm, error, sizeof error);
 *    ... = grid[another one's];
 *    kumi_dsm_barrier(dsm, error, sizeof error);
 *    kumi_dsm_free(dsm);
 *
 * The memory has the same address in all processes. What one process has written, another one sees
 * after both have synchronised: at a barrier, or by a lock that passes from one to the other. Two
 * processes may write different bytes of the same page. Accesses to the same byte, of which one is
 * a write, need a barrier or a lock between them.
 *
 * Only changed bytes travel. Each page has a home, which has all its bytes after each barrier. The
 * first access to a page elsewhere gets it from there. A system call that reads or writes such a
 * page returns EFAULT: use kumi_dsm_prefetch before it, kumi_dsm_pin once, or a buffer. On kernels
 * before 6.7, only a buffer helps where the system call writes.
 *
 * Functions that return an int return an enum kumi_dsm_outcome. A function that fails writes the
 * reason to `error`, at most `error_bytes` with the terminating zero. One thread of a process makes
 * the calls. Others may use the memory between them, and must not write it during a lock, an unlock
 * or a barrier, nor use it during a recovery. A process that is forked from one with shared memory
 * must not use it.
 *
 * If a node dies or is cut off, active and later calls on all other nodes fail with KUMI_DSM_LOST
 * within 3 s. A process that accesses a page whose home is lost ends with a message. With replicas
 * it does not, and the nodes that are left can go on:
 *
 *    kumi_dsm_keep_replicas(dsm, error, sizeof error);
 *    ...
 *    while (round < rounds) {
 *        ... compute with rows of node `place` of `left` ...
 *        int outcome = kumi_dsm_barrier(dsm, error, sizeof error);
 *        if (outcome == KUMI_DSM_LOST) {
 *            struct kumi_dsm_recovery now = {.size = sizeof now};
 *            if (kumi_dsm_recover(dsm, &now, error, sizeof error) != 0)
 *                break;
 *            left = now.left, place = now.place, round = now.barriers - first_barriers;
 *        } else
 *            round++;
 *    }
 */
#ifndef KUMI_DSM_H
#define KUMI_DSM_H

#include <stddef.h>
#include <stdint.h>

#include "kumi_group.h"
#include "kumi_version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Homes of the pages of a region. */
enum kumi_dsm_placement {
    /* A contiguous block for each node. */
    KUMI_DSM_BLOCKS,
    /* The parameter's number of pages of 4 KiB for each node in turn. */
    KUMI_DSM_CYCLIC,
    /* All on the node whose number is the parameter. */
    KUMI_DSM_ON,
};

enum kumi_dsm_outcome {
    KUMI_DSM_DONE,
    /* A node is lost. */
    KUMI_DSM_LOST,
    /* The nodes made different calls. */
    KUMI_DSM_MISMATCH,
    /* An argument is invalid, or a lock is not held. */
    KUMI_DSM_ARGUMENT,
    /* The system refused something. */
    KUMI_DSM_SYSTEM,
    /* Too many nodes are lost, or one together with the node of its replicas: the job ends. */
    KUMI_DSM_ENDED,
};

struct kumi_dsm;

/*
 * Joins the processes that MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE name. `config` is that of
 * a group and may be NULL; `network` and `job` have no effect. Returns NULL if it fails.
 */
struct kumi_dsm *kumi_dsm_from_environment(const struct kumi_group_config *config, char *error,
                                           size_t error_bytes);

/*
 * As above, for a program that exchanges the cards itself, for example by MPI_Allgather. Writes a
 * card of KUMI_CARD_BYTES. kumi_dsm_join frees `listening` in any case. `cards` has those of all
 * nodes, by number.
 */
struct kumi_listening *kumi_dsm_listen(const struct kumi_group_config *config, char *card, char *error,
                                       size_t error_bytes);
struct kumi_dsm *kumi_dsm_join(struct kumi_listening *listening, int node, int nodes, const char *cards,
                               char *error, size_t error_bytes);

/*
 * Leaves the job, and unmaps its memory. All nodes leave after a last barrier: a node that leaves
 * earlier is lost for the others after 2 s.
 */
void kumi_dsm_free(struct kumi_dsm *dsm);

/* Returns the number of this node, and the number of nodes. */
int kumi_dsm_node(const struct kumi_dsm *dsm);
int kumi_dsm_nodes(const struct kumi_dsm *dsm);

/*
 * Keeps a replica of each page on another node. All nodes call it, before the first allocation. A
 * barrier is two exchanges then, and changed bytes travel twice; memory is five times that of the
 * pages which are used.
 */
int kumi_dsm_keep_replicas(const struct kumi_dsm *dsm, char *error, size_t error_bytes);

/* What a recovery has led to: the same on all nodes that are left, but for `place`. */
struct kumi_dsm_recovery {
    /* sizeof(struct kumi_dsm_recovery) */
    size_t size;
    /* Barriers that count as passed. The memory is as it was at the last one of them. */
    uint64_t barriers;
    /* Number of nodes that are left, and the place of this node among them, from 0 on. */
    int left;
    int place;
};

/*
 * Goes on without lost nodes, when a call has failed with KUMI_DSM_LOST. All nodes that are left
 * call it. The memory goes back to the last barrier: what was written since then is undone on all
 * nodes, all locks are free, and memory that was allocated since then must be allocated again.
 * Nodes keep their numbers. More than half of the nodes must be left, or half with the lowest
 * number: so a network that falls apart does not leave two jobs. `recovery` may be NULL.
 */
int kumi_dsm_recover(const struct kumi_dsm *dsm, struct kumi_dsm_recovery *recovery, char *error,
                     size_t error_bytes);

/* Returns 1 if a node takes part, and 0 if the others have gone on without it. */
int kumi_dsm_is_left(const struct kumi_dsm *dsm, int node);

/* Allocates zeros. All nodes make the same calls in the same order. Returns NULL if it fails. */
void *kumi_dsm_alloc(const struct kumi_dsm *dsm, size_t bytes, int placement, uint32_t parameter, char *error,
                     size_t error_bytes);

/*
 * Allocates zeros of which each node has all pages. At a barrier each node sends what it has
 * written to all others, so that no access waits. It suits memory that all nodes read after each
 * barrier. Locks have no effect on it.
 */
void *kumi_dsm_alloc_updated(const struct kumi_dsm *dsm, size_t bytes, char *error, size_t error_bytes);

/* Returns when all nodes have called it. */
int kumi_dsm_barrier(const struct kumi_dsm *dsm, char *error, size_t error_bytes);

/* Takes a lock: any number is one. Nodes get it in the order of their requests. */
int kumi_dsm_lock(const struct kumi_dsm *dsm, uint32_t lock, char *error, size_t error_bytes);
int kumi_dsm_unlock(const struct kumi_dsm *dsm, uint32_t lock, char *error, size_t error_bytes);

/* Gets the pages of some bytes together. System calls may use them until the next acquire. */
int kumi_dsm_prefetch(const struct kumi_dsm *dsm, const void *at, size_t bytes, char *error,
                      size_t error_bytes);

/*
 * Keeps the pages of some bytes for system calls: they are got again at each lock and barrier that
 * closes them. kumi_dsm_unpin ends that.
 */
int kumi_dsm_pin(const struct kumi_dsm *dsm, const void *at, size_t bytes, char *error, size_t error_bytes);
int kumi_dsm_unpin(const struct kumi_dsm *dsm, const void *at, size_t bytes, char *error, size_t error_bytes);

/* Totals of a node since it joined. */
enum kumi_dsm_total {
    /* Accesses to pages that were not valid, and pages that were got from their homes. */
    KUMI_DSM_MISSES,
    KUMI_DSM_FETCHED_PAGES,
    /* Pages whose changed bytes went home, these bytes, and the same with offsets and lengths. */
    KUMI_DSM_DIFFED_PAGES,
    KUMI_DSM_CHANGED_BYTES,
    KUMI_DSM_DIFF_BYTES,
    /* Bytes that were sent to all other nodes, for each of them. */
    KUMI_DSM_PUSHED_BYTES,
    KUMI_DSM_BARRIERS,
    KUMI_DSM_LOCKS,
    /* Messages of the protocol, without pages and diffs, and their bytes. */
    KUMI_DSM_MESSAGES,
    KUMI_DSM_MESSAGE_BYTES,
    /* Pages that writers sent before a barrier, because this node reads them after each one. */
    KUMI_DSM_REFRESHED_PAGES,
};

/* Returns a total; 0 for an unknown one. `kumi dsm show` has them for all processes of a host. */
uint64_t kumi_dsm_total(const struct kumi_dsm *dsm, int total);

#ifdef __cplusplus
}
#endif

#endif
