/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Planned collectives between processes without an MPI library (libkumi.so). A thread of the
 * library moves the bytes over TCP, such that no two messages meet in a switch port. The program
 * waits, or computes meanwhile.
 *
 *    // MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set.
 *    group = kumi_group_from_environment(NULL, error, sizeof error);
 *    if (kumi_all_reduce(group, mine, sums, count, KUMI_F32, KUMI_SUM, error, sizeof error)
 *        != KUMI_DONE)
 *        ... error has the reason ...
 *    kumi_group_free(group);
 *
 * A program that can exchange data between all ranks itself, for example by MPI_Allgather, starts a
 * group with it:
 *
 *    listening = kumi_group_listen(NULL, card, error, sizeof error);
 *    ... all ranks' cards, by rank, to `cards` ...
 *    group = kumi_group_join(listening, rank, ranks, cards, error, sizeof error);
 *
 * Collectives are executed in the order in which they are started, which must be the same on all
 * ranks. If a rank dies, hangs or is cut off, active calls on all other ranks fail within a second
 * (KUMI_LOST). None hangs. The others may call kumi_group_shrink and continue. A process that is
 * forked from one with a group has none of its connections. There, all functions except the one
 * that frees fail with KUMI_SYSTEM.
 *
 * A function that returns NULL writes the reason to `error`, at most `error_bytes` with the
 * terminating zero. Different threads may use one group. A struct begins with its `size`, which the
 * caller sets to its sizeof. Members that later releases add are zero for programs compiled before.
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
    /* A byte, zero or not. The sum is the logical OR, the product the logical AND. */
    KUMI_BOOL,
};

/* AND, OR and XOR are for integers. Integers wrap around. */
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
    /* The limit has passed. The operation is still active. */
    KUMI_NOT_YET,
    /* A rank is lost. The group is unusable until it has shrunk. */
    KUMI_LOST,
    /* The other ranks have lost this rank, and continue without it. */
    KUMI_EXCLUDED,
    /* Ranks made different requests. The group remains usable. */
    KUMI_DISAGREE,
    /* A message does not fit its buffer. The group remains usable. */
    KUMI_MISFIT,
    /* The kernel refused an operation. */
    KUMI_SYSTEM,
    KUMI_CLOSED,
    /* An argument is invalid. Only functions that wait return this. */
    KUMI_ARGUMENT,
};

struct kumi_listening;
struct kumi_group;
struct kumi_ticket;

/* All members except `size` may be NULL or 0. */
struct kumi_group_config {
    /* sizeof(struct kumi_group_config) */
    size_t size;
    /* Name of this host in the topology file. */
    const char *host;
    /* Interface on whose addresses this host is reached. */
    const char *interface;
    /* Topology file, the same on all ranks. */
    const char *network;
    /* Time without a sign of life after which a rank is lost, in milliseconds; default 700. */
    uint32_t silence_ms;
    /* Time for ranks to find each other, in milliseconds; default 60 000. */
    uint32_t patience_ms;
    /*
     * A group of all ranks of the job, on all ranks or on none, if other ranks of it may be active
     * beside this group. This group then takes its share of common links. It is needed only until
     * the group has started, or listens.
     */
    const struct kumi_group *job;
    /*
     * Secret of the job, 16 bytes or more, the same on all ranks. NULL: KUMI_JOB_SECRET, or the
     * content of the file KUMI_JOB_SECRET_FILE, or a value that the launcher gives to the job's
     * processes (SECURITY.md).
     */
    const char *secret;
};

/*
 * Writes a card of KUMI_CARD_BYTES: text, padded with zeros. A process with the card, and with the
 * job's secret if one is set, can join.
 */
struct kumi_listening *kumi_group_listen(const struct kumi_group_config *config, char *card, char *error,
                                         size_t error_bytes);

/* Joins the group. `cards` holds all ranks' cards, by rank. Frees `listening` in any case. */
struct kumi_group *kumi_group_join(struct kumi_listening *listening, int rank, int ranks, const char *cards,
                                   char *error, size_t error_bytes);

struct kumi_group *kumi_group_from_environment(const struct kumi_group_config *config, char *error,
                                               size_t error_bytes);

/* Leaves the group. Active calls end with KUMI_CLOSED; their tickets must be freed nevertheless. */
void kumi_group_free(struct kumi_group *group);

/* Returns this process's rank among the present members. */
int kumi_group_rank(const struct kumi_group *group);
int kumi_group_size(const struct kumi_group *group);

/*
 * Writes the present members, by their initial ranks, or the lost members, by their present ranks.
 * At most `room` are written. Returns their number.
 */
size_t kumi_group_members(const struct kumi_group *group, int32_t *ranks, size_t room);
size_t kumi_group_lost(const struct kumi_group *group, int32_t *ranks, size_t room);

