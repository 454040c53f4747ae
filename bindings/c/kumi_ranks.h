/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The ranks of a job as Wind reaches them (libkumi.so): a node whose peers are the other ranks.
 * They find each other as those of a group do.
 *
 *    // MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set.
 *    struct kumi_ranks *ranks = kumi_ranks_from_environment(NULL, 0, error, sizeof error);
 *    struct kumi_wind_node *node = kumi_ranks_node(ranks);
 *    uint32_t peer = kumi_ranks_peer(ranks, 1);
 *    kumi_wind_send(node, peer, KUMI_WIND_ORDERED, "hello", 5, error, sizeof error);
 *    kumi_ranks_free(ranks);
 *
 * A program that can exchange data between all ranks itself does so with their cards:
 *
 *    listening = kumi_ranks_listen(NULL, card, error, sizeof error);
 *    ... all ranks' cards, by rank, to `cards` ...
 *    ranks = kumi_ranks_join(listening, rank, count, cards, 0, error, sizeof error);
 *
 * A function that returns NULL writes the reason to `error`, at most `error_bytes` with the
 * terminating zero.
 */
#ifndef KUMI_RANKS_H
#define KUMI_RANKS_H

#include "kumi_group.h"
#include "kumi_wind.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kumi_ranks;

/* Writes a card of KUMI_CARD_BYTES, as kumi_group_listen does. */
struct kumi_listening *kumi_ranks_listen(const struct kumi_group_config *config, char *card, char *error,
                                         size_t error_bytes);

/*
 * Opens this rank's node. `cards` holds all ranks' cards, by rank. If `trusted` is not 0, sessions
 * are authenticated and not encrypted, as those of kumi_wind_open_trusted; it is the same on all
 * ranks. Frees `listening` in any case.
 */
struct kumi_ranks *kumi_ranks_join(struct kumi_listening *listening, int rank, int count, const char *cards,
                                   int trusted, char *error, size_t error_bytes);

struct kumi_ranks *kumi_ranks_from_environment(const struct kumi_group_config *config, int trusted,
                                               char *error, size_t error_bytes);

/* Closes the node. Regions must be freed before. */
void kumi_ranks_free(struct kumi_ranks *ranks);

/* Returns the node, which belongs to `ranks`. */
struct kumi_wind_node *kumi_ranks_node(const struct kumi_ranks *ranks);

/* Returns this process's rank, and the number of ranks. */
int kumi_ranks_rank(const struct kumi_ranks *ranks);
int kumi_ranks_count(const struct kumi_ranks *ranks);

/*
 * Returns the peer that is another rank, or UINT32_MAX for this rank and for one that does not
 * exist.
 */
uint32_t kumi_ranks_peer(const struct kumi_ranks *ranks, int rank);

/* Stores the secret of the sessions, which is the same on all ranks. */
void kumi_ranks_secret(const struct kumi_ranks *ranks, uint8_t secret[KUMI_WIND_SECRET_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
