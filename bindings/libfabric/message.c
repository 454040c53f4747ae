/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sends and receives of messages, untagged and tagged. */
#include <stdlib.h>
#include <string.h>

#include "matching.h"
#include "wire.h"

/* Arguments of a send. */
struct outgoing {
    const struct iovec *buffers;
    size_t buffer_count;
    fi_addr_t target;
    bool is_tagged;
    uint64_t tag;
    uint64_t data;
    uint64_t flags;
    bool has_completion;
    void *context;
};

/* Keeps a message to this endpoint itself, with a copy of its contents. */
static int send_to_self(struct endpoint *endpoint, struct peer *peer, const struct outgoing *outgoing,
                        size_t bytes, uint64_t number)
{
    struct arrival *arrival = malloc(sizeof *arrival + bytes);
    if (arrival == NULL)
        return -FI_ENOMEM;
    uint8_t *contents = (uint8_t *)(arrival + 1), *end = contents;
    for (size_t at = 0; at < outgoing->buffer_count; at++)
        if (outgoing->buffers[at].iov_len > 0)
            end = (uint8_t *)memcpy(end, outgoing->buffers[at].iov_base, outgoing->buffers[at].iov_len) +
                  outgoing->buffers[at].iov_len;
    *arrival = (struct arrival){.peer = peer,
                                .is_tagged = outgoing->is_tagged,
                                .has_data = (outgoing->flags & FI_REMOTE_CQ_DATA) != 0,
                                .wants_confirmation = number != 0,
                                .tag = outgoing->tag,
                                .data = outgoing->data,
                                .bytes = bytes,
                                .number = number,
                                .contents = contents};
    matching_arrive(endpoint, arrival);
    return 0;
}

/*
 * Chooses the kind of request for the message. Returns false if the operation is complete when Wind
 * has a copy of the contents.
 */
static bool needs_request(const struct endpoint *endpoint, const struct outgoing *outgoing, size_t bytes,
                          bool is_self, enum kind *kind)
{
    bool is_observed = outgoing->has_completion || endpoint->counters[EVENT_SEND] != NULL;
    if (bytes > EAGER_BYTES_MAX && !is_self) {
        *kind = REQUEST_OFFER;
        return true;
    }
    *kind = outgoing->flags & FI_DELIVERY_COMPLETE ? REQUEST_CONFIRMED : REQUEST_PLACED;
    if (outgoing->flags & FI_DELIVERY_COMPLETE)
        return is_observed;
    return is_observed && outgoing->flags & FI_TRANSMIT_COMPLETE && !is_self;
}

static int transmit(struct endpoint *endpoint, struct peer *peer, const struct outgoing *outgoing,
                    size_t bytes, struct request *request, enum kind kind)
{
    char error[ERROR_TEXT_BYTES];
    uint64_t number = request == NULL || kind == REQUEST_PLACED ? 0 : request->number;
    if (peer->is_self)
        return send_to_self(endpoint, peer, outgoing, bytes, number);
    bool is_offer = kind == REQUEST_OFFER;
    bool is_confirmed =
        request != NULL && (kind == REQUEST_CONFIRMED ||
                            (is_offer && outgoing->flags & (FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)));
    struct head head = head_swap((struct head){
        .kind = is_offer ? MESSAGE_OFFER : MESSAGE_EAGER,
        .flags = (outgoing->is_tagged ? FLAG_TAGGED : 0) |
                 (outgoing->flags & FI_REMOTE_CQ_DATA ? FLAG_DATA : 0) | (is_confirmed ? FLAG_CONFIRM : 0),
        .tag = outgoing->tag,
        .data = outgoing->data,
        .bytes = bytes,
        .number = number,
    });
    bool is_placed = request != NULL && kind == REQUEST_PLACED;
    int outcome = kumi_wind_try_send(endpoint->node, peer->number,
                                     is_placed ? KUMI_WIND_SYNCHRONOUS : KUMI_WIND_ORDERED, NULL, &head,
                                     sizeof head, outgoing->buffers, is_offer ? 0 : outgoing->buffer_count,
                                     request == NULL ? NULL : &request->message, error, sizeof error);
    if (outcome != KUMI_WIND_DONE && outcome != KUMI_WIND_BUSY)
        FI_INFO(&provider, FI_LOG_EP_DATA, "cannot send: %s\n", error);
    return -error_of(outcome);
}

