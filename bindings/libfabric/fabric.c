/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The provider's entry, its parameters, fabrics and event queues. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "provider.h"

/* Release 0.1, as FI_VERSION has it. */
struct fi_provider provider = {
    .version = FI_VERSION(0, 1),
    .fi_version = FI_VERSION(1, 17),
    .name = "kumi",
    .getinfo = provider_getinfo,
    .fabric = fabric_open,
};

static const char default_key[] = "/etc/kumi/cluster.key";

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
    fi_param_define(&provider, "key", FI_PARAM_STRING,
                    "Cluster key file, the same on all hosts (default: %s). `kumi link keygen` makes one.",
                    default_key);
    fi_param_define(&provider, "iface", FI_PARAM_STRING,
                    "Name of the interface to use (default: all that are up; loopback last).");
    return &provider;
}

int secret_read(uint8_t secret[KUMI_WIND_SECRET_BYTES])
{
    char error[ERROR_TEXT_BYTES];
    char *path = NULL;
    if (fi_param_get_str(&provider, "key", &path) != 0 || path == NULL)
        path = (char *)default_key;
    int outcome = kumi_wind_secret_read(path, secret, error, sizeof error);
    if (outcome == KUMI_WIND_DONE) {
        struct stat file;
        if (stat(path, &file) == 0 && file.st_mode & 077)
            FI_WARN_ONCE(&provider, FI_LOG_CORE, "%s is accessible to others (mode %o); run `chmod 600 %s`\n",
                         path, file.st_mode & 0777, path);
        return 0;
    }
    /* libfabric asks several times for one call of the program. */
    FI_WARN_ONCE(&provider, FI_LOG_CORE, "%s; FI_KUMI_KEY names another file\n", error);
    return -FI_ENODATA;
}

int no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    (void)fid, (void)other, (void)flags;
    return -FI_ENOSYS;
}

int no_control(struct fid *fid, int command, void *argument)
{
    (void)fid, (void)command, (void)argument;
    return -FI_ENOSYS;
}

int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
    (void)fid, (void)name, (void)flags, (void)ops, (void)context;
    return -FI_ENOSYS;
}

/*
 * Event queues. The provider has no events: address vectors are filled at once, and endpoints are
 * not connected.
 */
static int events_close(struct fid *fid)
{
    free(LIST_MEMBER(fid, struct fid_eq, fid));
    return 0;
}

static struct fi_ops events_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = events_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static ssize_t events_read(struct fid_eq *queue, uint32_t *event, void *buffer, size_t bytes, uint64_t flags)
{
    (void)queue, (void)event, (void)buffer, (void)bytes, (void)flags;
    return -FI_EAGAIN;
}

static ssize_t events_readerr(struct fid_eq *queue, struct fi_eq_err_entry *buffer, uint64_t flags)
{
    (void)queue, (void)buffer, (void)flags;
    return -FI_EAGAIN;
}

static ssize_t events_write(struct fid_eq *queue, uint32_t event, const void *buffer, size_t bytes,
                            uint64_t flags)
{
    (void)queue, (void)event, (void)buffer, (void)bytes, (void)flags;
    return -FI_ENOSYS;
}

static ssize_t events_sread(struct fid_eq *queue, uint32_t *event, void *buffer, size_t bytes, int timeout,
                            uint64_t flags)
{
    (void)queue, (void)event, (void)buffer, (void)bytes, (void)timeout, (void)flags;
    return -FI_ENOSYS;
}

static const char *events_strerror(struct fid_eq *queue, int number, const void *data, char *buffer,
                                   size_t bytes)
{
    (void)queue, (void)data;
    if (buffer != NULL && bytes > 0)
        snprintf(buffer, bytes, "%s", fi_strerror(number));
    return buffer != NULL && bytes > 0 ? buffer : fi_strerror(number);
}

static struct fi_ops_eq events_ops = {
    .size = sizeof(struct fi_ops_eq),
    .read = events_read,
    .readerr = events_readerr,
    .write = events_write,
    .sread = events_sread,
    .strerror = events_strerror,
};

static int events_open(struct fid_fabric *fabric, struct fi_eq_attr *attributes, struct fid_eq **out,
                       void *context)
{
    (void)fabric;
    if (attributes != NULL && attributes->wait_obj != FI_WAIT_NONE && attributes->wait_obj != FI_WAIT_UNSPEC)
        return -FI_ENOSYS;
    struct fid_eq *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return -FI_ENOMEM;
    queue->fid = (struct fid){.fclass = FI_CLASS_EQ, .context = context, .ops = &events_fid_ops};
    queue->ops = &events_ops;
    *out = queue;
    return 0;
}

static int fabric_close(struct fid *fid)
{
    free(LIST_MEMBER(fid, struct fabric, fid.fid));
    return 0;
}

static struct fi_ops fabric_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = fabric_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static int no_passive(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **out, void *context)
{
    (void)fabric, (void)info, (void)out, (void)context;
    return -FI_ENOSYS;
}

static int no_wait(struct fid_fabric *fabric, struct fi_wait_attr *attributes, struct fid_wait **out)
{
    (void)fabric, (void)attributes, (void)out;
    return -FI_ENOSYS;
}

static int no_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    (void)fabric, (void)fids, (void)count;
    return -FI_ENOSYS;
}

static struct fi_ops_fabric fabric_ops = {
    .size = sizeof(struct fi_ops_fabric),
    .domain = domain_open,
    .passive_ep = no_passive,
    .eq_open = events_open,
    .wait_open = no_wait,
    .trywait = no_trywait,
};

int fabric_open(struct fi_fabric_attr *attributes, struct fid_fabric **out, void *context)
{
    struct fabric *fabric = calloc(1, sizeof *fabric);
    if (fabric == NULL)
        return -FI_ENOMEM;
    fabric->fid.fid = (struct fid){.fclass = FI_CLASS_FABRIC, .context = context, .ops = &fabric_fid_ops};
    fabric->fid.ops = &fabric_ops;
    fabric->fid.api_version = attributes == NULL ? FI_VERSION(1, 17) : attributes->api_version;
    *out = &fabric->fid;
    return 0;
}
