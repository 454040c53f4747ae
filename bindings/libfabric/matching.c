/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Matching of receives and messages, in the order of both. */
#include <stdlib.h>
#include <string.h>

#include "matching.h"
#include "wire.h"

void matching_init(struct endpoint *endpoint)
{
    for (int tagged = 0; tagged < 2; tagged++) {
        list_init(&endpoint->posted[tagged]);
        list_init(&endpoint->unexpected[tagged]);
    }
    list_init(&endpoint->claimed);
}

static void arrival_free(struct arrival *arrival)
{
    kumi_wind_message_free(arrival->message);
    free(arrival);
}

static void free_arrivals(struct list *list)
{
    LIST_FOR_EACH(link, list)
    arrival_free(LIST_MEMBER(link, struct arrival, link));
}

void matching_free(struct endpoint *endpoint)
{
    for (int tagged = 0; tagged < 2; tagged++) {
        free_arrivals(&endpoint->unexpected[tagged]);
        LIST_FOR_EACH(link, &endpoint->posted[tagged])
        free(LIST_MEMBER(link, struct receive, link));
    }
    free_arrivals(&endpoint->claimed);
}

static bool matches(struct endpoint *endpoint, const struct receive *receive, const struct arrival *arrival)
{
    if (receive->is_tagged && ((receive->tag ^ arrival->tag) & ~receive->ignore) != 0)
        return false;
    return receive->source == FI_ADDR_UNSPEC || receive->source == peer_name(endpoint, arrival->peer);
}

/* The completion of the receive of a message. */
static struct completion completion_of(struct endpoint *endpoint, const struct receive *receive,
                                       const struct arrival *arrival)
{
    return (struct completion){
        .context = receive->context,
        .flags =
            FI_RECV | (arrival->is_tagged ? FI_TAGGED : FI_MSG) | (arrival->has_data ? FI_REMOTE_CQ_DATA : 0),
        .bytes = arrival->bytes,
        .buffer = receive->buffer_count > 0 ? receive->buffers[0].iov_base : NULL,
        .data = arrival->data,
        .tag = arrival->tag,
        .source = peer_name(endpoint, arrival->peer),
    };
}

/* Tells the sender that the message is in the receiver's buffer. */
static void confirm(struct endpoint *endpoint, struct peer *peer, uint64_t number)
{
    if (!peer->is_self) {
        struct head head = {.kind = MESSAGE_CONFIRM, .number = number};
        control_send(endpoint, peer, &head, NULL, 0);
        return;
    }
    struct request *request = request_find(endpoint, peer, number);
    if (request != NULL)
        request_finish(request, 0, 0);
}

/* Answers an offer: the sender sends `bytes` bytes to the place, or none without a place. */
static void accept_offer(struct endpoint *endpoint, const struct arrival *arrival, uint64_t bytes,
                         uint64_t number, const struct kumi_wind_place *place)
{
    struct head head = {.kind = MESSAGE_ACCEPT, .tag = number, .bytes = bytes, .number = arrival->number};
    struct wire_place wire = place_to_wire(place);
    control_send(endpoint, arrival->peer, &head, &wire, sizeof wire);
}

static void finish_receive(struct request *request)
{
    struct completion *completion = &request->completion;
    if (request->bounce != NULL)
        buffers_scatter(request->buffers, request->buffer_count, request->bounce, request->wanted_bytes);
    if (request->is_confirmed)
        confirm(request->endpoint, request->peer, request->remote);
    request_finish(request, completion->excess_bytes > 0 ? FI_ETRUNC : 0, 0);
}

/* Receives a long message into the buffers of a receive. */
static void receive_offer(struct endpoint *endpoint, const struct receive *receive,
                          const struct arrival *arrival)
{
    struct completion completion = completion_of(endpoint, receive, arrival);
    struct kumi_wind_place place = {0};
    size_t room = buffers_bytes(receive->buffers, receive->buffer_count);
    struct request *request = request_new(endpoint, REQUEST_RECEIVE, arrival->peer);
    if (request == NULL) {
        completion.error = FI_ENOMEM;
        report(endpoint, EVENT_RECV, true, &completion);
        return;
    }
    request->event = EVENT_RECV;
    request->has_completion = receive->has_completion;
    request->bytes = arrival->bytes;
    request->wanted_bytes = arrival->bytes < room ? arrival->bytes : room;
    request->remote = arrival->number;
    request->is_confirmed = arrival->wants_confirmation;
    request->buffer_count = receive->buffer_count;
    memcpy(request->buffers, receive->buffers, sizeof request->buffers);
    completion.bytes = request->wanted_bytes;
    completion.excess_bytes = arrival->bytes - request->wanted_bytes;
    request->completion = completion;
    if (arrival->peer->is_lost) {
        request_finish(request, FI_ECONNABORTED, KUMI_WIND_LOST);
        return;
    }
    if (request->wanted_bytes == 0) {
        accept_offer(endpoint, arrival, 0, request->number, &place);
        finish_receive(request);
        return;
    }
    void *target = receive->buffers[0].iov_base;
    if (receive->buffers[0].iov_len < request->wanted_bytes)
        target = request->bounce = malloc(request->wanted_bytes);
    if (target != NULL)
        request->region = buffer_register(endpoint, target, request->wanted_bytes, &place);
    if (request->region == NULL) {
        accept_offer(endpoint, arrival, 0, request->number, &place);
        request_finish(request, FI_ENOMEM, 0);
        return;
    }
    accept_offer(endpoint, arrival, request->wanted_bytes, request->number, &place);
}

