/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Planned collectives between processes that no MPI library joins (libkumi.so). A thread of the library moves the
 * bytes, over TCP, so that no two messages meet in a switch; the program waits, or computes meanwhile.
 *
 *     group = kumi_group_from_environment(NULL, error, sizeof error);   MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
 *     if (kumi_all_reduce(group, mine, sums, count, KUMI_F32, KUMI_SUM, error, sizeof error) != KUMI_DONE)
 *         ... error says why ...
 *     kumi_group_free(group);
 *
 * Whoever has a way of its own to tell all ranks something, such as MPI_Allgather, begins a group by it:
 *
 *     listening = kumi_group_listen(NULL, card, error, sizeof error);
 *     ... all ranks' cards, by rank, to `cards` ...
 *     group = kumi_group_join(listening, rank, ranks, cards, error, sizeof error);
 *
 * Collectives are done in the order in which they are started, which is the same on all ranks. A rank that dies, hangs
 * or is cut off fails what is under way on all others within a second (KUMI_LOST), never hangs it; the others may call
 * kumi_group_shrink and go on. A process that is forked from one with a group has none of its connections: there all
 * functions but the one that frees fail, with KUMI_SYSTEM. A function that gives NULL writes why to `error`, at most `error_bytes` with the zero.
 * Different threads may use one group. A struct begins with its `size`, which the caller sets to its sizeof: members that
 * later releases add are zero for who was compiled before.
 */
#ifndef KUMI_GROUP_H
#define KUMI_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "kumi_coll.h"
#include "kumi_version.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KUMI_CARD_BYTES = 512 };

enum kumi_element {
    KUMI_BYTE,
    KUMI_I8,
    KUMI_U8,
    KUMI_I16,
    KUMI_U16,
    KUMI_I32,
    KUMI_U32,
    KUMI_I64,
    KUMI_U64,
    KUMI_F16,
    KUMI_BF16,
    KUMI_F32,
    KUMI_F64,
    /* A byte that is zero or not. The sum is whether any is set, the product whether all are. */
    KUMI_BOOL,
};

/* AND, OR and XOR are of integers. Integers wrap. */
enum kumi_reduction {
    KUMI_SUM,
    KUMI_PRODUCT,
    KUMI_MIN,
    KUMI_MAX,
    KUMI_AND,
    KUMI_OR,
    KUMI_XOR,
};

enum kumi_group_outcome {
    KUMI_DONE,
    /* Not within the limit. It is still under way. */
    KUMI_NOT_YET,
    /* A rank is lost: the group does nothing more until it has shrunk. */
    KUMI_LOST,
    /* The others have lost this rank, and go on without it. */
    KUMI_EXCLUDED,
    /* Ranks asked for different things. The group stands. */
    KUMI_DISAGREE,
    /* A message does not fit its place. The group stands. */
    KUMI_MISFIT,
    /* The kernel refused something. */
    KUMI_SYSTEM,
    KUMI_CLOSED,
    /* What was asked for makes no sense: only of the functions below that wait. */
    KUMI_ARGUMENT,
};

struct kumi_listening;
struct kumi_group;
struct kumi_ticket;

/* All but `size` may be NULL or 0. */
struct kumi_group_config {
    /* sizeof(struct kumi_group_config) */
    size_t size;
    /* This host's name, as the topology file has it. */
    const char *host;
    /* The interface whose addresses it is reached at. */
    const char *interface;
    /* The topology file: the same on all ranks. */
    const char *network;
    /* How long nothing may be heard of a rank that runs: 700. */
    uint32_t silence_ms;
    /* How long ranks may take to find each other: 60 000. */
    uint32_t patience_ms;
    /* A group of all ranks of the job, on all ranks or on none, where others of them may be at work beside this one: of
     * links that they share it takes its part. Needed only until the group is begun, or listens. */
    const struct kumi_group *job;
    /* What only the processes of the job know, 16 bytes or more: the same on all ranks. NULL: KUMI_JOB_SECRET, or the
     * content of the file KUMI_JOB_SECRET_FILE, or what the launcher lets the job's processes know (SECURITY.md). */
    const char *secret;
};

/* Writes a card of KUMI_CARD_BYTES, text with zeros behind it. Whoever has it, and the job's secret if one is set, can take
 * part. */
struct kumi_listening *kumi_group_listen(const struct kumi_group_config *config, char *card,
                                         char *error, size_t error_bytes);

/* All ranks' cards, by rank. Takes `listening`, whatever comes of it. */
struct kumi_group *kumi_group_join(struct kumi_listening *listening, int rank, int ranks,
                                   const char *cards, char *error, size_t error_bytes);

struct kumi_group *kumi_group_from_environment(const struct kumi_group_config *config, char *error,
                                               size_t error_bytes);

/* Leaves the group. What is under way ends with KUMI_CLOSED; its tickets are to be freed all the same. */
void kumi_group_free(struct kumi_group *group);

/* Among the members of now. */
int kumi_group_rank(const struct kumi_group *group);
int kumi_group_size(const struct kumi_group *group);

/* Members of now by the ranks they had at first, and members that are lost by their ranks of now: at most `room` are
 * written, and how many there are is returned. */
size_t kumi_group_members(const struct kumi_group *group, int32_t *ranks, size_t room);
size_t kumi_group_lost(const struct kumi_group *group, int32_t *ranks, size_t room);