static ssize_t send_message(struct endpoint *endpoint, const struct outgoing *outgoing)
{
    struct peer *peer;
    struct request *request = NULL;
    enum kind kind;
    if (!endpoint->is_enabled)
        return -FI_EOPBADSTATE;
    if (outgoing->buffer_count > BUFFERS_MAX)
        return -FI_EINVAL;
    size_t bytes = buffers_bytes(outgoing->buffers, outgoing->buffer_count);
    if (outgoing->flags & FI_INJECT && bytes > INJECT_BYTES_MAX) {
        WARN(FI_LOG_EP_DATA, "%zu bytes are more than can be injected: %d\n", bytes, INJECT_BYTES_MAX);
        return -FI_EMSGSIZE;
    }
    int outcome = peer_find(endpoint, outgoing->target, &peer);
    if (outcome != 0)
        return outcome;
    if (needs_request(endpoint, outgoing, bytes, peer->is_self, &kind)) {
        request = request_new(endpoint, kind, peer);
        if (request == NULL)
            return -FI_EAGAIN;
    }
    struct completion completion = {.context = outgoing->context,
                                    .flags = FI_SEND | (outgoing->is_tagged ? FI_TAGGED : FI_MSG),
                                    .bytes = bytes,
                                    .tag = outgoing->tag,
                                    .source = FI_ADDR_NOTAVAIL};
    if (request != NULL) {
        request->event = EVENT_SEND;
        request->has_completion = outgoing->has_completion;
        request->completion = completion;
        request->operation_flags = outgoing->flags;
        request->bytes = bytes;
        request->buffer_count = outgoing->buffer_count;
        memcpy(request->buffers, outgoing->buffers, outgoing->buffer_count * sizeof(struct iovec));
    }
    /* To this endpoint itself, the request may be complete, and freed, when this returns. */
    outcome = transmit(endpoint, peer, outgoing, bytes, request, kind);
    if (outcome != 0 && request != NULL)
        request_free(request);
    if (outcome == -FI_ECONNABORTED)
        peer_lose(endpoint, peer);
    if (outcome == 0 && request == NULL)
        report(endpoint, EVENT_SEND, outgoing->has_completion, &completion);
    return outcome;
}

static ssize_t locked_send(struct fid_ep *fid, const struct outgoing *outgoing)
{
    struct endpoint *endpoint = endpoint_of(fid);
    lock(endpoint->domain);
    ssize_t outcome = send_message(endpoint, outgoing);
    if (outcome == -FI_EAGAIN)
        progress(endpoint->domain);
    unlock(endpoint->domain);
    return outcome;
}

/* Sends with the flags of the endpoint. */
static ssize_t send_plain(struct fid_ep *fid, const struct iovec *buffers, size_t count, fi_addr_t target,
                          bool is_tagged, uint64_t tag, bool has_data, uint64_t data, void *context)
{
    struct endpoint *endpoint = endpoint_of(fid);
    struct outgoing outgoing = {.buffers = buffers,
                                .buffer_count = count,
                                .target = target,
                                .is_tagged = is_tagged,
                                .tag = tag,
                                .data = data,
                                .flags = endpoint->send_flags | (has_data ? FI_REMOTE_CQ_DATA : 0),
                                .has_completion =
                                    !endpoint->is_send_selective || endpoint->send_flags & FI_COMPLETION,
                                .context = context};
    return locked_send(fid, &outgoing);
}

