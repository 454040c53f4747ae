/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counters of completed operations. */
#include <stdlib.h>

#include "provider.h"

static struct counter *counter_of(struct fid_cntr *fid)
{
    return LIST_MEMBER(fid, struct counter, fid);
}

void counter_add(struct counter *counter, bool is_error)
{
    if (is_error)
        counter->errors++;
    else
        counter->value++;
    if (counter->waiters > 0)
        domain_wake(counter->domain);
}

static uint64_t counter_read(struct fid_cntr *fid)
{
    struct counter *counter = counter_of(fid);
    lock(counter->domain);
    progress(counter->domain);
    uint64_t value = counter->value;
    unlock(counter->domain);
    return value;
}

static uint64_t counter_readerr(struct fid_cntr *fid)
{
    struct counter *counter = counter_of(fid);
    lock(counter->domain);
    progress(counter->domain);
    uint64_t errors = counter->errors;
    unlock(counter->domain);
    return errors;
}

/* Stores `value`, or adds it, to one of the counter's values. */
static int change(struct counter *counter, uint64_t *place, uint64_t value, bool is_added)
{
    lock(counter->domain);
    *place = is_added ? *place + value : value;
    if (counter->waiters > 0)
        domain_wake(counter->domain);
    unlock(counter->domain);
    return 0;
}

static int counter_set(struct fid_cntr *fid, uint64_t value)
{
    return change(counter_of(fid), &counter_of(fid)->value, value, false);
}

static int counter_seterr(struct fid_cntr *fid, uint64_t value)
{
    return change(counter_of(fid), &counter_of(fid)->errors, value, false);
}

static int counter_increase(struct fid_cntr *fid, uint64_t value)
{
    return change(counter_of(fid), &counter_of(fid)->value, value, true);
}

static int counter_increase_errors(struct fid_cntr *fid, uint64_t value)
{
    return change(counter_of(fid), &counter_of(fid)->errors, value, true);
}

static int counter_wait(struct fid_cntr *fid, uint64_t threshold, int limit_ms)
{
    struct counter *counter = counter_of(fid);
    int64_t end_ms = now_ms() + limit_ms;
    uint64_t seen = 0;
    int outcome = 0;
    lock(counter->domain);
    uint64_t errors = counter->errors;
    counter->waiters++;
    for (;;) {
        progress(counter->domain);
        if (counter->value >= threshold)
            break;
        int64_t left_ms = limit_ms < 0 ? -1 : end_ms - now_ms();
        if (counter->errors != errors)
            outcome = -FI_EAVAIL;
        else if (limit_ms >= 0 && left_ms <= 0)
            outcome = -FI_ETIMEDOUT;
        if (outcome != 0)
            break;
        domain_wait(counter->domain, &seen, left_ms);
    }
    counter->waiters--;
    unlock(counter->domain);
    return outcome;
}

static struct fi_ops_cntr counter_ops = {
    .size = sizeof(struct fi_ops_cntr),
    .read = counter_read,
    .readerr = counter_readerr,
    .add = counter_increase,
    .set = counter_set,
    .wait = counter_wait,
    .adderr = counter_increase_errors,
    .seterr = counter_seterr,
};

static int counter_close(struct fid *fid)
{
    struct counter *counter = LIST_MEMBER(fid, struct counter, fid.fid);
    lock(counter->domain);
    bool is_used = counter->references > 0;
    if (!is_used)
        counter->domain->references--;
    unlock(counter->domain);
    if (is_used)
        return -FI_EBUSY;
    free(counter);
    return 0;
}

static struct fi_ops counter_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = counter_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

int counter_open(struct fid_domain *fid, struct fi_cntr_attr *attributes, struct fid_cntr **out,
                 void *context)
{
    struct domain *domain = domain_of(fid);
    if (attributes != NULL && attributes->wait_obj != FI_WAIT_NONE &&
        attributes->wait_obj != FI_WAIT_UNSPEC && attributes->wait_obj != FI_WAIT_YIELD) {
        WARN(FI_LOG_CNTR, "wait object %d: expected FI_WAIT_NONE, FI_WAIT_UNSPEC or FI_WAIT_YIELD\n",
             attributes->wait_obj);
        return -FI_ENOSYS;
    }
    struct counter *counter = calloc(1, sizeof *counter);
    if (counter == NULL)
        return -FI_ENOMEM;
    counter->domain = domain;
    counter->fid.fid = (struct fid){.fclass = FI_CLASS_CNTR, .context = context, .ops = &counter_fid_ops};
    counter->fid.ops = &counter_ops;
    lock(domain);
    domain->references++;
    unlock(domain);
    *out = &counter->fid;
    return 0;
}
