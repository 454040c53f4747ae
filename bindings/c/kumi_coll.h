/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Planned collectives (libkumi.so): the sends and receives of one rank, chunk by chunk, such that
 * no two messages meet in a switch port. The library plans and keeps the state. The caller moves
 * the bytes by its own means.
 *
 *    ranks = kumi_coll_ranks_new(file, hosts, count, error, sizeof error);
 *    work = kumi_coll_work_new(ranks, rank, &request, error, sizeof error);
 *    while (!kumi_coll_work_is_complete(work)) {
 *        while ((at = kumi_coll_work_begin(work, &step)) >= 0)
 *            ... begin it; chunks of two ranks keep their order, and control messages too ...
 *        ... wait for any step that was begun, and for each that is complete ...
 *            kumi_coll_work_complete(work, at);
 *    }
 *
 * A function that can fail returns NULL and writes the reason to `error`, at most `error_bytes`
 * with the terminating zero. Different threads may use different works at the same time.
 */
#ifndef KUMI_COLL_H
#define KUMI_COLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kumi_coll_operation {
    KUMI_COLL_GATHER,
    KUMI_COLL_SCATTER,
    KUMI_COLL_BROADCAST,
    KUMI_COLL_REDUCE,
    KUMI_COLL_ALL_GATHER,
    KUMI_COLL_REDUCE_SCATTER,
    KUMI_COLL_ALL_REDUCE,
    KUMI_COLL_ALL_TO_ALL,
};

enum kumi_coll_action {
    /* Sends a chunk. The step is complete when the peer has begun to receive it. */
    KUMI_COLL_SEND,
    /* Receives a chunk into its place. */
    KUMI_COLL_RECEIVE,
    /* Receives a chunk and combines it with the content of its place. */
    KUMI_COLL_COMBINE,
    /* Sends a control message, which has no payload: the peer may continue. */
    KUMI_COLL_GRANT,
    /* Receives a control message. */
    KUMI_COLL_AWAIT,
    /*
     * Sends a short chunk. The step is complete when it has been handed over. Chunks between two
     * ranks keep their order, whether they are sent or posted.
     */
    KUMI_COLL_POST,
};

/* A collective, equal on all ranks. */
struct kumi_coll_request {
    /* enum kumi_coll_operation */
    int32_t operation;
    /* Rank of the root, or 0 for a collective without one. */
    int32_t root;
    /*
     * Bytes of each rank's block; of block from * ranks + to in an all-to-all; of the whole vector,
     * one number, in a broadcast, reduce or all-reduce.
     */
    const uint64_t *bytes;
    size_t blocks;
    /* Bytes of an element. Chunks end at element boundaries. 1 if nothing is combined. */
    uint64_t element_bytes;
};

/*
 * A collective of direct messages in which a rank knows only the lengths of its own blocks. It
 * follows the plan for blocks of one length. `operation`, `root` and `block_bytes` are equal on all
 * ranks.
 */
struct kumi_coll_equal {
    /* KUMI_COLL_GATHER, KUMI_COLL_SCATTER or KUMI_COLL_ALL_TO_ALL. */
    int32_t operation;
    /* Rank of the root of a gather or scatter; else 0. */
    int32_t root;
    /* Block length for which it is planned, at least 1. */
    uint64_t block_bytes;
    /*
     * By rank, bytes of the block that it sends or receives; in an all-to-all, of the block for it.
     * Entries that this rank neither sends nor receives are not read.
     */
    const uint64_t *out_bytes;
    /* By rank, bytes of the block from it; for an all-to-all only. */
    const uint64_t *in_bytes;
};

/* The part of the network that each connection of an all-to-all may use. */
struct kumi_coll_fair_share {
    /* Payload rate at which blocks of one length all end together. */
    double bytes_per_s;
    /* Payload that each connection may send at once so that those of all fit a port of 32 KiB. */
    uint64_t burst_bytes;
};

struct kumi_coll_step {
    /* enum kumi_coll_action */
    int32_t action;
    /* Peer rank. */
    int32_t peer;
    /* Number of the block; from * ranks + to in an all-to-all, 0 for a vector. */
    uint64_t block;
    /* Byte offset in the block, and number of bytes. */
    uint64_t offset;
    uint64_t bytes;
};

