/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads and writes of a peer's memory. */
#include <stdlib.h>
#include <string.h>

#include "wire.h"

/* Arguments of a read or a write. */
struct access {
    bool is_write;
    const struct iovec *buffers;
    size_t buffer_count;
    fi_addr_t target;
    uint64_t offset;
    uint64_t key;
    uint64_t data;
    uint64_t flags;
    bool has_completion;
    void *context;
};

/* Tells the target that a write with data is complete, and reports the operation. */
static void finish(struct request *request)
{
    if (request->has_remote_data) {
        struct head head = {.kind = MESSAGE_WRITTEN, .data = request->remote_data, .bytes = request->bytes};
        control_send(request->endpoint, request->peer, &head, NULL, 0);
    }
    /* The result of an atomic operation that Wind executed. */
    if (request->word_bytes > 0)
        buffers_scatter(request->buffers, request->buffer_count, &request->word, request->word_bytes);
    request_finish(request, 0, 0);
}

void transfer_advance(struct request *request)
{
    char error[ERROR_TEXT_BYTES];
    bool is_busy = false;
    for (size_t at = 0; at < request->transfer_count; at++) {
        if (request->transfers[at] == NULL)
            continue;
        int outcome = kumi_wind_test(request->endpoint->node, request->transfers[at], error, sizeof error);
        if (outcome == KUMI_WIND_BUSY) {
            is_busy = true;
            continue;
        }
        kumi_wind_transfer_free(request->transfers[at]);
        request->transfers[at] = NULL;
        if (outcome != KUMI_WIND_DONE) {
            FI_INFO(&provider, FI_LOG_EP_DATA, "an operation on memory failed: %s\n", error);
            request->failure = outcome;
        }
    }
    if (is_busy)
        return;
    if (request->failure != KUMI_WIND_DONE)
        request_finish(request, error_of(request->failure), request->failure);
    else
        finish(request);
}

/* Copies from or to memory of this domain. Returns 0 or an errno. */
static int access_self(struct endpoint *endpoint, const struct access *access, size_t bytes)
{
    int error;
    uint8_t *memory = region_memory(endpoint->domain, access->key, access->offset, bytes,
                                    access->is_write ? FI_REMOTE_WRITE : FI_REMOTE_READ, &error);
    if (memory == NULL)
        return error;
    if (!access->is_write) {
        buffers_scatter(access->buffers, access->buffer_count, memory, bytes);
        return 0;
    }
    for (size_t at = 0; at < access->buffer_count; at++) {
        memmove(memory, access->buffers[at].iov_base, access->buffers[at].iov_len);
        memory += access->buffers[at].iov_len;
    }
    return 0;
}

static void start_transfers(struct request *request, const struct access *access, const struct iovec *buffers,
                            size_t count)
{
    uint64_t offset = access->offset;
    for (size_t at = 0; at < count; at++) {
        struct kumi_wind_place place = key_place(request->endpoint->domain, access->key, offset);
        struct kumi_wind_transfer *transfer =
            access->is_write ? kumi_wind_start_put(request->peer->number, &place, buffers[at].iov_base,
                                                   buffers[at].iov_len)
                             : kumi_wind_start_get(request->peer->number, &place, buffers[at].iov_base,
                                                   buffers[at].iov_len);
        request->transfers[request->transfer_count++] = transfer;
        offset += buffers[at].iov_len;
    }
}

/* Copies the contents of an injected write, and returns a buffer of the copy. */
static struct iovec bounced(struct request *request, const struct access *access, size_t bytes)
{
    struct iovec copy = {malloc(bytes > 0 ? bytes : 1), bytes};
    uint8_t *at = request->bounce = copy.iov_base;
    for (size_t index = 0; at != NULL && index < access->buffer_count; index++) {
        memcpy(at, access->buffers[index].iov_base, access->buffers[index].iov_len);
        at += access->buffers[index].iov_len;
    }
    return copy;
}

