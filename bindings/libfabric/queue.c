/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Completion queues. A queue grows as needed, so it is never overrun. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "provider.h"

/* Longest wait of a thread that serves several endpoints. It polls them at this interval. */
enum { POLL_MS = 1 };

static struct queue *queue_of(struct fid_cq *fid)
{
    return LIST_MEMBER(fid, struct queue, fid);
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void domain_wake(struct domain *domain)
{
    LIST_FOR_EACH(link, &domain->endpoints)
    {
        struct endpoint *endpoint = LIST_MEMBER(link, struct endpoint, link);
        if (endpoint->node != NULL)
            kumi_wind_wake(endpoint->node);
    }
}

void domain_wait(struct domain *domain, uint64_t *seen, int64_t limit_ms)
{
    struct endpoint *found = NULL;
    int count = 0;
    LIST_FOR_EACH(link, &domain->endpoints)
    {
        struct endpoint *endpoint = LIST_MEMBER(link, struct endpoint, link);
        if (endpoint->node != NULL) {
            found = endpoint;
            count++;
        }
    }
    if (count != 1 && (limit_ms < 0 || limit_ms > POLL_MS))
        limit_ms = POLL_MS;
    if (found != NULL)
        found->waiters++;
    unlock(domain);
    if (found != NULL) {
        *seen = kumi_wind_wait(found->node, *seen, limit_ms);
    } else {
        struct timespec pause = {.tv_nsec = limit_ms * 1000000};
        nanosleep(&pause, NULL);
    }
    lock(domain);
    if (found != NULL)
        found->waiters--;
}

void queue_push(struct queue *queue, const struct completion *completion)
{
    if (queue->count == queue->room) {
        size_t room = 2 * queue->room;
        struct completion *ring = malloc(room * sizeof *ring);
        if (ring == NULL) {
            WARN(FI_LOG_CQ, "no memory for completion %zu: it is lost\n", queue->count);
            return;
        }
        for (size_t at = 0; at < queue->count; at++)
            ring[at] = queue->ring[(queue->first + at) % queue->room];
        free(queue->ring);
        queue->ring = ring;
        queue->room = room;
        queue->first = 0;
    }
    queue->ring[(queue->first + queue->count++) % queue->room] = *completion;
    if (queue->waiters > 0)
        domain_wake(queue->domain);
}

static size_t entry_bytes(enum fi_cq_format format)
{
    switch (format) {
    case FI_CQ_FORMAT_MSG:
        return sizeof(struct fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
        return sizeof(struct fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED:
        return sizeof(struct fi_cq_tagged_entry);
    default:
        return sizeof(struct fi_cq_entry);
    }
}

/* Takes completions up to the first error. */
static ssize_t take(struct queue *queue, uint8_t *out, size_t count, fi_addr_t *sources)
{
    size_t taken = 0;
    while (taken < count && queue->count > 0) {
        const struct completion *next = &queue->ring[queue->first];
        if (next->error != 0)
            break;
        /* Each format is the beginning of the next longer one. */
        struct fi_cq_tagged_entry entry = {.op_context = next->context,
                                           .flags = next->flags,
                                           .len = next->bytes,
                                           .buf = next->buffer,
                                           .data = next->data,
                                           .tag = next->tag};
        memcpy(out, &entry, entry_bytes(queue->format));
        out += entry_bytes(queue->format);
        if (sources != NULL)
            sources[taken] = next->source;
        queue->first = (queue->first + 1) % queue->room;
        queue->count--;
        taken++;
    }
    if (taken > 0)
        return (ssize_t)taken;
    return queue->count > 0 ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t queue_readfrom(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *sources)
{
    struct queue *queue = queue_of(fid);
    lock(queue->domain);
    if (queue->count == 0 || count == 0)
        progress(queue->domain);
    ssize_t taken = count == 0 ? (queue->count > 0 ? 0 : -FI_EAGAIN) : take(queue, buffer, count, sources);
    unlock(queue->domain);
    return taken;
}

static ssize_t queue_read(struct fid_cq *fid, void *buffer, size_t count)
{
    return queue_readfrom(fid, buffer, count, NULL);
}

static ssize_t queue_readerr(struct fid_cq *fid, struct fi_cq_err_entry *out, uint64_t flags)
{
    struct queue *queue = queue_of(fid);
    (void)flags;
    lock(queue->domain);
    const struct completion *next = &queue->ring[queue->first];
    if (queue->count == 0 || next->error == 0) {
        unlock(queue->domain);
        return -FI_EAGAIN;
    }
    out->op_context = next->context;
    out->flags = next->flags;
    out->len = next->bytes;
    out->buf = next->buffer;
    out->data = next->data;
    out->tag = next->tag;
    out->olen = next->excess_bytes;
    out->err = next->error;
    out->prov_errno = next->outcome;
    /* The caller's buffer for further data stays empty. */
    out->err_data_size = 0;
    queue->first = (queue->first + 1) % queue->room;
    queue->count--;
    unlock(queue->domain);
    return 1;
}

static ssize_t queue_sreadfrom(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *sources,
                               const void *condition, int limit_ms)
{
    struct queue *queue = queue_of(fid);
    int64_t end_ms = now_ms() + limit_ms;
    uint64_t seen = 0;
    ssize_t taken;
    (void)condition;
    lock(queue->domain);
    queue->waiters++;
    for (;;) {
        progress(queue->domain);
        taken = take(queue, buffer, count, sources);
        int64_t left_ms = limit_ms < 0 ? -1 : end_ms - now_ms();
        if (taken != -FI_EAGAIN || (limit_ms >= 0 && left_ms <= 0))
            break;
        if (queue->is_signalled) {
            queue->is_signalled = false;
            break;
        }
        domain_wait(queue->domain, &seen, left_ms);
    }
    queue->waiters--;
    unlock(queue->domain);
    return taken;
}

static ssize_t queue_sread(struct fid_cq *fid, void *buffer, size_t count, const void *condition,
                           int limit_ms)
{
    return queue_sreadfrom(fid, buffer, count, NULL, condition, limit_ms);
}

static int queue_signal(struct fid_cq *fid)
{
    struct queue *queue = queue_of(fid);
    lock(queue->domain);
    queue->is_signalled = true;
    domain_wake(queue->domain);
    unlock(queue->domain);
    return 0;
}

static const char *outcome_text(int outcome)
{
    switch (outcome) {
    case KUMI_WIND_LOST:
        return "the peer is lost: it ended, was restarted, or does not answer";
    case KUMI_WIND_REFUSED:
        return "the peer refused the place: wrong key, or outside the region";
    case KUMI_WIND_ARGUMENT:
        return "an argument is invalid";
    case KUMI_WIND_SYSTEM:
        return "the system refused something";
    default:
        return "no error of the transport";
    }
}

static const char *queue_strerror(struct fid_cq *fid, int outcome, const void *data, char *buffer,
                                  size_t bytes)
{
    (void)fid, (void)data;
    if (buffer == NULL || bytes == 0)
        return outcome_text(outcome);
    snprintf(buffer, bytes, "%s", outcome_text(outcome));
    return buffer;
}

static struct fi_ops_cq queue_ops = {
    .size = sizeof(struct fi_ops_cq),
    .read = queue_read,
    .readfrom = queue_readfrom,
    .readerr = queue_readerr,
    .sread = queue_sread,
    .sreadfrom = queue_sreadfrom,
    .signal = queue_signal,
    .strerror = queue_strerror,
};

static int queue_close(struct fid *fid)
{
    struct queue *queue = LIST_MEMBER(fid, struct queue, fid.fid);
    lock(queue->domain);
    bool is_used = queue->references > 0;
    if (!is_used)
        queue->domain->references--;
    unlock(queue->domain);
    if (is_used)
        return -FI_EBUSY;
    free(queue->ring);
    free(queue);
    return 0;
}

static struct fi_ops queue_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = queue_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

int queue_open(struct fid_domain *fid, struct fi_cq_attr *attributes, struct fid_cq **out, void *context)
{
    struct domain *domain = domain_of(fid);
    enum fi_cq_format format = attributes->format;
    if (attributes->wait_obj != FI_WAIT_NONE && attributes->wait_obj != FI_WAIT_UNSPEC &&
        attributes->wait_obj != FI_WAIT_YIELD) {
        WARN(FI_LOG_CQ, "wait object %d: expected FI_WAIT_NONE, FI_WAIT_UNSPEC or FI_WAIT_YIELD\n",
             attributes->wait_obj);
        return -FI_ENOSYS;
    }
    if (format > FI_CQ_FORMAT_TAGGED)
        return -FI_EINVAL;
    struct queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return -FI_ENOMEM;
    queue->domain = domain;
    queue->format = format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : format;
    queue->room = attributes->size > 64 ? attributes->size : 64;
    queue->ring = calloc(queue->room, sizeof *queue->ring);
    if (queue->ring == NULL) {
        free(queue);
        return -FI_ENOMEM;
    }
    queue->fid.fid = (struct fid){.fclass = FI_CLASS_CQ, .context = context, .ops = &queue_fid_ops};
    queue->fid.ops = &queue_ops;
    lock(domain);
    domain->references++;
    unlock(domain);
    *out = &queue->fid;
    return 0;
}
