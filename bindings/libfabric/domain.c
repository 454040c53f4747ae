/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Domains: a lock, the secret of the job, a thread of progress, and the objects that share them. */
#include <stdlib.h>
#include <string.h>

#include "provider.h"

/* Longest wait of the thread: the time in which a domain without endpoints is closed. */
enum { THREAD_WAIT_MS = 100 };

static void *make_progress(void *argument)
{
    struct domain *domain = argument;
    uint64_t seen = 0;
    lock(domain);
    while (!domain->is_closing) {
        progress(domain);
        domain_wait(domain, &seen, THREAD_WAIT_MS);
    }
    unlock(domain);
    return NULL;
}

static int domain_close(struct fid *fid)
{
    struct domain *domain = LIST_MEMBER(fid, struct domain, fid.fid);
    if (domain->references > 0) {
        WARN(FI_LOG_DOMAIN, "%d objects of the domain are open: close them first\n", domain->references);
        return -FI_EBUSY;
    }
    if (domain->has_thread) {
        lock(domain);
        domain->is_closing = true;
        unlock(domain);
        pthread_join(domain->thread, NULL);
    }
    pthread_mutex_destroy(&domain->lock);
    explicit_bzero(domain->secret, sizeof domain->secret);
    free(domain);
    return 0;
}

static struct fi_ops domain_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = domain_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static int no_scalable(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context)
{
    (void)domain, (void)info, (void)out, (void)context;
    return -FI_ENOSYS;
}

static int no_poll(struct fid_domain *domain, struct fi_poll_attr *attributes, struct fid_poll **out)
{
    (void)domain, (void)attributes, (void)out;
    return -FI_ENOSYS;
}

static int no_shared_send(struct fid_domain *domain, struct fi_tx_attr *attributes, struct fid_stx **out,
                          void *context)
{
    (void)domain, (void)attributes, (void)out, (void)context;
    return -FI_ENOSYS;
}

static int no_shared_receive(struct fid_domain *domain, struct fi_rx_attr *attributes, struct fid_ep **out,
                             void *context)
{
    (void)domain, (void)attributes, (void)out, (void)context;
    return -FI_ENOSYS;
}

static int no_collective(struct fid_domain *domain, enum fi_collective_op operation,
                         struct fi_collective_attr *attributes, uint64_t flags)
{
    (void)domain, (void)operation, (void)attributes, (void)flags;
    return -FI_ENOSYS;
}

static struct fi_ops_domain domain_ops = {
    .size = sizeof(struct fi_ops_domain),
    .av_open = vector_open,
    .cq_open = queue_open,
    .endpoint = endpoint_open,
    .scalable_ep = no_scalable,
    .cntr_open = counter_open,
    .poll_open = no_poll,
    .stx_ctx = no_shared_send,
    .srx_ctx = no_shared_receive,
    .query_atomic = atomic_query,
    .query_collective = no_collective,
};

int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
    (void)fabric;
    struct domain *domain = calloc(1, sizeof *domain);
    if (domain == NULL)
        return -FI_ENOMEM;
    if (secret_read(domain->secret) != 0) {
        free(domain);
        return -FI_ENODATA;
    }
    pthread_mutex_init(&domain->lock, NULL);
    list_init(&domain->endpoints);
    list_init(&domain->regions);
    domain->fid.fid = (struct fid){.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &domain_fid_ops};
    domain->fid.ops = &domain_ops;
    domain->fid.mr = &region_ops;
    bool is_automatic = info->domain_attr != NULL && info->domain_attr->data_progress == FI_PROGRESS_AUTO;
    if (is_automatic && pthread_create(&domain->thread, NULL, make_progress, domain) != 0) {
        free(domain);
        return -FI_ENOMEM;
    }
    domain->has_thread = is_automatic;
    *out = &domain->fid;
    return 0;
}
