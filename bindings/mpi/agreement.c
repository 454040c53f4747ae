/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Ranks compare their terms in one all-reduce. If the terms differ, an all-gather finds the ranks
 * that differ.
 *
 * All terms are equal if and only if the bitwise AND of all terms is the complement of the bitwise
 * AND of their complements. The bits that may differ are left out: the AND of all terms has one if
 * all ranks have it.
 */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agreement.h"

enum { POLL_NS = 20 * 1000, SECOND_NS = 1000 * 1000 * 1000 };

/*
 * Time in MPI_Init after which a rank reports that it waits, in seconds. Chosen by judgement: ranks
 * of one job leave MPI_Init within a second of each other.
 */
enum { PATIENCE_S = 10 };

uint64_t kumi_digest(uint64_t digest, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    if (digest == 0)
        digest = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++)
        digest = (digest ^ at[i]) * 0x100000001b3u;
    return digest;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / SECOND_NS;
}

/*
 * Waits for a request. Reports a long wait once, because a rank without the preload library never
 * takes part.
 */
static int wait_for(const struct kumi_abi *abi, void *request, const char *host, int rank)
{
    double began_s = now_s();
    bool is_said = false;
    for (int polls = 0;; polls++) {
        int is_complete = 0;
        int error = abi->Test(request, &is_complete, abi->status_ignore);
        if (error != 0 || is_complete)
            return error;
        if (polls > 1000)
            nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        if (is_said || now_s() - began_s < PATIENCE_S)
            continue;
        is_said = true;
        fprintf(
            stderr,
            "kumi: rank %d on %s has waited %d s in MPI_Init for the other ranks: start all ranks of a job with "
            "`kumi run`, or none of them\n",
            rank, host, PATIENCE_S);
    }
}

/*
 * Size of the reason for which a rank does not plan, in bytes. A longer reason is truncated. Most
 * reasons name a file.
 */
enum { WHY_BYTES = 200 };

/* Data that ranks exchange if their terms differ. */
struct card {
    char host[KUMI_HOST_BYTES], why_not[WHY_BYTES];
    struct kumi_terms terms;
};

static const char *difference(const struct kumi_terms *a, const struct kumi_terms *b)
{
    if ((a->plans ^ b->plans) & KUMI_PLANS)
        return "do not both plan";
    if (a->network != b->network)
        return "have different network files: copy one of them to all hosts";
    if (a->library != b->library)
        return "have different versions of libkumi.so: install one version on all hosts";
    if (a->options != b->options)
        return "have different --coll or --reproducible options: use the same options on all ranks";
    return a->preload != b->preload ? "have different versions of kumi: install one version on all hosts"
                                    : NULL;
}

static void explain(const struct card *all, int size)
{
    const char *first = NULL;
    int odd = 0, count = 0;
    for (int i = size - 1; i > 0; i--) {
        const char *why = difference(&all[0].terms, &all[i].terms);
        if (why == NULL)
            continue;
        first = why;
        odd = i;
        count++;
    }
    static const char left[] = "kumi: collectives are left to the MPI library:";
    if (first == NULL)
        return;
    if ((all[0].terms.plans ^ all[odd].terms.plans) & KUMI_PLANS) {
        int none = all[0].terms.plans & KUMI_PLANS ? odd : 0;
        fprintf(
            stderr,
            "%s rank %d on host %s does not plan (%s), but rank %d on host %s does; %d of %d ranks differ from "
            "rank 0\n",
            left, none, all[none].host, all[none].why_not, odd - none, all[odd - none].host, count, size);
        return;
    }
    fprintf(stderr, "%s rank 0 on host %s and rank %d on host %s %s; %d of %d ranks differ from rank 0\n",
            left, all[0].host, odd, all[odd].host, first, count, size);
}

bool kumi_agree(const struct kumi_abi *abi, const char *host, int rank, int size, struct kumi_terms *own,
                const char *why_not)
{
    struct {
        struct kumi_terms terms, complement;
    } mine = {.terms = *own}, all;
    const unsigned char *bytes = (const unsigned char *)own;
    for (size_t i = 0; i < sizeof(*own); i++)
        ((unsigned char *)&mine.complement)[i] = (unsigned char)~bytes[i];
    uint64_t request[KUMI_REQUEST_BYTES_MAX / sizeof(uint64_t)] = {0};
    if (abi->Iallreduce(&mine, &all, (int)sizeof(mine), abi->byte, abi->bit_and, abi->world, request) != 0 ||
        wait_for(abi, request, host, rank) != 0) {
        own->plans &= ~(uint64_t)KUMI_MAY_DIFFER;
        return false;
    }
    uint64_t common_bits = all.terms.plans & KUMI_MAY_DIFFER;
    if ((common_bits & KUMI_FAIR_SHARE) && all.terms.shared_network != ~all.complement.shared_network) {
        common_bits &= ~(uint64_t)KUMI_FAIR_SHARE;
        if (rank == 0)
            fprintf(stderr, "kumi: all-to-alls have no fair share: ranks have different network files: "
                            "copy one of them to all hosts\n");
    }
    all.terms.shared_network = 0;
    all.complement.shared_network = ~(uint64_t)0;
    all.terms.plans &= ~(uint64_t)KUMI_MAY_DIFFER;
    all.complement.plans |= KUMI_MAY_DIFFER;
    bool is_equal = true;
    for (size_t i = 0; i < sizeof(*own); i++)
        is_equal &= ((unsigned char *)&all.terms)[i] == (unsigned char)~((unsigned char *)&all.complement)[i];
    own->plans = (own->plans & ~(uint64_t)KUMI_MAY_DIFFER) | common_bits;
    if (is_equal)
        return true;
    struct card card = {.terms = *own}, *cards = calloc((size_t)size, sizeof(*cards));
    /*
     * Without memory this rank could not take part in the all-gather, and the others would wait for
     * it.
     */
    if (cards == NULL)
        abort();
    strncpy(card.host, host, sizeof(card.host) - 1);
    strncpy(card.why_not, why_not == NULL ? "" : why_not, sizeof(card.why_not) - 1);
    if (abi->Allgather(&card, (int)sizeof(card), abi->byte, cards, (int)sizeof(card), abi->byte,
                       abi->world) == 0 &&
        rank == 0)
        explain(cards, size);
    free(cards);
    return false;
}