static ssize_t start(struct endpoint *endpoint, const struct access *access)
{
    struct peer *peer;
    uint64_t wanted = access->is_write ? FI_REMOTE_WRITE : FI_REMOTE_READ;
    if (!endpoint->is_enabled)
        return -FI_EOPBADSTATE;
    if (access->buffer_count > BUFFERS_MAX)
        return -FI_EINVAL;
    size_t bytes = buffers_bytes(access->buffers, access->buffer_count);
    if (access->flags & FI_INJECT && bytes > INJECT_BYTES_MAX)
        return -FI_EMSGSIZE;
    int outcome = peer_find(endpoint, access->target, &peer);
    if (outcome != 0)
        return outcome;
    struct request *request = request_new(endpoint, REQUEST_TRANSFER, peer);
    if (request == NULL)
        return -FI_EAGAIN;
    request->event = access->is_write ? EVENT_WRITE : EVENT_READ;
    request->has_completion = access->has_completion;
    request->bytes = bytes;
    request->has_remote_data = (access->flags & FI_REMOTE_CQ_DATA) != 0;
    request->remote_data = access->data;
    request->completion = (struct completion){.context = access->context,
                                              .flags = FI_RMA | (access->is_write ? FI_WRITE : FI_READ),
                                              .bytes = bytes,
                                              .source = FI_ADDR_NOTAVAIL};
    if (peer->is_self) {
        int error = access_self(endpoint, access, bytes);
        if (error == 0 && request->has_remote_data) {
            struct completion written = {.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                                         .bytes = bytes,
                                         .data = access->data,
                                         .source = peer_name(endpoint, peer)};
            report(endpoint, EVENT_REMOTE_WRITE, true, &written);
        }
        request_finish(request, error, error ? KUMI_WIND_REFUSED : 0);
        return 0;
    }
    if (!key_allows(access->key, wanted)) {
        request_finish(request, FI_EACCES, KUMI_WIND_REFUSED);
        return 0;
    }
    if (access->flags & FI_INJECT) {
        struct iovec copy = bounced(request, access, bytes);
        if (copy.iov_base == NULL) {
            request_free(request);
            return -FI_ENOMEM;
        }
        start_transfers(request, access, &copy, 1);
    } else {
        start_transfers(request, access, access->buffers, access->buffer_count);
    }
    transfer_advance(request);
    return 0;
}

static ssize_t locked_start(struct fid_ep *fid, const struct access *access)
{
    struct endpoint *endpoint = endpoint_of(fid);
    lock(endpoint->domain);
    ssize_t outcome = start(endpoint, access);
    if (outcome == -FI_EAGAIN)
        progress(endpoint->domain);
    unlock(endpoint->domain);
    return outcome;
}

/* Starts an operation with the flags of the endpoint, and further ones. */
static ssize_t start_plain(struct fid_ep *fid, bool is_write, const struct iovec *buffers, size_t count,
                           fi_addr_t target, uint64_t offset, uint64_t key, uint64_t flags, uint64_t data,
                           void *context)
{
    struct endpoint *endpoint = endpoint_of(fid);
    struct access access = {.is_write = is_write,
                            .buffers = buffers,
                            .buffer_count = count,
                            .target = target,
                            .offset = offset,
                            .key = key,
                            .data = data,
                            .flags = endpoint->send_flags | flags,
                            .has_completion =
                                !endpoint->is_send_selective || endpoint->send_flags & FI_COMPLETION,
                            .context = context};
    if (!is_write)
        access.flags &= ~FI_INJECT;
    return locked_start(fid, &access);
}

