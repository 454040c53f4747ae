/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Planned collectives (libkumi.so): what one rank sends and receives, piece by piece, so that no
 * two messages meet in a switch. The library plans and keeps count; the caller moves the bytes, by
 * whatever it has.
 *
 *     ranks = kumi_coll_ranks_new(file, hosts, count, error, sizeof error);
 *     work = kumi_coll_work_new(ranks, rank, &asked, error, sizeof error);
 *     while (!kumi_coll_work_is_over(work)) {
 *         while ((at = kumi_coll_work_begin(work, &step)) >= 0)
 *             ... begin it; pieces between two ranks keep their order, and so do words ...
 *         ... wait for any that was begun, and for each ...
 *             kumi_coll_work_over(work, at);
 *     }
 *
 * A function that can fail returns NULL and writes why, at most `error_bytes` with the zero.
 * Different works may be used by different threads at once.
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
    /* A piece is sent. It is over when the peer has begun to receive it. */
    KUMI_COLL_SEND,
    /* A piece is received in its place. */
    KUMI_COLL_RECEIVE,
    /* A piece is received and combined with what is in its place. */
    KUMI_COLL_COMBINE,
    /* A message without content is sent: the peer may go on. */
    KUMI_COLL_TELL,
    /* One is received. */
    KUMI_COLL_HEAR,
    /* A short piece is sent. It is over when it has been handed over. Pieces between two ranks keep
     * their order, whether they are sent or posted. */
    KUMI_COLL_POST,
};

/* A collective: the same on all ranks. */
struct kumi_coll_asked {
    /* enum kumi_coll_operation */
    int32_t operation;
    /* The rank that has or gets all, where one does; else 0. */
    int32_t root;
    /* Bytes of each rank's block; of block from * ranks + to in an all-to-all; of the whole
     * vector, one number, in a broadcast, reduce or all-reduce. */
    const uint64_t *bytes;
    size_t blocks;
    /* Bytes of an element, within which nothing is cut: 1 if nothing is combined. */
    uint64_t element_bytes;
};

/*
 * A collective of direct messages in which a rank knows only the lengths of its own: it is carried
 * out in the order of the plan for blocks of one length. `operation`, `root` and `block_bytes` are
 * the same on all ranks.
 */
struct kumi_coll_like {
    /* KUMI_COLL_GATHER, KUMI_COLL_SCATTER or KUMI_COLL_ALL_TO_ALL. */
    int32_t operation;
    /* The rank that gathers or scatters; else 0. */
    int32_t root;
    /* Length for which it is planned: at least 1. */
    uint64_t block_bytes;
    /* By rank, bytes of the block that it sends or receives; in an all-to-all, of the block for
     * it. Those that this rank neither sends nor receives are not read. */
    const uint64_t *out_bytes;
    /* By rank, bytes of the block from it; of an all-to-all only. */
    const uint64_t *in_bytes;
};

struct kumi_coll_step {
    /* enum kumi_coll_action */
    int32_t action;
    /* A rank. */
    int32_t peer;
    /* Whose block; from * ranks + to in an all-to-all, 0 of a vector. */
    uint64_t block;
    /* Where in it, and how much. */
    uint64_t offset;
    uint64_t bytes;
};

#if (defined(__cplusplus) && __cplusplus >= 201103L) || __STDC_VERSION__ >= 201112L
#ifdef __cplusplus
#define KUMI_COLL_ASSERT(claim) static_assert(claim, "the layout of KUMI_ABI")
#else
#define KUMI_COLL_ASSERT(claim) _Static_assert(claim, "the layout of KUMI_ABI")
#endif
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_asked) == 32);
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_like) == 32);
KUMI_COLL_ASSERT(sizeof(struct kumi_coll_step) == 32);
#undef KUMI_COLL_ASSERT
#endif

struct kumi_coll_ranks;
struct kumi_coll_work;

/* Digest of the network in a topology file, NULL for none; comments and layout of the file do
 * not count. 0 on success, -1 with a message if the file cannot be used. */
int kumi_coll_network_digest(const char *file, uint64_t *digest, char *error, size_t error_bytes);

/* The network of `count` ranks on hosts of these names: of the topology file, or of one switch
 * if `file` is NULL. */
struct kumi_coll_ranks *kumi_coll_ranks_new(const char *file, const char *const *hosts, int count,
                                            char *error, size_t error_bytes);

/* The same of some ranks of a job whose others, on `job_hosts`, may be at work meanwhile: of
 * links that they share they have their part. */
struct kumi_coll_ranks *kumi_coll_ranks_in_job(const char *file, const char *const *hosts, int count,
                                               const char *const *job_hosts, int job_count,
                                               char *error, size_t error_bytes);

/* Whether all ranks are on one switch, each with a link of its own. */
int kumi_coll_ranks_is_flat(const struct kumi_coll_ranks *ranks);

/* Whether some are so far apart, in sites, that the hops of a collective count more than its
 * messages. */
int kumi_coll_ranks_is_far(const struct kumi_coll_ranks *ranks);

/* No work of the ranks may be left. */
void kumi_coll_ranks_free(struct kumi_coll_ranks *ranks);

/* The part of `rank`. A plan is kept: the next one like it costs next to nothing. */
struct kumi_coll_work *kumi_coll_work_new(const struct kumi_coll_ranks *ranks, int rank,
                                          const struct kumi_coll_asked *asked, char *error,
                                          size_t error_bytes);

/* The part of `rank`, whose own lengths only are known. */
struct kumi_coll_work *kumi_coll_work_like(const struct kumi_coll_ranks *ranks, int rank,
                                           const struct kumi_coll_like *like, char *error,
                                           size_t error_bytes);

/* The next step to begin now, by its number, or -1. */
int64_t kumi_coll_work_begin(struct kumi_coll_work *work, struct kumi_coll_step *step);

/* A step is over: a sent piece is being received, which bounds what is on its way; a received
 * one is in its place. */
void kumi_coll_work_over(struct kumi_coll_work *work, int64_t step);

int kumi_coll_work_is_over(const struct kumi_coll_work *work);

/* How long the whole takes by the planner's reckoning. */
double kumi_coll_work_predicted_s(const struct kumi_coll_work *work);

void kumi_coll_work_free(struct kumi_coll_work *work);

#ifdef __cplusplus
}
#endif

#endif