/* Goes on without those that are lost; all others must call it, within `limit_ms` unless that is negative. Ranks are numbered
 * anew, in their order. An enum kumi_group_outcome: KUMI_NOT_YET if a rank, which `error` names, has not called it. The group
 * shrinks when it does; it may be called again. */
int kumi_group_shrink(struct kumi_group *group, int64_t limit_ms, char *error, size_t error_bytes);

/*
 * A collective: the same on all ranks, but for its tables. `bytes` is as in struct kumi_coll_asked: of each rank's
 * block, of block from * ranks + to, or of the whole vector. The tables point to
 *
 *                     from                                 to
 *   gather            this rank's block                    on the root: each rank's
 *   scatter           on the root: each rank's block       this rank's
 *   broadcast         -                                    the vector, read on the root
 *   reduce            the vector                           on the root: the vector
 *   all-gather        this rank's block                    each rank's
 *   reduce-scatter    each rank's block                    this rank's
 *   all-reduce        the vector                           the vector
 *   all-to-all        the block to each rank               the block from each rank
 *
 * What is read may be where it is written. Both stand, and are left alone, until the ticket is settled.
 */
struct kumi_group_call {
    /* sizeof(struct kumi_group_call) */
    size_t size;
    /* enum kumi_coll_operation */
    int32_t operation;
    int32_t root;
    /* enum kumi_element, and enum kumi_reduction where elements are combined */
    int32_t element;
    int32_t reduction;
    const uint64_t *bytes;
    size_t blocks;
    const void *const *from;
    void *const *to;
};

struct kumi_ticket *kumi_group_start(struct kumi_group *group, const struct kumi_group_call *call,
                                     char *error, size_t error_bytes);

/* A message. It goes when there is a place for it; `from` any rank if it is negative. */
struct kumi_ticket *kumi_group_send(struct kumi_group *group, int to, uint64_t tag, const void *at,
                                    uint64_t bytes, char *error, size_t error_bytes);
struct kumi_ticket *kumi_group_receive(struct kumi_group *group, int from, uint64_t tag, void *at,
                                       uint64_t bytes, char *error, size_t error_bytes);

/* Of a message: how long it is, and who sent it. */
struct kumi_group_done {
    /* sizeof(struct kumi_group_done) */
    size_t size;
    uint64_t bytes;
    int32_t from;
    uint32_t reserved;
};

/* An enum kumi_group_outcome; of no limit if `limit_ms` is negative. May be called again. */
int kumi_ticket_wait(const struct kumi_ticket *ticket, int64_t limit_ms, struct kumi_group_done *done,
                     char *error, size_t error_bytes);
/* Also while it is under way; nobody may wait for it meanwhile. */
void kumi_ticket_free(struct kumi_ticket *ticket);

/* Waits for whichever of several tickets is settled first, of one group or several: each was named to the queue, and its name
 * comes once, with KUMI_DONE whatever became of it; KUMI_NOT_YET after the limit. A queue outlives no call that uses it. */
struct kumi_queue;
struct kumi_queue *kumi_queue_new(void);
void kumi_queue_free(struct kumi_queue *queue);
void kumi_ticket_tell(const struct kumi_ticket *ticket, const struct kumi_queue *queue, uint64_t name);
int kumi_queue_next(const struct kumi_queue *queue, int64_t limit_ms, uint64_t *name);

/* Does a collective, and waits for it. */
static inline int kumi_group_do(struct kumi_group *group, const struct kumi_group_call *call,
                                char *error, size_t error_bytes)
{
    struct kumi_ticket *ticket = kumi_group_start(group, call, error, error_bytes);
    if (ticket == NULL)
        return KUMI_ARGUMENT;
    int outcome = kumi_ticket_wait(ticket, -1, NULL, error, error_bytes);
    kumi_ticket_free(ticket);
    return outcome;
}

static inline uint64_t kumi_element_size(enum kumi_element element)
{
    static const uint8_t bytes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};
    return bytes[element];
}

/* Of a vector: `from` may be `to`. */
static inline int kumi_all_reduce(struct kumi_group *group, const void *from, void *to,
                                  uint64_t count, enum kumi_element element,
                                  enum kumi_reduction reduction, char *error, size_t error_bytes)
{
    uint64_t bytes = count * kumi_element_size(element);
    struct kumi_group_call call = {sizeof call, KUMI_COLL_ALL_REDUCE, 0, (int32_t)element,
                                   (int32_t)reduction, &bytes, 1, &from, &to};
    return kumi_group_do(group, &call, error, error_bytes);
}

static inline int kumi_broadcast(struct kumi_group *group, void *vector, uint64_t bytes, int root,
                                 char *error, size_t error_bytes)
{
    struct kumi_group_call call = {sizeof call, KUMI_COLL_BROADCAST, root, KUMI_BYTE, KUMI_SUM,
                                   &bytes, 1, NULL, &vector};
    return kumi_group_do(group, &call, error, error_bytes);
}

/* Returns when all have called it. */
static inline int kumi_barrier(struct kumi_group *group, char *error, size_t error_bytes)
{
    uint8_t nothing = 0;
    return kumi_all_reduce(group, &nothing, &nothing, 1, KUMI_U8, KUMI_MAX, error, error_bytes);
}

#ifdef __cplusplus
}
#endif

#endif
