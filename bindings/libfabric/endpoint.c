/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Endpoints: binding, enabling, closing and their options. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matching.h"
#include "wire.h"

/* Longest wait of fi_close for messages that have not arrived: a silent peer is lost after 3 s. */
enum { FLUSH_MS = 5000 };

static int bind_queue(struct endpoint *endpoint, struct queue *queue, uint64_t flags)
{
    if (flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) || !(flags & (FI_TRANSMIT | FI_RECV)))
        return -FI_EBADFLAGS;
    if ((flags & FI_TRANSMIT && endpoint->send_queue != NULL) ||
        (flags & FI_RECV && endpoint->receive_queue != NULL))
        return -FI_EINVAL;
    if (flags & FI_TRANSMIT) {
        endpoint->send_queue = queue;
        endpoint->is_send_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
        queue->references++;
    }
    if (flags & FI_RECV) {
        endpoint->receive_queue = queue;
        endpoint->is_receive_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
        queue->references++;
    }
    return 0;
}

static int bind_counter(struct endpoint *endpoint, struct counter *counter, uint64_t flags)
{
    static const uint64_t events[EVENT_COUNT] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_WRITE};
    uint64_t known = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    if (flags & ~known || flags == 0) {
        WARN(FI_LOG_EP_CTRL, "invalid counter events %#llx: expected a set of %#llx\n",
             (unsigned long long)flags, (unsigned long long)known);
        return -FI_ENOSYS;
    }
    for (int event = 0; event < EVENT_COUNT; event++) {
        if (!(flags & events[event]))
            continue;
        if (endpoint->counters[event] != NULL)
            return -FI_EINVAL;
        endpoint->counters[event] = counter;
        counter->references++;
    }
    return 0;
}

static int endpoint_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct endpoint *endpoint = LIST_MEMBER(fid, struct endpoint, fid.fid);
    int outcome = -FI_EINVAL;
    lock(endpoint->domain);
    switch (other->fclass) {
    case FI_CLASS_AV:
        if (endpoint->vector == NULL) {
            endpoint->vector = LIST_MEMBER(other, struct vector, fid.fid);
            endpoint->vector->references++;
            outcome = 0;
        }
        break;
    case FI_CLASS_CQ:
        outcome = bind_queue(endpoint, LIST_MEMBER(other, struct queue, fid.fid), flags);
        break;
    case FI_CLASS_CNTR:
        outcome = bind_counter(endpoint, LIST_MEMBER(other, struct counter, fid.fid), flags);
        break;
    case FI_CLASS_EQ:
        /* The queue stays empty: the provider has no events. */
        outcome = 0;
        break;
    default:
        WARN(FI_LOG_EP_CTRL, "cannot bind an object of class %zu to an endpoint\n", other->fclass);
    }
    unlock(endpoint->domain);
    return outcome;
}

/* Opens the Wind node, and registers the domain's regions at it. */
static int enable(struct endpoint *endpoint)
{
    char text[96], error[ERROR_TEXT_BYTES];
    if (endpoint->is_enabled)
        return 0;
    if (endpoint->vector == NULL) {
        WARN(FI_LOG_EP_CTRL, "no address vector is bound to the endpoint\n");
        return -FI_ENOAV;
    }
    address_print(&endpoint->address, text, sizeof text);
    endpoint->node = kumi_wind_open(text, endpoint->domain->secret, error, sizeof error);
    if (endpoint->node == NULL) {
        WARN(FI_LOG_EP_CTRL, "cannot open a Wind node at %s: %s\n", text, error);
        return -FI_EADDRINUSE;
    }
    uint16_t port = htons((uint16_t)kumi_wind_port(endpoint->node));
    if (endpoint->address.any.sa_family == AF_INET6)
        endpoint->address.in6.sin6_port = port;
    else
        endpoint->address.in.sin_port = port;
    int outcome = region_attach(endpoint);
    endpoint->is_enabled = outcome == 0;
    return outcome;
}

