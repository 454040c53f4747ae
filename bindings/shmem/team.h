/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Teams, and the letters between their members that collectives consist of. */
#ifndef KUMI_SHMEM_TEAM_H
#define KUMI_SHMEM_TEAM_H

#include "job.h"

struct kumi_shmem_team {
    /* Member i is PE start + i * stride. */
    int start, stride, count, me;
    /* Number of its post boxes. An active set has those of its PEs. */
    int index;
    /* Letters of an earlier team with the same boxes have a lower one. */
    uint64_t generation;
    int num_contexts;
};

enum { ACTIVE_SET = -1, TEAMS_MAX = 64, ROUNDS_MAX = 16 };

static inline int team_pe(const struct kumi_shmem_team *team, int member)
{
    return team->start + member * team->stride;
}

/* Creates the teams of the specification. */
void teams_start(void);

/* Returns the team that a program means. */
struct kumi_shmem_team *team_of(const char *call, shmem_team_t handle);

/* Returns the PE's number in the team, or -1. */
int team_member(const struct kumi_shmem_team *team, int pe);

/* Letters and synchronisations of a generation have numbers below the next one: 10^12 of them. */
static inline uint64_t first_number(const struct kumi_shmem_team *team)
{
    return team->generation << 40;
}

/* mail.c: bytes of the library's own memory that the boxes take. */
size_t mail_start(size_t offset);
void mail_stop(void);
/* Begins a new generation of the boxes of a team. */
void mail_renew(const struct kumi_shmem_team *team);
/*
 * Letters that a member may send to another one before it receives one from it: fewer than a ring
 * has slots. With as many, all members could wait for a slot of the next one, because a reader says
 * after every second letter only that it has read.
 */
enum { LETTERS_AHEAD = 3 };
/* Most bytes of one letter. */
size_t letter_bytes_max(const struct kumi_shmem_team *team);
/*
 * Writes to the library's own memory of a PE: by its kernel, or by a message, which has no answer
 * but an acknowledgement.
 */
void post(const char *call, int pe, size_t offset, const void *data, size_t bytes);
/* Sends a letter to member me + 2^round. */
void send_letter(const char *call, const struct kumi_shmem_team *team, int round, const void *data,
                 size_t bytes);
/* Waits for the next letter of member me - 2^round, whose length is known. */
void receive_letter(const char *call, const struct kumi_shmem_team *team, int round, void *data,
                    size_t bytes);

/* synchronisation.c: as mail_start and mail_renew, for the words of synchronisations. */
size_t synchronisation_start(size_t offset);
void synchronisation_renew(const struct kumi_shmem_team *team);
/* Waits until all members have called it. */
void team_sync(const char *call, const struct kumi_shmem_team *team);

/* collectives.c */
/* All members' blocks of `bytes` bytes, in the members' order. */
void gather_all(const char *call, const struct kumi_shmem_team *team, void *all, const void *mine,
                size_t bytes);
/* Returns the team of an active set. */
struct kumi_shmem_team active_set(const char *call, int start, int log_stride, int size);

#endif