void matching_take_data(struct request *request, uint64_t bytes)
{
    uint64_t left = request->wanted_bytes - request->done_bytes;
    request->done_bytes += bytes < left ? bytes : left;
    if (request->done_bytes == request->wanted_bytes)
        finish_receive(request);
}

/* Gives the message to the receive, and frees it. */
static void deliver(struct endpoint *endpoint, const struct receive *receive, struct arrival *arrival)
{
    if (arrival->is_offer) {
        receive_offer(endpoint, receive, arrival);
    } else {
        struct completion completion = completion_of(endpoint, receive, arrival);
        completion.bytes =
            buffers_scatter(receive->buffers, receive->buffer_count, arrival->contents, arrival->bytes);
        completion.excess_bytes = arrival->bytes - completion.bytes;
        completion.error = completion.excess_bytes > 0 ? FI_ETRUNC : 0;
        report(endpoint, EVENT_RECV, receive->has_completion, &completion);
        if (arrival->wants_confirmation)
            confirm(endpoint, arrival->peer, arrival->number);
    }
    arrival_free(arrival);
}

void matching_arrive(struct endpoint *endpoint, struct arrival *arrival)
{
    LIST_FOR_EACH(link, &endpoint->posted[arrival->is_tagged])
    {
        struct receive *receive = LIST_MEMBER(link, struct receive, link);
        if (!matches(endpoint, receive, arrival))
            continue;
        list_remove(link);
        deliver(endpoint, receive, arrival);
        free(receive);
        return;
    }
    list_append(&endpoint->unexpected[arrival->is_tagged], &arrival->link);
}

static struct arrival *find_unexpected(struct endpoint *endpoint, const struct receive *receive)
{
    LIST_FOR_EACH(link, &endpoint->unexpected[receive->is_tagged])
    {
        struct arrival *arrival = LIST_MEMBER(link, struct arrival, link);
        if (matches(endpoint, receive, arrival))
            return arrival;
    }
    return NULL;
}

int matching_post(struct endpoint *endpoint, const struct receive *receive)
{
    struct arrival *arrival = find_unexpected(endpoint, receive);
    if (arrival != NULL) {
        list_remove(&arrival->link);
        deliver(endpoint, receive, arrival);
        return 0;
    }
    struct receive *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return -FI_ENOMEM;
    *kept = *receive;
    list_append(&endpoint->posted[receive->is_tagged], &kept->link);
    return 0;
}

/* Drops a message. The sender's operation completes. */
static void discard(struct endpoint *endpoint, struct arrival *arrival)
{
    struct kumi_wind_place place = {0};
    if (arrival->is_offer)
        accept_offer(endpoint, arrival, 0, 0, &place);
    if (arrival->wants_confirmation)
        confirm(endpoint, arrival->peer, arrival->number);
    arrival_free(arrival);
}

int matching_peek(struct endpoint *endpoint, const struct receive *receive, uint64_t flags)
{
    struct arrival *arrival = find_unexpected(endpoint, receive);
    if (arrival == NULL) {
        struct completion completion = {.context = receive->context,
                                        .flags = FI_RECV | FI_TAGGED,
                                        .tag = receive->tag,
                                        .source = FI_ADDR_NOTAVAIL,
                                        .error = FI_ENOMSG};
        report(endpoint, EVENT_RECV, true, &completion);
        return 0;
    }
    struct completion completion = completion_of(endpoint, receive, arrival);
    completion.buffer = NULL;
    if (endpoint->receive_queue != NULL)
        queue_push(endpoint->receive_queue, &completion);
    if (flags & (FI_CLAIM | FI_DISCARD))
        list_remove(&arrival->link);
    if (flags & FI_DISCARD) {
        discard(endpoint, arrival);
    } else if (flags & FI_CLAIM) {
        arrival->claim = receive->context;
        list_append(&endpoint->claimed, &arrival->link);
    }
    return 0;
}

int matching_claim(struct endpoint *endpoint, const struct receive *receive, uint64_t flags)
{
    LIST_FOR_EACH(link, &endpoint->claimed)
    {
        struct arrival *arrival = LIST_MEMBER(link, struct arrival, link);
        if (arrival->claim != receive->context)
            continue;
        list_remove(link);
        if (!(flags & FI_DISCARD)) {
            deliver(endpoint, receive, arrival);
            return 0;
        }
        struct completion completion = completion_of(endpoint, receive, arrival);
        report(endpoint, EVENT_RECV, receive->has_completion, &completion);
        discard(endpoint, arrival);
        return 0;
    }
    WARN(FI_LOG_EP_DATA, "FI_CLAIM without a message: its context is not that of an FI_PEEK | FI_CLAIM\n");
    return -FI_EINVAL;
}

ssize_t matching_cancel(fid_t fid, void *context)
{
    struct endpoint *endpoint = LIST_MEMBER(fid, struct endpoint, fid.fid);
    ssize_t outcome = -FI_ENOENT;
    lock(endpoint->domain);
    for (int tagged = 0; tagged < 2 && outcome != 0; tagged++) {
        LIST_FOR_EACH(link, &endpoint->posted[tagged])
        {
            struct receive *receive = LIST_MEMBER(link, struct receive, link);
            if (receive->context != context)
                continue;
            struct completion completion = {.context = context,
                                            .flags = FI_RECV | (tagged ? FI_TAGGED : FI_MSG),
                                            .tag = receive->tag,
                                            .source = FI_ADDR_NOTAVAIL,
                                            .error = FI_ECANCELED};
            list_remove(link);
            free(receive);
            report(endpoint, EVENT_RECV, true, &completion);
            outcome = 0;
            break;
        }
    }
    unlock(endpoint->domain);
    return outcome;
}
