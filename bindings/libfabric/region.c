/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory regions. The provider chooses the keys, and a peer makes the Wind place from a key:
 *
 *    |  number of the Wind region (32)  |  offset (3)  |  access (2)  |  random (27)  |
 *
 * A Wind region begins at a multiple of 8, and the memory at the offset in it. The 128-bit key of
 * the Wind region is derived from the lower half and the secret of the job, so the target refuses a
 * key whose access bits were changed.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "provider.h"

enum { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_SHIFT = 27, OFFSET_SHIFT = 29 };

/* Numbers that are tried before the memory counts as not registrable. */
enum { NUMBER_TRIES = 64 };

/* Registration of a region at the node of an endpoint. */
struct registration {
    struct list link;
    struct endpoint *endpoint;
    struct kumi_wind_region *region;
};

static uint32_t access_bits(uint64_t access)
{
    return (access & FI_REMOTE_READ ? ACCESS_READ : 0) | (access & FI_REMOTE_WRITE ? ACCESS_WRITE : 0);
}

bool key_allows(uint64_t key, uint64_t access)
{
    uint32_t wanted = access_bits(access);
    return ((uint32_t)key >> ACCESS_SHIFT & wanted) == wanted;
}

struct kumi_wind_place key_place(const struct domain *domain, uint64_t key, uint64_t offset)
{
    struct kumi_wind_place place = {.region = (uint32_t)(key >> 32)};
    uint64_t before = (uint32_t)key >> OFFSET_SHIFT;
    /* An offset beyond the address space stays there. */
    place.offset = offset > UINT64_MAX - before ? UINT64_MAX : offset + before;
    kumi_wind_region_key(domain->secret, (uint32_t)key, place.key);
    return place;
}

/* Registers a region at a node that is open. */
static int attach(struct region *region, struct endpoint *endpoint)
{
    char error[ERROR_TEXT_BYTES];
    struct registration *registration = malloc(sizeof *registration);
    if (registration == NULL)
        return -FI_ENOMEM;
    struct kumi_wind_place place = key_place(region->domain, region->fid.key, 0);
    registration->endpoint = endpoint;
    registration->region =
        kumi_wind_region_borrow(endpoint->node, region->memory, region->bytes, &place, error, sizeof error);
    if (registration->region == NULL) {
        FI_INFO(&provider, FI_LOG_MR, "cannot register %zu bytes: %s\n", region->bytes, error);
        free(registration);
        return -FI_EBUSY;
    }
    list_append(&region->places, &registration->link);
    return 0;
}

/* Ends the registrations of a region, or those at one endpoint. */
static void detach(struct region *region, const struct endpoint *endpoint)
{
    LIST_FOR_EACH(link, &region->places)
    {
        struct registration *registration = LIST_MEMBER(link, struct registration, link);
        if (endpoint != NULL && registration->endpoint != endpoint)
            continue;
        list_remove(link);
        kumi_wind_region_free(registration->endpoint->node, registration->region);
        free(registration);
    }
}