static int endpoint_control(struct fid *fid, int command, void *argument)
{
    struct endpoint *endpoint = LIST_MEMBER(fid, struct endpoint, fid.fid);
    int outcome = -FI_ENOSYS;
    uint64_t *flags = argument;
    lock(endpoint->domain);
    switch (command) {
    case FI_ENABLE:
        outcome = enable(endpoint);
        break;
    case FI_GETOPSFLAG:
        outcome = 0;
        if (*flags & FI_TRANSMIT)
            *flags = endpoint->send_flags;
        else if (*flags & FI_RECV)
            *flags = endpoint->receive_flags;
        else
            outcome = -FI_EINVAL;
        break;
    case FI_SETOPSFLAG:
        outcome = 0;
        if (*flags & FI_TRANSMIT)
            endpoint->send_flags = *flags & ~FI_TRANSMIT;
        else if (*flags & FI_RECV)
            endpoint->receive_flags = *flags & ~FI_RECV;
        else
            outcome = -FI_EINVAL;
        break;
    }
    unlock(endpoint->domain);
    return outcome;
}

/* Waits until the peers have everything. One that ended is lost, and not waited for. */
static void flush(struct endpoint *endpoint)
{
    char error[ERROR_TEXT_BYTES], text[96];
    int64_t end_ms = now_ms() + FLUSH_MS;
    LIST_FOR_EACH(link, &endpoint->peers)
    {
        struct peer *peer = LIST_MEMBER(link, struct peer, link);
        int64_t left_ms = end_ms - now_ms();
        if (peer->is_self || peer->is_lost)
            continue;
        int outcome =
            kumi_wind_flush(endpoint->node, peer->number, left_ms > 0 ? left_ms : 0, error, sizeof error);
        if (outcome == KUMI_WIND_LATE) {
            address_print(&peer->address, text, sizeof text);
            WARN(FI_LOG_EP_CTRL, "messages to %s may be lost: they have not arrived within %d ms\n", text,
                 FLUSH_MS);
        }
    }
}

static int endpoint_close(struct fid *fid)
{
    struct endpoint *endpoint = LIST_MEMBER(fid, struct endpoint, fid.fid);
    struct domain *domain = endpoint->domain;
    lock(domain);
    list_remove(&endpoint->link);
    while (endpoint->waiters > 0) {
        kumi_wind_wake(endpoint->node);
        unlock(domain);
        sched_yield();
        lock(domain);
    }
    if (endpoint->node != NULL)
        flush(endpoint);
    while (!list_is_empty(&endpoint->requests))
        request_free(LIST_MEMBER(endpoint->requests.next, struct request, link));
    matching_free(endpoint);
    control_free(endpoint);
    region_detach(endpoint);
    if (endpoint->vector != NULL)
        endpoint->vector->references--;
    if (endpoint->send_queue != NULL)
        endpoint->send_queue->references--;
    if (endpoint->receive_queue != NULL)
        endpoint->receive_queue->references--;
    for (int event = 0; event < EVENT_COUNT; event++)
        if (endpoint->counters[event] != NULL)
            endpoint->counters[event]->references--;
    domain->references--;
    unlock(domain);
    kumi_wind_close(endpoint->node);
    peers_free(endpoint);
    free(endpoint->slots);
    free(endpoint);
    return 0;
}

static struct fi_ops endpoint_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = endpoint_close,
    .bind = endpoint_bind,
    .control = endpoint_control,
    .ops_open = no_ops_open,
};

static int no_getopt(fid_t fid, int level, int option, void *value, size_t *bytes)
{
    (void)fid, (void)level, (void)option, (void)value, (void)bytes;
    return -FI_ENOPROTOOPT;
}

static int no_setopt(fid_t fid, int level, int option, const void *value, size_t bytes)
{
    (void)fid, (void)level, (void)option, (void)value, (void)bytes;
    return -FI_ENOPROTOOPT;
}

static int no_send_context(struct fid_ep *fid, int index, struct fi_tx_attr *attributes, struct fid_ep **out,
                           void *context)
{
    (void)fid, (void)index, (void)attributes, (void)out, (void)context;
    return -FI_ENOSYS;
}

static int no_receive_context(struct fid_ep *fid, int index, struct fi_rx_attr *attributes,
                              struct fid_ep **out, void *context)
{
    (void)fid, (void)index, (void)attributes, (void)out, (void)context;
    return -FI_ENOSYS;
}

static ssize_t receives_left(struct fid_ep *fid)
{
    (void)fid;
    return REQUESTS_MAX;
}

static ssize_t sends_left(struct fid_ep *fid)
{
    return REQUESTS_MAX - endpoint_of(fid)->started;
}

