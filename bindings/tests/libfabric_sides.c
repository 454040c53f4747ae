/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "libfabric_sides.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct side a, b;
uint8_t *large, *copy;

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct fi_info *hints_new(void)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_PROV_KEY;
    hints->domain_attr->name = strdup("lo");
    hints->fabric_attr->prov_name = strdup("kumi");
    return hints;
}

int query(struct fi_info *hints, const char *node, const char *service, uint64_t flags, struct fi_info **out)
{
    int outcome = fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, out);
    fi_freeinfo(hints);
    return outcome;
}

void must(const char *call, int outcome)
{
    if (outcome >= 0)
        return;
    fprintf(stderr, "%s: %s\n", call, fi_strerror(-outcome));
    exit(1);
}

void side_open(struct side *side)
{
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
    struct fi_cntr_attr counter = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_av_attr vector = {.type = FI_AV_MAP};
    struct fi_info *hints = hints_new();
    hints->domain_attr->data_progress = side->is_automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_UNSPEC;
    must("fi_getinfo", query(hints, NULL, NULL, 0, &side->info));
    must("fi_fabric", fi_fabric(side->info->fabric_attr, &side->fabric, NULL));
    must("fi_domain", fi_domain(side->fabric, side->info, &side->domain, NULL));
    must("fi_av_open", fi_av_open(side->domain, &vector, &side->vector, NULL));
    must("fi_cq_open", fi_cq_open(side->domain, &queue, &side->queue, NULL));
    must("fi_cntr_open", fi_cntr_open(side->domain, &counter, &side->sends, NULL));
    must("fi_endpoint", fi_endpoint(side->domain, side->info, &side->endpoint, NULL));
    must("fi_ep_bind", fi_ep_bind(side->endpoint, &side->vector->fid, 0));
    must("fi_ep_bind", fi_ep_bind(side->endpoint, &side->queue->fid, FI_TRANSMIT | FI_RECV));
    must("fi_ep_bind", fi_ep_bind(side->endpoint, &side->sends->fid, FI_SEND));
    must("fi_enable", fi_enable(side->endpoint));
}

void side_close(struct side *side)
{
    must("fi_close", fi_close(&side->endpoint->fid));
    must("fi_close", fi_close(&side->sends->fid));
    must("fi_close", fi_close(&side->queue->fid));
    must("fi_close", fi_close(&side->vector->fid));
    must("fi_close", fi_close(&side->domain->fid));
    must("fi_close", fi_close(&side->fabric->fid));
    fi_freeinfo(side->info);
}

fi_addr_t insert(struct side *side, struct side *other)
{
    struct sockaddr_in name;
    size_t bytes = sizeof name;
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    must("fi_getname", fi_getname(&other->endpoint->fid, &name, &bytes));
    fi_av_insert(side->vector, &name, 1, &address, 0, NULL);
    return address;
}

int await(struct side *side, struct fi_cq_tagged_entry *entry, fi_addr_t *source, size_t *excess)
{
    struct fi_cq_tagged_entry unused;
    struct side *other = side == &a ? &b : &a;
    int64_t end_ms = now_ms() + LIMIT_MS;
    if (entry == NULL)
        entry = &unused;
    while (now_ms() < end_ms) {
        ssize_t taken = fi_cq_readfrom(side->queue, entry, 1, source);
        if (taken == 1)
            return 0;
        if (taken == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(side->queue, &error, 0);
            entry->op_context = error.op_context;
            entry->len = error.len;
            if (excess != NULL)
                *excess = error.olen;
            return error.err;
        }
        /* A read of 0 entries makes progress and takes nothing. */
        if (other->queue != NULL)
            fi_cq_read(other->queue, entry, 0);
    }
    return -1;
}

bool is_silent(struct side *side)
{
    struct fi_cq_tagged_entry entry;
    int64_t end_ms = now_ms() + 30;
    while (now_ms() < end_ms) {
        if (fi_cq_read(side->queue, &entry, 1) != -FI_EAGAIN)
            return false;
        fi_cq_read((side == &a ? &b : &a)->queue, &entry, 0);
    }
    return true;
}

void fill(uint8_t *bytes, size_t count, int seed)
{
    for (size_t at = 0; at < count; at++)
        bytes[at] = (uint8_t)(at * 31 + (at >> 12) + (size_t)seed);
}