/* Sends without a completion. */
static ssize_t send_injected(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t target,
                             bool is_tagged, uint64_t tag, bool has_data, uint64_t data)
{
    struct iovec part = {(void *)buffer, bytes};
    struct outgoing outgoing = {.buffers = &part,
                                .buffer_count = 1,
                                .target = target,
                                .is_tagged = is_tagged,
                                .tag = tag,
                                .data = data,
                                .flags = FI_INJECT | (has_data ? FI_REMOTE_CQ_DATA : 0)};
    return locked_send(fid, &outgoing);
}

static bool completes(bool is_selective, uint64_t flags)
{
    return !is_selective || flags & FI_COMPLETION;
}

static ssize_t message_send(struct fid_ep *fid, const void *buffer, size_t bytes, void *descriptor,
                            fi_addr_t target, void *context)
{
    struct iovec part = {(void *)buffer, bytes};
    (void)descriptor;
    return send_plain(fid, &part, 1, target, false, 0, false, 0, context);
}

static ssize_t message_sendv(struct fid_ep *fid, const struct iovec *buffers, void **descriptors,
                             size_t count, fi_addr_t target, void *context)
{
    (void)descriptors;
    return send_plain(fid, buffers, count, target, false, 0, false, 0, context);
}

static ssize_t message_sendmsg(struct fid_ep *fid, const struct fi_msg *message, uint64_t flags)
{
    struct outgoing outgoing = {.buffers = message->msg_iov,
                                .buffer_count = message->iov_count,
                                .target = message->addr,
                                .data = message->data,
                                .flags = flags,
                                .has_completion = completes(endpoint_of(fid)->is_send_selective, flags),
                                .context = message->context};
    return locked_send(fid, &outgoing);
}

static ssize_t message_inject(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t target)
{
    return send_injected(fid, buffer, bytes, target, false, 0, false, 0);
}

static ssize_t message_senddata(struct fid_ep *fid, const void *buffer, size_t bytes, void *descriptor,
                                uint64_t data, fi_addr_t target, void *context)
{
    struct iovec part = {(void *)buffer, bytes};
    (void)descriptor;
    return send_plain(fid, &part, 1, target, false, 0, true, data, context);
}