int region_attach(struct endpoint *endpoint)
{
    LIST_FOR_EACH(link, &endpoint->domain->regions)
    {
        struct region *region = LIST_MEMBER(link, struct region, link);
        int outcome = region->access == 0 ? 0 : attach(region, endpoint);
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

void region_detach(struct endpoint *endpoint)
{
    LIST_FOR_EACH(link, &endpoint->domain->regions)
    detach(LIST_MEMBER(link, struct region, link), endpoint);
}

/* Registers a region at all nodes. Returns -FI_EBUSY if the number is in use at one. */
static int attach_all(struct region *region)
{
    LIST_FOR_EACH(link, &region->domain->endpoints)
    {
        struct endpoint *endpoint = LIST_MEMBER(link, struct endpoint, link);
        int outcome = endpoint->node == NULL ? 0 : attach(region, endpoint);
        if (outcome != 0) {
            detach(region, NULL);
            return outcome;
        }
    }
    return 0;
}

static int choose_key(struct region *region)
{
    for (int tries = 0; tries < NUMBER_TRIES; tries++) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return -FI_EIO;
        uint32_t low = (random & ((1u << ACCESS_SHIFT) - 1)) | access_bits(region->access) << ACCESS_SHIFT |
                       (uint32_t)((uintptr_t)region->memory % 8) << OFFSET_SHIFT;
        region->fid.key = (uint64_t)region->domain->next_region++ << 32 | low;
        int outcome = region->access == 0 ? 0 : attach_all(region);
        if (outcome != -FI_EBUSY)
            return outcome;
    }
    WARN(FI_LOG_MR, "cannot register %zu bytes at %p\n", region->bytes, (void *)region->memory);
    return -FI_ENOMEM;
}

uint8_t *region_memory(struct domain *domain, uint64_t key, uint64_t offset, size_t bytes, uint64_t access,
                       int *error)
{
    *error = FI_EACCES;
    LIST_FOR_EACH(link, &domain->regions)
    {
        struct region *region = LIST_MEMBER(link, struct region, link);
        if (region->fid.key != key)
            continue;
        if ((region->access & access) != access || offset > region->bytes || bytes > region->bytes - offset)
            return NULL;
        *error = 0;
        return region->memory + offset;
    }
    return NULL;
}

struct kumi_wind_region *buffer_register(struct endpoint *endpoint, void *memory, size_t bytes,
                                         struct kumi_wind_place *place)
{
    char error[ERROR_TEXT_BYTES] = "";
    for (int tries = 0; tries < NUMBER_TRIES; tries++) {
        *place = (struct kumi_wind_place){.region = endpoint->domain->next_region++};
        if (getrandom(place->key, sizeof place->key, 0) != sizeof place->key)
            break;
        struct kumi_wind_region *region =
            kumi_wind_region_borrow(endpoint->node, memory, bytes, place, error, sizeof error);
        if (region != NULL)
            return region;
    }
    WARN(FI_LOG_MR, "cannot register a buffer of %zu bytes: %s\n", bytes, error);
    return NULL;
}

static int region_close(struct fid *fid)
{
    struct region *region = LIST_MEMBER(fid, struct region, fid.fid);
    struct domain *domain = region->domain;
    lock(domain);
    detach(region, NULL);
    list_remove(&region->link);
    domain->references--;
    unlock(domain);
    free(region);
    return 0;
}

static struct fi_ops region_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = region_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static int region_regattr(struct fid *fid, const struct fi_mr_attr *attributes, uint64_t flags,
                          struct fid_mr **out)
{
    struct domain *domain = LIST_MEMBER(fid, struct domain, fid.fid);
    uint64_t known = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if (flags != 0)
        return -FI_EBADFLAGS;
    if (attributes->iov_count != 1 || attributes->offset != 0 || attributes->access & ~known) {
        WARN(FI_LOG_MR, "%zu buffers, offset %llu, access %#llx: expected 1, 0 and a set of %#llx\n",
             attributes->iov_count, (unsigned long long)attributes->offset,
             (unsigned long long)attributes->access, (unsigned long long)known);
        return -FI_EINVAL;
    }
    if (attributes->iface != FI_HMEM_SYSTEM)
        return -FI_ENOSYS;
    struct region *region = calloc(1, sizeof *region);
    if (region == NULL)
        return -FI_ENOMEM;
    region->domain = domain;
    region->memory = attributes->mr_iov->iov_base;
    region->bytes = attributes->mr_iov->iov_len;
    region->access = attributes->access & (FI_REMOTE_READ | FI_REMOTE_WRITE);
    list_init(&region->places);
    region->fid.fid =
        (struct fid){.fclass = FI_CLASS_MR, .context = attributes->context, .ops = &region_fid_ops};
    lock(domain);
    int outcome = choose_key(region);
    if (outcome == 0) {
        list_append(&domain->regions, &region->link);
        domain->references++;
    }
    unlock(domain);
    if (outcome != 0) {
        free(region);
        return outcome;
    }
    *out = &region->fid;
    return 0;
}

static int region_regv(struct fid *fid, const struct iovec *buffers, size_t count, uint64_t access,
                       uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
    struct fi_mr_attr attributes = {.mr_iov = buffers,
                                    .iov_count = count,
                                    .access = access,
                                    .offset = offset,
                                    .requested_key = key,
                                    .context = context};
    return region_regattr(fid, &attributes, flags, out);
}

static int region_reg(struct fid *fid, const void *memory, size_t bytes, uint64_t access, uint64_t offset,
                      uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
    struct iovec buffer = {(void *)memory, bytes};
    return region_regv(fid, &buffer, 1, access, offset, key, flags, out, context);
}

struct fi_ops_mr region_ops = {
    .size = sizeof(struct fi_ops_mr),
    .reg = region_reg,
    .regv = region_regv,
    .regattr = region_regattr,
};