static struct fi_ops_ep endpoint_ops = {
    .size = sizeof(struct fi_ops_ep),
    .cancel = matching_cancel,
    .getopt = no_getopt,
    .setopt = no_setopt,
    .tx_ctx = no_send_context,
    .rx_ctx = no_receive_context,
    .rx_size_left = receives_left,
    .tx_size_left = sends_left,
};

static int endpoint_getname(fid_t fid, void *out, size_t *bytes)
{
    struct endpoint *endpoint = LIST_MEMBER(fid, struct endpoint, fid.fid);
    size_t room = *bytes;
    size_t needed = address_bytes(&endpoint->address);
    *bytes = needed;
    if (!endpoint->is_enabled)
        return -FI_EOPBADSTATE;
    if (room > 0)
        memcpy(out, &endpoint->address, room < needed ? room : needed);
    return room < needed ? -FI_ETOOSMALL : 0;
}

static int endpoint_setname(fid_t fid, void *address, size_t bytes)
{
    struct endpoint *endpoint = LIST_MEMBER(fid, struct endpoint, fid.fid);
    if (endpoint->is_enabled)
        return -FI_EOPBADSTATE;
    if (bytes > sizeof endpoint->address || bytes < sizeof endpoint->address.in)
        return -FI_EINVAL;
    memcpy(&endpoint->address, address, bytes);
    return 0;
}

static int no_getpeer(struct fid_ep *fid, void *address, size_t *bytes)
{
    (void)fid, (void)address, (void)bytes;
    return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *fid, const void *address, const void *parameter, size_t bytes)
{
    (void)fid, (void)address, (void)parameter, (void)bytes;
    return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *fid)
{
    (void)fid;
    return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *fid, const void *parameter, size_t bytes)
{
    (void)fid, (void)parameter, (void)bytes;
    return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *fid, fid_t handle, const void *parameter, size_t bytes)
{
    (void)fid, (void)handle, (void)parameter, (void)bytes;
    return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *fid, uint64_t flags)
{
    (void)fid, (void)flags;
    return -FI_ENOSYS;
}

static int no_join(struct fid_ep *fid, const void *address, uint64_t flags, struct fid_mc **out,
                   void *context)
{
    (void)fid, (void)address, (void)flags, (void)out, (void)context;
    return -FI_ENOSYS;
}

static struct fi_ops_cm name_ops = {
    .size = sizeof(struct fi_ops_cm),
    .setname = endpoint_setname,
    .getname = endpoint_getname,
    .getpeer = no_getpeer,
    .connect = no_connect,
    .listen = no_listen,
    .accept = no_accept,
    .reject = no_reject,
    .shutdown = no_shutdown,
    .join = no_join,
};

int endpoint_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
    struct domain *domain = domain_of(fid);
    if (info->ep_attr != NULL && info->ep_attr->type != FI_EP_UNSPEC && info->ep_attr->type != FI_EP_RDM) {
        WARN(FI_LOG_EP_CTRL, "endpoint type %d: expected FI_EP_RDM (%d)\n", info->ep_attr->type, FI_EP_RDM);
        return -FI_EINVAL;
    }
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL)
        return -FI_ENOMEM;
    endpoint->domain = domain;
    endpoint->address.in = (struct sockaddr_in){.sin_family = AF_INET};
    if (info->src_addr != NULL && info->src_addrlen <= sizeof endpoint->address)
        memcpy(&endpoint->address, info->src_addr, info->src_addrlen);
    endpoint->caps = info->caps;
    endpoint->send_flags = info->tx_attr == NULL ? 0 : info->tx_attr->op_flags;
    endpoint->receive_flags = info->rx_attr == NULL ? 0 : info->rx_attr->op_flags;
    list_init(&endpoint->peers);
    list_init(&endpoint->requests);
    list_init(&endpoint->deferred);
    matching_init(endpoint);
    endpoint->fid.fid = (struct fid){.fclass = FI_CLASS_EP, .context = context, .ops = &endpoint_fid_ops};
    endpoint->fid.ops = &endpoint_ops;
    endpoint->fid.cm = &name_ops;
    endpoint->fid.msg = &message_ops;
    endpoint->fid.tagged = &tagged_ops;
    endpoint->fid.rma = &rma_ops;
    endpoint->fid.atomic = &atomic_ops;
    lock(domain);
    domain->references++;
    list_append(&domain->endpoints, &endpoint->link);
    unlock(domain);
    *out = &endpoint->fid;
    return 0;
}
