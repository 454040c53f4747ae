/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Address vectors. An fi_addr_t is an index, in both types of vector. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

static struct vector *vector_of(struct fid_av *fid)
{
    return LIST_MEMBER(fid, struct vector, fid);
}

fi_addr_t vector_find(const struct vector *vector, const union address *address)
{
    for (size_t at = 0; at < vector->count; at++)
        if (address_equals(&vector->addresses[at], address))
            return at;
    return FI_ADDR_NOTAVAIL;
}

/* Appends an address. Returns its index, or FI_ADDR_NOTAVAIL without memory. */
static fi_addr_t vector_append(struct vector *vector, const union address *address)
{
    if (vector->count == vector->room) {
        size_t room = vector->room == 0 ? 64 : 2 * vector->room;
        void *grown = realloc(vector->addresses, room * sizeof *vector->addresses);
        if (grown == NULL)
            return FI_ADDR_NOTAVAIL;
        vector->addresses = grown;
        vector->room = room;
    }
    vector->addresses[vector->count] = *address;
    vector->version++;
    return vector->count++;
}

static int vector_insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *names,
                         uint64_t flags, void *context)
{
    struct vector *vector = vector_of(fid);
    const uint8_t *at = addresses;
    int inserted = 0;
    if (flags & ~(FI_MORE | FI_SYNC_ERR))
        return -FI_EBADFLAGS;
    lock(vector->domain);
    for (size_t index = 0; index < count; index++) {
        union address address = {0};
        fi_addr_t name = FI_ADDR_NOTAVAIL;
        int family = ((const struct sockaddr *)at)->sa_family;
        size_t bytes = family == AF_INET6 ? sizeof address.in6 : sizeof address.in;
        if (family == AF_INET || family == AF_INET6) {
            memcpy(&address, at, bytes);
            name = vector_append(vector, &address);
        } else {
            WARN(FI_LOG_AV, "invalid address family %d: expected %d or %d\n", family, AF_INET, AF_INET6);
        }
        inserted += name != FI_ADDR_NOTAVAIL;
        if (names != NULL)
            names[index] = name;
        if (flags & FI_SYNC_ERR && context != NULL)
            ((int *)context)[index] = name == FI_ADDR_NOTAVAIL ? FI_EINVAL : 0;
        at += bytes;
    }
    unlock(vector->domain);
    return inserted;
}

static int vector_insertsvc(struct fid_av *fid, const char *node, const char *service, fi_addr_t *name,
                            uint64_t flags, void *context)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *found;
    int outcome = getaddrinfo(node, service, &hints, &found);
    if (outcome != 0) {
        WARN(FI_LOG_AV, "invalid node \"%s\" or service \"%s\": %s\n", node ? node : "",
             service ? service : "", gai_strerror(outcome));
        return -FI_EINVAL;
    }
    int inserted = vector_insert(fid, found->ai_addr, 1, name, flags, context);
    freeaddrinfo(found);
    return inserted;
}

static int no_insertsym(struct fid_av *fid, const char *node, size_t nodes, const char *service,
                        size_t services, fi_addr_t *names, uint64_t flags, void *context)
{
    (void)fid, (void)node, (void)nodes, (void)service, (void)services, (void)names, (void)flags;
    (void)context;
    return -FI_ENOSYS;
}

static int vector_remove(struct fid_av *fid, fi_addr_t *names, size_t count, uint64_t flags)
{
    struct vector *vector = vector_of(fid);
    (void)flags;
    lock(vector->domain);
    for (size_t at = 0; at < count; at++)
        if (names[at] < vector->count)
            memset(&vector->addresses[names[at]], 0, sizeof *vector->addresses);
    vector->version++;
    unlock(vector->domain);
    return 0;
}

static int vector_lookup(struct fid_av *fid, fi_addr_t name, void *out, size_t *bytes)
{
    struct vector *vector = vector_of(fid);
    int outcome = -FI_EINVAL;
    lock(vector->domain);
    if (name < vector->count && vector->addresses[name].any.sa_family != 0) {
        const union address *address = &vector->addresses[name];
        memcpy(out, address, *bytes < address_bytes(address) ? *bytes : address_bytes(address));
        *bytes = address_bytes(address);
        outcome = 0;
    }
    unlock(vector->domain);
    return outcome;
}

static const char *vector_straddr(struct fid_av *fid, const void *address, char *buffer, size_t *bytes)
{
    char text[96];
    (void)fid;
    address_print(address, text, sizeof text);
    snprintf(buffer, *bytes, "%s", text);
    *bytes = strlen(text) + 1;
    return buffer;
}

static struct fi_ops_av vector_ops = {
    .size = sizeof(struct fi_ops_av),
    .insert = vector_insert,
    .insertsvc = vector_insertsvc,
    .insertsym = no_insertsym,
    .remove = vector_remove,
    .lookup = vector_lookup,
    .straddr = vector_straddr,
};

static int vector_close(struct fid *fid)
{
    struct vector *vector = LIST_MEMBER(fid, struct vector, fid.fid);
    lock(vector->domain);
    bool is_used = vector->references > 0;
    if (!is_used)
        vector->domain->references--;
    unlock(vector->domain);
    if (is_used)
        return -FI_EBUSY;
    free(vector->addresses);
    free(vector);
    return 0;
}

static struct fi_ops vector_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = vector_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

int vector_open(struct fid_domain *fid, struct fi_av_attr *attributes, struct fid_av **out, void *context)
{
    struct domain *domain = domain_of(fid);
    if (attributes->flags & (FI_EVENT | FI_READ) || attributes->name != NULL ||
        attributes->rx_ctx_bits != 0) {
        WARN(FI_LOG_AV, "a vector with a name, events or receive contexts: not supported\n");
        return -FI_ENOSYS;
    }
    struct vector *vector = calloc(1, sizeof *vector);
    if (vector == NULL)
        return -FI_ENOMEM;
    vector->domain = domain;
    vector->fid.fid = (struct fid){.fclass = FI_CLASS_AV, .context = context, .ops = &vector_fid_ops};
    vector->fid.ops = &vector_ops;
    if (attributes->type == FI_AV_UNSPEC)
        attributes->type = FI_AV_TABLE;
    lock(domain);
    domain->references++;
    unlock(domain);
    *out = &vector->fid;
    return 0;
}
