/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Operations in progress, and the report of their end. */
#include <stdlib.h>
#include <string.h>

#include "provider.h"

enum { NO_SLOT = UINT32_MAX };

/* Returns whether there is a free slot. */
static bool make_slots(struct endpoint *endpoint)
{
    if (endpoint->slot_room > 0 && endpoint->first_free != NO_SLOT)
        return true;
    uint32_t room = endpoint->slot_room == 0 ? 64 : 2 * endpoint->slot_room;
    struct slot *slots = realloc(endpoint->slots, room * sizeof *slots);
    if (slots == NULL)
        return false;
    for (uint32_t at = endpoint->slot_room; at < room; at++)
        slots[at] = (struct slot){.generation = 1, .next_free = at + 1 < room ? at + 1 : NO_SLOT};
    endpoint->first_free = endpoint->slot_room;
    endpoint->slots = slots;
    endpoint->slot_room = room;
    return true;
}

struct request *request_new(struct endpoint *endpoint, enum kind kind, struct peer *peer)
{
    bool is_started = kind != REQUEST_RECEIVE;
    if ((is_started && endpoint->started >= REQUESTS_MAX) || !make_slots(endpoint))
        return NULL;
    struct request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return NULL;
    uint32_t index = endpoint->first_free;
    struct slot *slot = &endpoint->slots[index];
    endpoint->first_free = slot->next_free;
    slot->request = request;
    request->number = (uint64_t)slot->generation << 32 | index;
    request->kind = kind;
    request->endpoint = endpoint;
    request->peer = peer;
    request->completion.source = FI_ADDR_NOTAVAIL;
    endpoint->started += is_started;
    list_append(&endpoint->requests, &request->link);
    return request;
}

struct request *request_find(struct endpoint *endpoint, const struct peer *peer, uint64_t number)
{
    uint32_t index = (uint32_t)number;
    if (index >= endpoint->slot_room || endpoint->slots[index].generation != number >> 32)
        return NULL;
    struct request *request = endpoint->slots[index].request;
    return request != NULL && request->peer == peer ? request : NULL;
}

void request_free(struct request *request)
{
    struct endpoint *endpoint = request->endpoint;
    uint32_t index = (uint32_t)request->number;
    struct slot *slot = &endpoint->slots[index];
    slot->request = NULL;
    slot->generation++;
    slot->next_free = endpoint->first_free;
    endpoint->first_free = index;
    endpoint->started -= request->kind != REQUEST_RECEIVE;
    list_remove(&request->link);
    for (size_t at = 0; at < request->transfer_count; at++)
        kumi_wind_transfer_free(request->transfers[at]);
    if (request->region != NULL)
        kumi_wind_region_free(endpoint->node, request->region);
    free(request->bounce);
    free(request);
}

void report(struct endpoint *endpoint, enum event event, bool has_completion,
            const struct completion *completion)
{
    struct queue *queue =
        event == EVENT_RECV || event == EVENT_REMOTE_WRITE ? endpoint->receive_queue : endpoint->send_queue;
    endpoint->domain->reports++;
    /* An error is reported also for an operation without a completion. */
    if (queue != NULL && (has_completion || completion->error != 0))
        queue_push(queue, completion);
    if (endpoint->counters[event] != NULL)
        counter_add(endpoint->counters[event], completion->error != 0);
}

void request_finish(struct request *request, int error, int outcome)
{
    struct completion *completion = &request->completion;
    completion->error = error;
    completion->outcome = outcome;
    report(request->endpoint, request->event, request->has_completion, completion);
    request_free(request);
}

int error_of(int outcome)
{
    switch (outcome) {
    case KUMI_WIND_DONE:
        return 0;
    case KUMI_WIND_BUSY:
        return FI_EAGAIN;
    case KUMI_WIND_LATE:
        return FI_ETIMEDOUT;
    case KUMI_WIND_LOST:
        return FI_ECONNABORTED;
    case KUMI_WIND_REFUSED:
        return FI_EACCES;
    case KUMI_WIND_ARGUMENT:
        return FI_EINVAL;
    default:
        return FI_EIO;
    }
}

size_t buffers_bytes(const struct iovec *buffers, size_t count)
{
    size_t bytes = 0;
    for (size_t at = 0; at < count; at++)
        bytes += buffers[at].iov_len;
    return bytes;
}

size_t buffers_scatter(const struct iovec *buffers, size_t count, const void *from, size_t bytes)
{
    size_t copied = 0;
    for (size_t at = 0; at < count && copied < bytes; at++) {
        size_t part = buffers[at].iov_len < bytes - copied ? buffers[at].iov_len : bytes - copied;
        if (part > 0)
            memcpy(buffers[at].iov_base, (const uint8_t *)from + copied, part);
        copied += part;
    }
    return copied;
}

size_t buffers_slice(const struct iovec *buffers, size_t count, size_t offset, size_t bytes,
                     struct iovec *out)
{
    size_t used = 0;
    for (size_t at = 0; at < count && bytes > 0; at++) {
        if (offset >= buffers[at].iov_len) {
            offset -= buffers[at].iov_len;
            continue;
        }
        size_t part = buffers[at].iov_len - offset < bytes ? buffers[at].iov_len - offset : bytes;
        out[used].iov_base = (uint8_t *)buffers[at].iov_base + offset;
        out[used++].iov_len = part;
        bytes -= part;
        offset = 0;
    }
    return used;
}
