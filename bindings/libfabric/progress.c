/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Progress: messages that arrived, and requests that can continue. */
#include <stdlib.h>
#include <string.h>

#include "matching.h"
#include "wire.h"

/* Most messages that one call handles, so that it returns soon. */
enum { MESSAGES_MAX = 64 };

/* Interval at which lost peers are looked for. */
enum { CHECK_MS = 100 };

/*
 * Each call of progress gives Wind one part of a long message, which Wind copies, and takes what
 * arrived between two parts. At most QUEUE_BYTES wait in Wind: at 10 Gb/s, the data of 400 us.
 */
enum { PART_BYTES = 64 << 10, QUEUE_BYTES = 512 << 10 };

struct deferred {
    struct list link;
    struct peer *peer;
    struct head head;
    size_t bytes;
    uint8_t contents[];
};

/* Returns false if there is no room. */
static bool control_try(struct endpoint *endpoint, struct peer *peer, const struct head *head,
                        const void *contents, size_t bytes)
{
    char error[ERROR_TEXT_BYTES];
    struct head wire = head_swap(*head);
    struct iovec part = {(void *)contents, bytes};
    return kumi_wind_try_send(endpoint->node, peer->number, KUMI_WIND_UNORDERED, NULL, &wire, sizeof wire,
                              &part, 1, NULL, error, sizeof error) != KUMI_WIND_BUSY;
}

void control_send(struct endpoint *endpoint, struct peer *peer, const struct head *head, const void *contents,
                  size_t bytes)
{
    if (control_try(endpoint, peer, head, contents, bytes))
        return;
    struct deferred *deferred = malloc(sizeof *deferred + bytes);
    if (deferred == NULL) {
        WARN(FI_LOG_EP_DATA, "no memory for a message of kind %d: it is lost\n", head->kind);
        return;
    }
    deferred->peer = peer;
    deferred->head = *head;
    deferred->bytes = bytes;
    if (bytes > 0)
        memcpy(deferred->contents, contents, bytes);
    list_append(&endpoint->deferred, &deferred->link);
}

void control_free(struct endpoint *endpoint)
{
    LIST_FOR_EACH(link, &endpoint->deferred)
    free(LIST_MEMBER(link, struct deferred, link));
}

static void send_deferred(struct endpoint *endpoint)
{
    LIST_FOR_EACH(link, &endpoint->deferred)
    {
        struct deferred *next = LIST_MEMBER(link, struct deferred, link);
        if (!next->peer->is_lost &&
            !control_try(endpoint, next->peer, &next->head, next->contents, next->bytes))
            continue;
        list_remove(link);
        free(next);
    }
}

/* Keeps a message, or the offer of one, for matching. Frees the Wind message if it does not. */
static void take_message(struct endpoint *endpoint, struct peer *peer, const struct head *head,
                         struct kumi_wind_message *message)
{
    bool is_offer = head->kind == MESSAGE_OFFER;
    struct arrival *arrival = malloc(sizeof *arrival);
    if (arrival == NULL) {
        WARN(FI_LOG_EP_DATA, "no memory for a message of %zu bytes: it is lost\n", message->data_bytes);
        kumi_wind_message_free(message);
        return;
    }
    *arrival = (struct arrival){.peer = peer,
                                .is_tagged = (head->flags & FLAG_TAGGED) != 0,
                                .is_offer = is_offer,
                                .has_data = (head->flags & FLAG_DATA) != 0,
                                .wants_confirmation = (head->flags & FLAG_CONFIRM) != 0,
                                .tag = head->tag,
                                .data = head->data,
                                .bytes = is_offer ? head->bytes : message->data_bytes,
                                .number = head->number,
                                .contents = message->data,
                                .message = message};
    matching_arrive(endpoint, arrival);
}

static void take_accept(struct endpoint *endpoint, struct peer *peer, const struct head *head,
                        const struct kumi_wind_message *message)
{
    struct request *request = request_find(endpoint, peer, head->number);
    struct wire_place place;
    if (request == NULL || request->kind != REQUEST_OFFER || message->data_bytes != sizeof place)
        return;
    memcpy(&place, message->data, sizeof place);
    request->place = place_from_wire(&place);
    request->remote = head->tag;
    request->wanted_bytes = head->bytes < request->bytes ? head->bytes : request->bytes;
    request->kind = REQUEST_SEND;
}

static void take_written(struct endpoint *endpoint, struct peer *peer, const struct head *head)
{
    struct completion completion = {.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                                    .bytes = head->bytes,
                                    .data = head->data,
                                    .source = peer_name(endpoint, peer)};
    report(endpoint, EVENT_REMOTE_WRITE, true, &completion);
}