/*
 * Continues without the lost ranks. All other ranks must call it, within `limit_ms` unless that is
 * negative. Ranks are renumbered in their order. Returns an enum kumi_group_outcome: KUMI_NOT_YET
 * if a rank, which `error` names, has not called it. The group shrinks when it does. The function
 * may be called again.
 */
int kumi_group_shrink(struct kumi_group *group, int64_t limit_ms, char *error, size_t error_bytes);

/*
 * A collective, equal on all ranks except for its tables. `bytes` is as in struct
 * kumi_coll_request: bytes of each rank's block, of block from * ranks + to, or of the whole
 * vector. The tables point to
 *
 *                    from                                 to
 *  gather            this rank's block                    on the root: each rank's
 *  scatter           on the root: each rank's block       this rank's
 *  broadcast         -                                    the vector, read on the root
 *  reduce            the vector                           on the root: the vector
 *  all-gather        this rank's block                    each rank's
 *  reduce-scatter    each rank's block                    this rank's
 *  all-reduce        the vector                           the vector
 *  all-to-all        the block to each rank               the block from each rank
 *
 * Both may be the same memory. Neither may be changed or freed until the ticket is settled.
 */
struct kumi_group_call {
    /* sizeof(struct kumi_group_call) */
    size_t size;
    /* enum kumi_coll_operation */
    int32_t operation;
    int32_t root;
    /* enum kumi_element, and for operations that combine, enum kumi_reduction */
    int32_t element;
    int32_t reduction;
    const uint64_t *bytes;
    size_t blocks;
    const void *const *from;
    void *const *to;
};

struct kumi_ticket *kumi_group_start(struct kumi_group *group, const struct kumi_group_call *call,
                                     char *error, size_t error_bytes);

/*
 * Sends or receives a message. It is sent when a place is free. A negative `from` receives from any
 * rank.
 */
struct kumi_ticket *kumi_group_send(struct kumi_group *group, int to, uint64_t tag, const void *at,
                                    uint64_t bytes, char *error, size_t error_bytes);
struct kumi_ticket *kumi_group_receive(struct kumi_group *group, int from, uint64_t tag, void *at,
                                       uint64_t bytes, char *error, size_t error_bytes);

/* Result of a message: its length and its sender. */
struct kumi_group_done {
    /* sizeof(struct kumi_group_done) */
    size_t size;
    uint64_t bytes;
    int32_t from;
    uint32_t reserved;
};

/*
 * Waits for the ticket, without a limit if `limit_ms` is negative. Returns an enum
 * kumi_group_outcome. May be called again.
 */
int kumi_ticket_wait(const struct kumi_ticket *ticket, int64_t limit_ms, struct kumi_group_done *done,
                     char *error, size_t error_bytes);
/*
 * Frees the ticket, even while its operation is active. No other thread may wait for it meanwhile.
 */
void kumi_ticket_free(struct kumi_ticket *ticket);

/*
 * Waits for the first settled one of several tickets, of one or several groups. Each ticket is
 * added to the queue under a name. The name is returned once, with KUMI_DONE whatever the ticket's
 * outcome is; KUMI_NOT_YET after the limit. No call may use a queue that has been freed.
 */
struct kumi_queue;
struct kumi_queue *kumi_queue_new(void);
void kumi_queue_free(struct kumi_queue *queue);
void kumi_ticket_notify(const struct kumi_ticket *ticket, const struct kumi_queue *queue, uint64_t name);
int kumi_queue_next(const struct kumi_queue *queue, int64_t limit_ms, uint64_t *name);

/* Executes a collective, and waits for it. */
static inline int kumi_group_do(struct kumi_group *group, const struct kumi_group_call *call, char *error,
                                size_t error_bytes)
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

/* All-reduce of a vector. `from` may equal `to`. */
static inline int kumi_all_reduce(struct kumi_group *group, const void *from, void *to, uint64_t count,
                                  enum kumi_element element, enum kumi_reduction reduction, char *error,
                                  size_t error_bytes)
{
    uint64_t bytes = count * kumi_element_size(element);
    struct kumi_group_call call = {
        sizeof call, KUMI_COLL_ALL_REDUCE, 0, (int32_t)element, (int32_t)reduction, &bytes, 1, &from, &to};
    return kumi_group_do(group, &call, error, error_bytes);
}

static inline int kumi_broadcast(struct kumi_group *group, void *vector, uint64_t bytes, int root,
                                 char *error, size_t error_bytes)
{
    struct kumi_group_call call = {
        sizeof call, KUMI_COLL_BROADCAST, root, KUMI_BYTE, KUMI_SUM, &bytes, 1, NULL, &vector};
    return kumi_group_do(group, &call, error, error_bytes);
}

/* Returns when all ranks have called it. */
static inline int kumi_barrier(struct kumi_group *group, char *error, size_t error_bytes)
{
    uint8_t nothing = 0;
    return kumi_all_reduce(group, &nothing, &nothing, 1, KUMI_U8, KUMI_MAX, error, error_bytes);
}

#ifdef __cplusplus
}
#endif

#endif
