/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Posted receives and messages that arrived. */
#ifndef MATCHING_H
#define MATCHING_H

#include "provider.h"

/* A message that arrived, or the offer of a long one. */
struct arrival {
    struct list link;
    struct peer *peer;
    bool is_tagged;
    bool is_offer;
    bool has_data;
    bool wants_confirmation;
    uint64_t tag;
    uint64_t data;
    uint64_t bytes;
    /* The sender's request. */
    uint64_t number;
    const void *contents;
    /* Owner of the contents. Without one, they follow this struct. */
    struct kumi_wind_message *message;
    /* Context of the FI_CLAIM that found the message. */
    void *claim;
};

/* A receive. */
struct receive {
    struct list link;
    bool is_tagged;
    bool has_completion;
    uint64_t tag;
    uint64_t ignore;
    fi_addr_t source;
    void *context;
    struct iovec buffers[BUFFERS_MAX];
    size_t buffer_count;
};

void matching_init(struct endpoint *endpoint);
void matching_free(struct endpoint *endpoint);

/* Gives a message to the receive that it matches, or keeps it. */
void matching_arrive(struct endpoint *endpoint, struct arrival *arrival);

/* Gives a receive the first message that it matches, or keeps a copy of it. */
int matching_post(struct endpoint *endpoint, const struct receive *receive);

/* FI_PEEK and FI_CLAIM: a search without a buffer, and the receive of a message that one found. */
int matching_peek(struct endpoint *endpoint, const struct receive *receive, uint64_t flags);
int matching_claim(struct endpoint *endpoint, const struct receive *receive, uint64_t flags);

ssize_t matching_cancel(fid_t fid, void *context);

/* Takes a part of a long message. */
void matching_take_data(struct request *request, uint64_t bytes);

#endif
