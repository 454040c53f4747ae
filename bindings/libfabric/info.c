/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* fi_getinfo: one entry for each usable address of an interface. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider.h"

#define DATA_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC)
#define MESSAGE_CAPS (FI_SEND | FI_RECV)
#define MEMORY_CAPS (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define OTHER_CAPS (FI_DIRECTED_RECV | FI_SOURCE)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define ALL_CAPS (DATA_CAPS | MESSAGE_CAPS | MEMORY_CAPS | OTHER_CAPS | DOMAIN_CAPS)

#define SEND_FLAGS \
    (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define LEVEL_FLAGS (FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)

/*
 * Ordered messages arrive in their order. Operations on memory are executed in any order, but
 * before a message that follows them (docs/spec/wind.md, "Segment").
 */
#define MESSAGE_ORDER (FI_ORDER_SAS)

/* Arguments of fi_getinfo. */
struct query {
    uint32_t version;
    const struct fi_info *hints;
    /* Interface that the user chose, or NULL. */
    const char *interface;
    /* Address that the result must have, and the peer's. A family of 0 means any. */
    union address source;
    union address destination;
    struct fi_info *first;
    struct fi_info **end;
};

static int refuse(const char *hint, unsigned long long value, unsigned long long accepted)
{
    FI_INFO(&provider, FI_LOG_CORE, "hint %s is %#llx: accepted is %#llx\n", hint, value, accepted);
    return -FI_ENODATA;
}

static int check_order(const char *hint, uint64_t order)
{
    return order & ~MESSAGE_ORDER ? refuse(hint, order, MESSAGE_ORDER) : 0;
}

static int check_endpoint(const struct fi_ep_attr *hint)
{
    if (hint->type != FI_EP_UNSPEC && hint->type != FI_EP_RDM)
        return refuse("ep_attr->type", hint->type, FI_EP_RDM);
    if (hint->protocol != FI_PROTO_UNSPEC)
        return refuse("ep_attr->protocol", hint->protocol, FI_PROTO_UNSPEC);
    if (hint->max_msg_size > MESSAGE_BYTES_MAX)
        return refuse("ep_attr->max_msg_size", hint->max_msg_size, MESSAGE_BYTES_MAX);
    if (hint->tx_ctx_cnt > 1)
        return refuse("ep_attr->tx_ctx_cnt", hint->tx_ctx_cnt, 1);
    if (hint->rx_ctx_cnt > 1)
        return refuse("ep_attr->rx_ctx_cnt", hint->rx_ctx_cnt, 1);
    if (hint->max_order_raw_size | hint->max_order_war_size | hint->max_order_waw_size)
        return refuse("ep_attr->max_order_*_size", 1, 0);
    return hint->auth_key_size == 0 ? 0 : refuse("ep_attr->auth_key_size", hint->auth_key_size, 0);
}

static int check_domain(const struct fi_domain_attr *hint)
{
    if (hint->cq_data_size > sizeof(uint64_t))
        return refuse("domain_attr->cq_data_size", hint->cq_data_size, sizeof(uint64_t));
    if (hint->mr_key_size > sizeof(uint64_t))
        return refuse("domain_attr->mr_key_size", hint->mr_key_size, sizeof(uint64_t));
    if (hint->max_ep_stx_ctx != 0 || hint->max_ep_srx_ctx != 0)
        return refuse("domain_attr->max_ep_stx_ctx or max_ep_srx_ctx", 1, 0);
    if (hint->caps & ~DOMAIN_CAPS)
        return refuse("domain_attr->caps", hint->caps, DOMAIN_CAPS);
    return hint->auth_key_size == 0 ? 0 : refuse("domain_attr->auth_key_size", hint->auth_key_size, 0);
}

static int check_contexts(const struct fi_tx_attr *tx, const struct fi_rx_attr *rx)
{
    if (tx != NULL) {
        if (tx->caps & ~ALL_CAPS)
            return refuse("tx_attr->caps", tx->caps, ALL_CAPS);
        if (tx->op_flags & ~SEND_FLAGS)
            return refuse("tx_attr->op_flags", tx->op_flags, SEND_FLAGS);
        if (tx->inject_size > INJECT_BYTES_MAX)
            return refuse("tx_attr->inject_size", tx->inject_size, INJECT_BYTES_MAX);
        if (tx->size > REQUESTS_MAX)
            return refuse("tx_attr->size", tx->size, REQUESTS_MAX);
        if (tx->iov_limit > BUFFERS_MAX)
            return refuse("tx_attr->iov_limit", tx->iov_limit, BUFFERS_MAX);
        if (tx->rma_iov_limit > 1)
            return refuse("tx_attr->rma_iov_limit", tx->rma_iov_limit, 1);
        if (check_order("tx_attr->msg_order", tx->msg_order) != 0 || tx->comp_order != FI_ORDER_NONE)
            return -FI_ENODATA;
    }
    if (rx != NULL) {
        if (rx->caps & ~ALL_CAPS)
            return refuse("rx_attr->caps", rx->caps, ALL_CAPS);
        if (rx->op_flags & ~FI_COMPLETION)
            return refuse("rx_attr->op_flags", rx->op_flags, FI_COMPLETION);
        if (rx->iov_limit > BUFFERS_MAX)
            return refuse("rx_attr->iov_limit", rx->iov_limit, BUFFERS_MAX);
        if (check_order("rx_attr->msg_order", rx->msg_order) != 0 || rx->comp_order != FI_ORDER_NONE)
            return -FI_ENODATA;
    }
    return 0;
}

/* Returns whether the hints accept that the provider chooses the keys of memory regions. */
static bool accepts_keys(const struct query *query)
{
    if (query->hints == NULL)
        return true;
    if (FI_VERSION_LT(query->version, FI_VERSION(1, 5)) || query->hints->domain_attr == NULL)
        return false;
    return (query->hints->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0;
}

/* Stores the capabilities of the result. */
static int choose_caps(const struct query *query, uint64_t *out)
{
    uint64_t wanted = query->hints == NULL ? 0 : query->hints->caps;
    if (wanted & ~ALL_CAPS)
        return refuse("caps", wanted, ALL_CAPS);
    uint64_t caps = wanted == 0 ? ALL_CAPS : wanted;
    if (caps & (FI_RMA | FI_ATOMIC) && !accepts_keys(query)) {
        if (wanted != 0)
            return refuse("domain_attr->mr_mode",
                          query->hints->domain_attr ? query->hints->domain_attr->mr_mode : 0, FI_MR_PROV_KEY);
        caps &= ~(FI_RMA | FI_ATOMIC | MEMORY_CAPS);
    }
    if (caps & (FI_MSG | FI_TAGGED) && !(caps & MESSAGE_CAPS))
        caps |= MESSAGE_CAPS;
    if (caps & (FI_RMA | FI_ATOMIC) && !(caps & MEMORY_CAPS))
        caps |= MEMORY_CAPS;
    *out = caps | DOMAIN_CAPS;
    return 0;
}

static uint64_t level_of(const struct fi_info *hints)
{
    uint64_t flags = hints == NULL || hints->tx_attr == NULL ? 0 : hints->tx_attr->op_flags;
    return flags & LEVEL_FLAGS ? flags : flags | FI_INJECT_COMPLETE;
}

static void set_contexts(struct fi_info *info, const struct fi_info *hints)
{
    uint64_t sends = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE;
    uint64_t receives =
        FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | OTHER_CAPS;
    struct fi_tx_attr *tx = info->tx_attr;
    tx->caps = info->caps & sends;
    tx->op_flags = level_of(hints);
    tx->msg_order = MESSAGE_ORDER;
    tx->inject_size = INJECT_BYTES_MAX;
    tx->size = REQUESTS_MAX;
    tx->iov_limit = BUFFERS_MAX;
    tx->rma_iov_limit = info->caps & FI_RMA ? 1 : 0;
    struct fi_rx_attr *rx = info->rx_attr;
    rx->caps = info->caps & receives;
    rx->op_flags = hints == NULL || hints->rx_attr == NULL ? 0 : hints->rx_attr->op_flags;
    rx->msg_order = MESSAGE_ORDER;
    /* The number of posted receives is not limited. */
    bool has_size = hints != NULL && hints->rx_attr != NULL && hints->rx_attr->size > REQUESTS_MAX;
    rx->size = has_size ? hints->rx_attr->size : REQUESTS_MAX;
    rx->iov_limit = BUFFERS_MAX;
}

static void set_domain(struct fi_domain_attr *domain, const struct fi_info *info, const struct query *query)
{
    const struct fi_domain_attr *hint = query->hints == NULL ? NULL : query->hints->domain_attr;
    domain->threading = FI_THREAD_SAFE;
    domain->control_progress = FI_PROGRESS_AUTO;
    domain->data_progress = FI_PROGRESS_MANUAL;
    if (hint != NULL && hint->control_progress != FI_PROGRESS_UNSPEC)
        domain->control_progress = hint->control_progress;
    if (hint != NULL && hint->data_progress != FI_PROGRESS_UNSPEC)
        domain->data_progress = hint->data_progress;
    domain->resource_mgmt = FI_RM_ENABLED;
    domain->av_type = hint == NULL ? FI_AV_UNSPEC : hint->av_type;
    domain->mr_mode = info->caps & (FI_RMA | FI_ATOMIC) ? FI_MR_PROV_KEY : 0;
    if (FI_VERSION_LT(query->version, FI_VERSION(1, 5)))
        domain->mr_mode = FI_MR_UNSPEC;
    domain->mr_key_size = sizeof(uint64_t);
    domain->cq_data_size = sizeof(uint64_t);
    domain->cq_cnt = 1 << 16;
    domain->ep_cnt = 1 << 15;
    domain->tx_ctx_cnt = 1 << 15;
    domain->rx_ctx_cnt = 1 << 15;
    domain->max_ep_tx_ctx = 1;
    domain->max_ep_rx_ctx = 1;
    domain->cntr_cnt = 1 << 16;
    domain->mr_iov_limit = 1;
    domain->mr_cnt = 1 << 20;
    domain->caps = DOMAIN_CAPS;
}

/* Names the network: "10.0.0.0/24". */
static char *network_name(const struct ifaddrs *interface)
{
    char host[INET6_ADDRSTRLEN] = "", text[INET6_ADDRSTRLEN + 8];
    const union address *address = (const void *)interface->ifa_addr;
    const union address *mask = (const void *)interface->ifa_netmask;
    bool is_in6 = address->any.sa_family == AF_INET6;
    const uint8_t *from =
        is_in6 ? (const void *)&address->in6.sin6_addr : (const void *)&address->in.sin_addr;
    const uint8_t *bits = is_in6 ? (const void *)&mask->in6.sin6_addr : (const void *)&mask->in.sin_addr;
    uint8_t network[16] = {0};
    int length = 0;
    for (int at = 0; at < (is_in6 ? 16 : 4); at++) {
        network[at] = mask == NULL ? from[at] : from[at] & bits[at];
        length += mask == NULL ? 8 : __builtin_popcount(bits[at]);
    }
    inet_ntop(address->any.sa_family, network, host, sizeof host);
    snprintf(text, sizeof text, "%s/%d", host, length);
    return strdup(text);
}

static bool has_name(const char *hint, const char *name)
{
    return hint == NULL || (name != NULL && strcmp(hint, name) == 0);
}

static bool is_loopback(const union address *address)
{
    if (address->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&address->in6.sin6_addr);
    return ntohl(address->in.sin_addr.s_addr) >> 24 == 127;
}

static int append(struct query *query, const struct ifaddrs *interface, uint64_t caps)
{
    const struct fi_info *hints = query->hints;
    struct fi_info *info = fi_allocinfo();
    if (info == NULL)
        return -FI_ENOMEM;
    *query->end = info;
    union address source = {0};
    memcpy(&source, interface->ifa_addr,
           interface->ifa_addr->sa_family == AF_INET6 ? sizeof source.in6 : sizeof source.in);
    if (source.any.sa_family == AF_INET6)
        source.in6.sin6_port = query->source.in6.sin6_port;
    else
        source.in.sin_port = query->source.in.sin_port;
    info->caps = caps;
    info->mode = 0;
    info->addr_format = source.any.sa_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    info->src_addrlen = address_bytes(&source);
    info->src_addr = malloc(info->src_addrlen);
    if (info->src_addr != NULL)
        memcpy(info->src_addr, &source, info->src_addrlen);
    if (query->destination.any.sa_family != 0) {
        info->dest_addrlen = address_bytes(&query->destination);
        info->dest_addr = malloc(info->dest_addrlen);
        if (info->dest_addr != NULL)
            memcpy(info->dest_addr, &query->destination, info->dest_addrlen);
    }
    set_contexts(info, hints);
    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->protocol = FI_PROTO_UNSPEC;
    info->ep_attr->protocol_version = 1;
    info->ep_attr->max_msg_size = MESSAGE_BYTES_MAX;
    info->ep_attr->mem_tag_format = UINT64_MAX;
    info->ep_attr->tx_ctx_cnt = 1;
    info->ep_attr->rx_ctx_cnt = 1;
    set_domain(info->domain_attr, info, query);
    info->domain_attr->name = strdup(interface->ifa_name);
    info->fabric_attr->name = network_name(interface);
    info->fabric_attr->prov_version = provider.version;
    info->fabric_attr->api_version = query->version;
    bool is_wanted =
        hints == NULL ||
        ((hints->domain_attr == NULL || has_name(hints->domain_attr->name, info->domain_attr->name)) &&
         (hints->fabric_attr == NULL || has_name(hints->fabric_attr->name, info->fabric_attr->name)));
    if (!is_wanted) {
        *query->end = NULL;
        fi_freeinfo(info);
        return 0;
    }
    query->end = &info->next;
    return 0;
}

/* The device has a carrier. net/if.h has no name for this flag of the kernel. */
#define LOWER_UP (1u << 16)

/* Returns whether the entry's address is usable and may be in the result. */
static bool is_candidate(const struct query *query, const struct ifaddrs *interface, bool for_loopback)
{
    const union address *address = (const void *)interface->ifa_addr;
    /* IFF_RUNNING follows the carrier up to a second later. */
    if (address == NULL || !(interface->ifa_flags & IFF_UP) || !(interface->ifa_flags & LOWER_UP))
        return false;
    if (!has_name(query->interface, interface->ifa_name))
        return false;
    int family = query->source.any.sa_family ? query->source.any.sa_family : AF_INET;
    if (address->any.sa_family != family || is_loopback(address) != for_loopback)
        return false;
    if (family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&query->source.in6.sin6_addr)
                   ? !IN6_IS_ADDR_LINKLOCAL(&address->in6.sin6_addr)
                   : IN6_ARE_ADDR_EQUAL(&query->source.in6.sin6_addr, &address->in6.sin6_addr);
    return query->source.in.sin_addr.s_addr == INADDR_ANY ||
           query->source.in.sin_addr.s_addr == address->in.sin_addr.s_addr;
}

static int resolve(const char *node, const char *service, uint64_t flags, int family, union address *out)
{
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_DGRAM}, *found;
    hints.ai_flags = (flags & FI_SOURCE ? AI_PASSIVE : 0) | (flags & FI_NUMERICHOST ? AI_NUMERICHOST : 0);
    if (node == NULL && family == AF_UNSPEC)
        hints.ai_family = AF_INET;
    int outcome = getaddrinfo(node, service, &hints, &found);
    if (outcome != 0) {
        WARN(FI_LOG_CORE, "invalid node \"%s\" or service \"%s\": %s; expected a host and a port\n",
             node ? node : "", service ? service : "", gai_strerror(outcome));
        return -FI_ENODATA;
    }
    memcpy(out, found->ai_addr, found->ai_addrlen < sizeof *out ? found->ai_addrlen : sizeof *out);
    freeaddrinfo(found);
    return 0;
}

/* Stores the address from which the kernel reaches the destination. */
static void choose_source(const union address *destination, union address *source)
{
    union address probe = *destination;
    socklen_t bytes = sizeof *source;
    int file = socket(probe.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe.any.sa_family == AF_INET && probe.in.sin_port == 0)
        probe.in.sin_port = htons(9);
    if (probe.any.sa_family == AF_INET6 && probe.in6.sin6_port == 0)
        probe.in6.sin6_port = htons(9);
    if (file < 0)
        return;
    if (connect(file, &probe.any, address_bytes(&probe)) == 0)
        getsockname(file, &source->any, &bytes);
    if (source->any.sa_family == AF_INET6)
        source->in6.sin6_port = 0;
    else
        source->in.sin_port = 0;
    close(file);
}

static bool is_address(const void *address, size_t bytes)
{
    const union address *given = address;
    return given != NULL && ((given->any.sa_family == AF_INET && bytes >= sizeof given->in) ||
                             (given->any.sa_family == AF_INET6 && bytes >= sizeof given->in6));
}

/* Stores the addresses that the arguments name. */
static int set_addresses(struct query *query, const char *node, const char *service, uint64_t flags)
{
    const struct fi_info *hints = query->hints;
    int family = AF_UNSPEC;
    if (hints != NULL) {
        switch (hints->addr_format) {
        case FI_FORMAT_UNSPEC:
        case FI_SOCKADDR:
            break;
        case FI_SOCKADDR_IN:
            family = AF_INET;
            break;
        case FI_SOCKADDR_IN6:
            family = AF_INET6;
            break;
        default:
            return refuse("addr_format", hints->addr_format, FI_SOCKADDR_IN);
        }
        if (is_address(hints->src_addr, hints->src_addrlen))
            memcpy(&query->source, hints->src_addr, address_bytes((const union address *)hints->src_addr));
        if (is_address(hints->dest_addr, hints->dest_addrlen))
            memcpy(&query->destination, hints->dest_addr,
                   address_bytes((const union address *)hints->dest_addr));
    }
    if (node != NULL || service != NULL) {
        union address *named = flags & FI_SOURCE ? &query->source : &query->destination;
        int outcome = resolve(node, service, flags, family, named);
        if (outcome != 0)
            return outcome;
    }
    if (query->destination.any.sa_family != 0 && query->source.any.sa_family == 0)
        choose_source(&query->destination, &query->source);
    if (query->source.any.sa_family == 0)
        query->source.any.sa_family = family == AF_INET6 ? AF_INET6 : AF_INET;
    if (family != AF_UNSPEC && query->source.any.sa_family != family)
        return refuse("addr_format", hints->addr_format, FI_SOCKADDR_IN);
    return 0;
}

int provider_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                     const struct fi_info *hints, struct fi_info **out)
{
    struct query query = {.version = version, .hints = hints};
    char *interface = NULL;
    uint8_t secret[KUMI_WIND_SECRET_BYTES];
    uint64_t caps = 0;
    query.end = &query.first;
    if (fi_param_get_str(&provider, "iface", &interface) == 0)
        query.interface = interface;
    if (hints != NULL && ((hints->ep_attr != NULL && check_endpoint(hints->ep_attr) != 0) ||
                          (hints->domain_attr != NULL && check_domain(hints->domain_attr) != 0) ||
                          check_contexts(hints->tx_attr, hints->rx_attr) != 0))
        return -FI_ENODATA;
    if (choose_caps(&query, &caps) != 0 || set_addresses(&query, node, service, flags) != 0)
        return -FI_ENODATA;
    if (secret_read(secret) != 0)
        return -FI_ENODATA;
    explicit_bzero(secret, sizeof secret);
    struct ifaddrs *interfaces;
    if (getifaddrs(&interfaces) != 0)
        return -errno;
    int outcome = 0;
    /*
     * Open MPI spreads the processes of a host over all equal entries. A process on loopback does
     * not reach another host. So programs that ask for other hosts get loopback only if there is
     * no other address.
     */
    bool is_remote = hints != NULL && hints->caps & FI_REMOTE_COMM;
    for (int pass = 0; pass < 2 && outcome == 0; pass++) {
        if (pass == 1 && is_remote && query.first != NULL)
            break;
        for (struct ifaddrs *at = interfaces; at != NULL && outcome == 0; at = at->ifa_next)
            if (is_candidate(&query, at, pass == 1))
                outcome = append(&query, at, caps);
    }
    freeifaddrs(interfaces);
    if (outcome == 0 && query.first == NULL) {
        if (query.interface != NULL)
            FI_INFO(&provider, FI_LOG_CORE, "no usable address of interface \"%s\" (FI_KUMI_IFACE)\n",
                    query.interface);
        outcome = -FI_ENODATA;
    }
    if (outcome != 0)
        fi_freeinfo(query.first);
    else
        *out = query.first;
    return outcome;
}