static void take(struct endpoint *endpoint, struct kumi_wind_message *message)
{
    struct head head;
    struct peer *peer = peer_by_number(endpoint, message->peer);
    struct request *request;
    if (peer == NULL || message->header_bytes != sizeof head) {
        kumi_wind_message_free(message);
        return;
    }
    memcpy(&head, message->header, sizeof head);
    head = head_swap(head);
    switch (head.kind) {
    case MESSAGE_EAGER:
    case MESSAGE_OFFER:
        take_message(endpoint, peer, &head, message);
        return;
    case MESSAGE_ACCEPT:
        take_accept(endpoint, peer, &head, message);
        break;
    case MESSAGE_DATA:
        request = request_find(endpoint, peer, head.number);
        if (request != NULL && request->kind == REQUEST_RECEIVE)
            matching_take_data(request, head.bytes);
        break;
    case MESSAGE_CONFIRM:
        request = request_find(endpoint, peer, head.number);
        if (request == NULL)
            break;
        if (request->kind == REQUEST_CONFIRMED)
            request_finish(request, 0, 0);
        else
            request->is_confirmed = true;
        break;
    case MESSAGE_WRITTEN:
        take_written(endpoint, peer, &head);
        break;
    case MESSAGE_ATOMIC:
        atomic_execute(endpoint, peer, &head, message->data, message->data_bytes);
        break;
    case MESSAGE_RESULT:
        request = request_find(endpoint, peer, head.number);
        if (request != NULL && request->kind == REQUEST_ATOMIC)
            atomic_take_result(request, &head, message->data, message->data_bytes);
        break;
    default:
        FI_INFO(&provider, FI_LOG_EP_DATA, "a message of the unknown kind %d is ignored\n", head.kind);
    }
    kumi_wind_message_free(message);
}

/* Sends a part of a long message, if there is room. */
static void advance_send(struct request *request)
{
    struct endpoint *endpoint = request->endpoint;
    uint64_t awaited = request->operation_flags & (FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE);
    char error[ERROR_TEXT_BYTES];
    if (request->done_bytes < request->wanted_bytes &&
        kumi_wind_unsent(endpoint->node, request->peer->number) < QUEUE_BYTES) {
        struct iovec parts[BUFFERS_MAX];
        size_t left = request->wanted_bytes - request->done_bytes;
        size_t bytes = left < PART_BYTES ? left : PART_BYTES;
        size_t count =
            buffers_slice(request->buffers, request->buffer_count, request->done_bytes, bytes, parts);
        struct kumi_wind_place place = request->place;
        struct head head =
            head_swap((struct head){.kind = MESSAGE_DATA, .bytes = bytes, .number = request->remote});
        place.offset += request->done_bytes;
        int outcome = kumi_wind_try_send(endpoint->node, request->peer->number, KUMI_WIND_UNORDERED, &place,
                                         &head, sizeof head, parts, count, NULL, error, sizeof error);
        if (outcome == KUMI_WIND_BUSY)
            return;
        if (outcome != KUMI_WIND_DONE) {
            request_finish(request, error_of(outcome), outcome);
            return;
        }
        request->done_bytes += bytes;
    }
    if (request->done_bytes == request->wanted_bytes && (!awaited || request->is_confirmed))
        request_finish(request, 0, 0);
}

static void advance(struct request *request)
{
    char error[ERROR_TEXT_BYTES];
    int outcome;
    switch (request->kind) {
    case REQUEST_PLACED:
        outcome = kumi_wind_test_placed(request->endpoint->node, request->peer->number, request->message,
                                        error, sizeof error);
        if (outcome != KUMI_WIND_BUSY)
            request_finish(request, error_of(outcome), outcome);
        break;
    case REQUEST_SEND:
        advance_send(request);
        break;
    case REQUEST_TRANSFER:
        transfer_advance(request);
        break;
    default:
        break;
    }
}

static void progress_endpoint(struct endpoint *endpoint)
{
    /*
     * The program gets its completions before the next poll of Wind: an answer that it sends now
     * carries the acknowledgement.
     */
    uint64_t reports = endpoint->domain->reports;
    for (int count = 0; count < MESSAGES_MAX && endpoint->domain->reports == reports; count++) {
        struct kumi_wind_message *message = kumi_wind_receive(endpoint->node, 0);
        if (message == NULL)
            break;
        take(endpoint, message);
    }
    send_deferred(endpoint);
    LIST_FOR_EACH(link, &endpoint->requests)
    advance(LIST_MEMBER(link, struct request, link));
    int64_t at_ms = now_ms();
    if (at_ms - endpoint->checked_ms >= CHECK_MS) {
        endpoint->checked_ms = at_ms;
        peers_check(endpoint);
    }
}

void progress(struct domain *domain)
{
    LIST_FOR_EACH(link, &domain->endpoints)
    {
        struct endpoint *endpoint = LIST_MEMBER(link, struct endpoint, link);
        if (endpoint->is_enabled)
            progress_endpoint(endpoint);
    }
}