static ssize_t message_injectdata(struct fid_ep *fid, const void *buffer, size_t bytes, uint64_t data,
                                  fi_addr_t target)
{
    return send_injected(fid, buffer, bytes, target, false, 0, true, data);
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buffer, size_t bytes, void *descriptor,
                           fi_addr_t target, uint64_t tag, void *context)
{
    struct iovec part = {(void *)buffer, bytes};
    (void)descriptor;
    return send_plain(fid, &part, 1, target, true, tag, false, 0, context);
}

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *buffers, void **descriptors, size_t count,
                            fi_addr_t target, uint64_t tag, void *context)
{
    (void)descriptors;
    return send_plain(fid, buffers, count, target, true, tag, false, 0, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *message, uint64_t flags)
{
    struct outgoing outgoing = {.buffers = message->msg_iov,
                                .buffer_count = message->iov_count,
                                .target = message->addr,
                                .is_tagged = true,
                                .tag = message->tag,
                                .data = message->data,
                                .flags = flags,
                                .has_completion = completes(endpoint_of(fid)->is_send_selective, flags),
                                .context = message->context};
    return locked_send(fid, &outgoing);
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t target,
                             uint64_t tag)
{
    return send_injected(fid, buffer, bytes, target, true, tag, false, 0);
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buffer, size_t bytes, void *descriptor,
                               uint64_t data, fi_addr_t target, uint64_t tag, void *context)
{
    struct iovec part = {(void *)buffer, bytes};
    (void)descriptor;
    return send_plain(fid, &part, 1, target, true, tag, true, data, context);
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buffer, size_t bytes, uint64_t data,
                                 fi_addr_t target, uint64_t tag)
{
    return send_injected(fid, buffer, bytes, target, true, tag, true, data);
}

static ssize_t post(struct fid_ep *fid, struct receive *receive, const struct iovec *buffers, size_t count,
                    uint64_t flags)
{
    struct endpoint *endpoint = endpoint_of(fid);
    if (count > BUFFERS_MAX)
        return -FI_EINVAL;
    if (!endpoint->is_enabled)
        return -FI_EOPBADSTATE;
    if (count > 0)
        memcpy(receive->buffers, buffers, count * sizeof *buffers);
    receive->buffer_count = count;
    receive->has_completion = completes(endpoint->is_receive_selective, flags);
    if (!(endpoint->caps & FI_DIRECTED_RECV))
        receive->source = FI_ADDR_UNSPEC;
    lock(endpoint->domain);
    ssize_t outcome;
    if (flags & FI_PEEK) {
        progress(endpoint->domain);
        outcome = matching_peek(endpoint, receive, flags);
    } else if (flags & FI_CLAIM && receive->is_tagged) {
        outcome = matching_claim(endpoint, receive, flags);
    } else {
        outcome = matching_post(endpoint, receive);
    }
    unlock(endpoint->domain);
    return outcome;
}

static ssize_t message_recvv(struct fid_ep *fid, const struct iovec *buffers, void **descriptors,
                             size_t count, fi_addr_t source, void *context)
{
    struct receive receive = {.source = source, .context = context};
    (void)descriptors;
    return post(fid, &receive, buffers, count, endpoint_of(fid)->receive_flags);
}

static ssize_t message_recv(struct fid_ep *fid, void *buffer, size_t bytes, void *descriptor,
                            fi_addr_t source, void *context)
{
    struct iovec part = {buffer, bytes};
    (void)descriptor;
    return message_recvv(fid, &part, NULL, 1, source, context);
}

static ssize_t message_recvmsg(struct fid_ep *fid, const struct fi_msg *message, uint64_t flags)
{
    struct receive receive = {.source = message->addr, .context = message->context};
    if (flags & FI_MULTI_RECV)
        return -FI_EBADFLAGS;
    return post(fid, &receive, message->msg_iov, message->iov_count, flags & FI_COMPLETION);
}

static ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *buffers, void **descriptors, size_t count,
                            fi_addr_t source, uint64_t tag, uint64_t ignore, void *context)
{
    struct receive receive = {
        .is_tagged = true, .tag = tag, .ignore = ignore, .source = source, .context = context};
    (void)descriptors;
    return post(fid, &receive, buffers, count, endpoint_of(fid)->receive_flags);
}

static ssize_t tagged_recv(struct fid_ep *fid, void *buffer, size_t bytes, void *descriptor, fi_addr_t source,
                           uint64_t tag, uint64_t ignore, void *context)
{
    struct iovec part = {buffer, bytes};
    (void)descriptor;
    return tagged_recvv(fid, &part, NULL, 1, source, tag, ignore, context);
}

static ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *message, uint64_t flags)
{
    struct receive receive = {.is_tagged = true,
                              .tag = message->tag,
                              .ignore = message->ignore,
                              .source = message->addr,
                              .context = message->context};
    return post(fid, &receive, message->msg_iov, message->iov_count, flags);
}

struct fi_ops_msg message_ops = {
    .size = sizeof(struct fi_ops_msg),
    .recv = message_recv,
    .recvv = message_recvv,
    .recvmsg = message_recvmsg,
    .send = message_send,
    .sendv = message_sendv,
    .sendmsg = message_sendmsg,
    .inject = message_inject,
    .senddata = message_senddata,
    .injectdata = message_injectdata,
};

struct fi_ops_tagged tagged_ops = {
    .size = sizeof(struct fi_ops_tagged),
    .recv = tagged_recv,
    .recvv = tagged_recvv,
    .recvmsg = tagged_recvmsg,
    .send = tagged_send,
    .sendv = tagged_sendv,
    .sendmsg = tagged_sendmsg,
    .inject = tagged_inject,
    .senddata = tagged_senddata,
    .injectdata = tagged_injectdata,
};