static ssize_t start_message(struct fid_ep *fid, bool is_write, const struct fi_msg_rma *message,
                             uint64_t flags)
{
    struct endpoint *endpoint = endpoint_of(fid);
    size_t local = buffers_bytes(message->msg_iov, message->iov_count);
    if (message->rma_iov_count != 1 || message->rma_iov[0].len != local) {
        WARN(FI_LOG_EP_DATA, "%zu remote ranges, the first of %zu bytes: expected 1 of %zu\n",
             message->rma_iov_count, message->rma_iov_count ? message->rma_iov[0].len : 0, local);
        return -FI_EINVAL;
    }
    struct access access = {.is_write = is_write,
                            .buffers = message->msg_iov,
                            .buffer_count = message->iov_count,
                            .target = message->addr,
                            .offset = message->rma_iov[0].addr,
                            .key = message->rma_iov[0].key,
                            .data = message->data,
                            .flags = is_write ? flags : flags & ~(FI_INJECT | FI_REMOTE_CQ_DATA),
                            .has_completion = !endpoint->is_send_selective || flags & FI_COMPLETION,
                            .context = message->context};
    return locked_start(fid, &access);
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *buffers, void **descriptors, size_t count,
                         fi_addr_t source, uint64_t offset, uint64_t key, void *context)
{
    (void)descriptors;
    return start_plain(fid, false, buffers, count, source, offset, key, 0, 0, context);
}

static ssize_t rma_read(struct fid_ep *fid, void *buffer, size_t bytes, void *descriptor, fi_addr_t source,
                        uint64_t offset, uint64_t key, void *context)
{
    struct iovec part = {buffer, bytes};
    (void)descriptor;
    return start_plain(fid, false, &part, 1, source, offset, key, 0, 0, context);
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *message, uint64_t flags)
{
    return start_message(fid, false, message, flags);
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *buffers, void **descriptors, size_t count,
                          fi_addr_t target, uint64_t offset, uint64_t key, void *context)
{
    (void)descriptors;
    return start_plain(fid, true, buffers, count, target, offset, key, 0, 0, context);
}

static ssize_t rma_write(struct fid_ep *fid, const void *buffer, size_t bytes, void *descriptor,
                         fi_addr_t target, uint64_t offset, uint64_t key, void *context)
{
    struct iovec part = {(void *)buffer, bytes};
    (void)descriptor;
    return start_plain(fid, true, &part, 1, target, offset, key, 0, 0, context);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *message, uint64_t flags)
{
    return start_message(fid, true, message, flags);
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buffer, size_t bytes, void *descriptor,
                             uint64_t data, fi_addr_t target, uint64_t offset, uint64_t key, void *context)
{
    struct iovec part = {(void *)buffer, bytes};
    (void)descriptor;
    return start_plain(fid, true, &part, 1, target, offset, key, FI_REMOTE_CQ_DATA, data, context);
}

/* Writes without a completion. */
static ssize_t inject(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t target, uint64_t offset,
                      uint64_t key, uint64_t flags, uint64_t data)
{
    struct iovec part = {(void *)buffer, bytes};
    struct access access = {.is_write = true,
                            .buffers = &part,
                            .buffer_count = 1,
                            .target = target,
                            .offset = offset,
                            .key = key,
                            .data = data,
                            .flags = FI_INJECT | flags};
    return locked_start(fid, &access);
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buffer, size_t bytes, fi_addr_t target,
                          uint64_t offset, uint64_t key)
{
    return inject(fid, buffer, bytes, target, offset, key, 0, 0);
}

static ssize_t rma_injectdata(struct fid_ep *fid, const void *buffer, size_t bytes, uint64_t data,
                              fi_addr_t target, uint64_t offset, uint64_t key)
{
    return inject(fid, buffer, bytes, target, offset, key, FI_REMOTE_CQ_DATA, data);
}

struct fi_ops_rma rma_ops = {
    .size = sizeof(struct fi_ops_rma),
    .read = rma_read,
    .readv = rma_readv,
    .readmsg = rma_readmsg,
    .write = rma_write,
    .writev = rma_writev,
    .writemsg = rma_writemsg,
    .inject = rma_inject,
    .writedata = rma_writedata,
    .injectdata = rma_injectdata,
};