#if (defined(__cplusplus) && __cplusplus >= 201103L) || __STDC_VERSION__ >= 201112L
#ifdef __cplusplus
#define KUMI_COLL_ASSERT(claim) static_assert(claim, "the layout of KUMI_ABI")
#else
#define KUMI_COLL_ASSERT(claim) _Static_assert(claim, "the layout of KUMI_ABI")
#endif
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_request) == 32);
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_equal) == 32);
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_step) == 32);
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_fair_share) == 16);
#undef KUMI_COLL_ASSERT
#endif

struct kumi_coll_ranks;
struct kumi_coll_work;

/*
 * Computes the digest of the network in a topology file, or of no file for NULL. Comments and
 * layout of the file do not count. Returns 0, or -1 with a message if the file cannot be used.
 */
int kumi_coll_network_digest(const char *file, uint64_t *digest, char *error, size_t error_bytes);

/*
 * Returns the network of `count` ranks on hosts with these names, from the topology file, or on one
 * switch if `file` is NULL.
 */
struct kumi_coll_ranks *kumi_coll_ranks_new(const char *file, const char *const *hosts, int count,
                                            char *error, size_t error_bytes);

/*
 * The same for some ranks of a job while other ranks of it, on `job_hosts`, may be active. They get
 * their share of common links.
 */
struct kumi_coll_ranks *kumi_coll_ranks_in_job(const char *file, const char *const *hosts, int count,
                                               const char *const *job_hosts, int job_count, char *error,
                                               size_t error_bytes);

/* Returns whether all ranks are on one switch, each with a link of its own. */
int kumi_coll_ranks_is_single_switch(const struct kumi_coll_ranks *ranks);

/*
 * Returns whether the ranks are on several sites, so far apart that hops matter more than messages.
 */
int kumi_coll_ranks_is_multi_site(const struct kumi_coll_ranks *ranks);

/*
 * Finds the fair share of a connection in an all-to-all of all ranks. Returns 0, or -1 for a single
 * rank and where a window can express the share on the longest path.
 */
int kumi_coll_ranks_fair_share(const struct kumi_coll_ranks *ranks, struct kumi_coll_fair_share *share);

/*
 * Writes the other ranks to `others`, in the order in which `rank` begins its blocks of an
 * all-to-all that sends all at once: ranks on far sites first.
 */
void kumi_coll_ranks_sending_order(const struct kumi_coll_ranks *ranks, int rank, int *others);

/* Frees the network. No work of its ranks may exist. */
void kumi_coll_ranks_free(struct kumi_coll_ranks *ranks);

/*
 * Returns the part of `rank` in a collective. The plan is cached, so the next one with the same
 * parameters costs almost nothing.
 */
struct kumi_coll_work *kumi_coll_work_new(const struct kumi_coll_ranks *ranks, int rank,
                                          const struct kumi_coll_request *request, char *error,
                                          size_t error_bytes);

/* Returns the part of `rank`, which knows only the lengths of its own blocks. */
struct kumi_coll_work *kumi_coll_work_equal(const struct kumi_coll_ranks *ranks, int rank,
                                            const struct kumi_coll_equal *equal, char *error,
                                            size_t error_bytes);

/* Returns the number of the next step to begin now, or -1. */
int64_t kumi_coll_work_begin(struct kumi_coll_work *work, struct kumi_coll_step *step);

/*
 * Completes a step. For a send, the peer has begun to receive it, which limits the bytes in flight.
 * For a receive, the chunk is in its place.
 */
void kumi_coll_work_complete(struct kumi_coll_work *work, int64_t step);

int kumi_coll_work_is_complete(const struct kumi_coll_work *work);

/* Returns the predicted time of the whole collective, in seconds. */
double kumi_coll_work_predicted_s(const struct kumi_coll_work *work);

void kumi_coll_work_free(struct kumi_coll_work *work);

#ifdef __cplusplus
}
#endif

#endif
