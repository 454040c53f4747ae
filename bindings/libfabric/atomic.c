/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Atomic operations. Wind executes those on one aligned word of 64 bits that it has, without the
 * target's program. The target's progress executes the others. Both change the memory by atomic
 * instructions of the processor, so they may meet on one word.
 */
#include <stdlib.h>
#include <string.h>

#include "compute.h"
#include "wire.h"

/* The former values are not returned, are returned, or are also compared. */
enum class { CLASS_WRITE, CLASS_FETCH, CLASS_COMPARE };

/* Arguments of an atomic operation. */
struct update {
    enum class class;
    const struct fi_ioc *operands;
    size_t operand_count;
    const struct fi_ioc *compares;
    size_t compare_count;
    const struct fi_ioc *results;
    size_t result_count;
    fi_addr_t target;
    uint64_t offset;
    uint64_t key;
    enum fi_datatype datatype;
    enum fi_op operation;
    bool has_completion;
    void *context;
};

static bool is_supported(enum class class, enum fi_datatype datatype, enum fi_op operation)
{
    bool is_bitwise =
        operation == FI_BOR || operation == FI_BAND || operation == FI_BXOR || operation == FI_MSWAP;
    if (datatype_bytes(datatype) == 0 || (is_bitwise && is_floating(datatype)))
        return false;
    switch (class) {
    case CLASS_WRITE:
        return operation <= FI_BXOR || operation == FI_ATOMIC_WRITE;
    case CLASS_FETCH:
        return operation <= FI_ATOMIC_WRITE;
    default:
        return operation >= FI_CSWAP && operation <= FI_MSWAP;
    }
}

int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op operation,
                 struct fi_atomic_attr *attributes, uint64_t flags)
{
    enum class class = flags & FI_COMPARE_ATOMIC ? CLASS_COMPARE
                       : flags & FI_FETCH_ATOMIC ? CLASS_FETCH
                                                 : CLASS_WRITE;
    (void)domain;
    if (flags & ~(FI_COMPARE_ATOMIC | FI_FETCH_ATOMIC) || flags == (FI_COMPARE_ATOMIC | FI_FETCH_ATOMIC))
        return -FI_EBADFLAGS;
    if (!is_supported(class, datatype, operation))
        return -FI_EOPNOTSUPP;
    attributes->size = datatype_bytes(datatype);
    attributes->count = ATOMIC_BYTES_MAX / attributes->size;
    return 0;
}

static size_t values_of(const struct fi_ioc *buffers, size_t count)
{
    size_t sum = 0;
    for (size_t at = 0; at < count; at++)
        sum += buffers[at].count;
    return sum;
}

static void gather(const struct fi_ioc *buffers, size_t count, size_t unit, uint8_t *out)
{
    for (size_t at = 0; at < count; at++) {
        memcpy(out, buffers[at].addr, buffers[at].count * unit);
        out += buffers[at].count * unit;
    }
}

/* Returns the operation of Wind for a word, or -1. */
static int wind_operation(enum fi_op operation)
{
    switch (operation) {
    case FI_SUM:
    case FI_ATOMIC_READ:
        return KUMI_WIND_FETCH_ADD;
    case FI_ATOMIC_WRITE:
        return KUMI_WIND_SWAP;
    case FI_CSWAP:
        return KUMI_WIND_COMPARE_SWAP;
    case FI_MSWAP:
        return KUMI_WIND_MASKED_STORE;
    default:
        return -1;
    }
}

static uint64_t access_of(enum class class, enum fi_op operation)
{
    return (operation == FI_ATOMIC_READ ? 0 : FI_REMOTE_WRITE) | (class == CLASS_WRITE ? 0 : FI_REMOTE_READ);
}

/* Starts the operation at Wind. Returns false if Wind does not have it. */
static bool start_word(struct request *request, const struct update *update, size_t count,
                       const uint8_t *operands, const uint8_t *compares)
{
    int operation = wind_operation(update->operation);
    struct kumi_wind_place place = key_place(request->endpoint->domain, update->key, update->offset);
    uint64_t operand = 0, compare = 0;
    if (count != 1 || operation < 0 || place.offset % 8 != 0 ||
        (update->datatype != FI_INT64 && update->datatype != FI_UINT64))
        return false;
    if (update->operation != FI_ATOMIC_READ)
        memcpy(&operand, operands, sizeof operand);
    if (update->class == CLASS_COMPARE)
        memcpy(&compare, compares, sizeof compare);
    bool is_compared = update->class == CLASS_COMPARE;
    request->transfers[0] = kumi_wind_start_atomic(request->peer->number, &place, operation,
                                                   is_compared ? compare : operand, operand, &request->word);
    request->transfer_count = 1;
    request->word_bytes = update->class == CLASS_WRITE ? 0 : sizeof request->word;
    request->kind = REQUEST_TRANSFER;
    return true;
}

/* Sends the operation to the target's provider. */
static int start_message(struct request *request, const struct update *update, size_t count,
                         const uint8_t *operands, size_t operand_bytes)
{
    char error[ERROR_TEXT_BYTES];
    struct head head = head_swap((struct head){
        .kind = MESSAGE_ATOMIC,
        .detail =
            (uint32_t)update->operation | (uint32_t)update->datatype << 8 | (uint32_t)update->class << 16,
        .tag = update->offset,
        .data = update->key,
        .bytes = count,
        .number = request->number,
    });
    struct iovec part = {(void *)operands, operand_bytes};
    int outcome = kumi_wind_try_send(request->endpoint->node, request->peer->number, KUMI_WIND_UNORDERED,
                                     NULL, &head, sizeof head, &part, 1, NULL, error, sizeof error);
    return -error_of(outcome);
}

/* Executes an operation on memory of this domain. Returns 0 or an errno. */
static int execute(struct domain *domain, enum class class, enum fi_datatype datatype, enum fi_op operation,
                   uint64_t key, uint64_t offset, size_t count, const uint8_t *operands, uint8_t *results)
{
    int error;
    size_t bytes = count * datatype_bytes(datatype);
    uint8_t *memory = region_memory(domain, key, offset, bytes, access_of(class, operation), &error);
    if (memory == NULL)
        return error;
    if ((uintptr_t)memory % datatype_bytes(datatype) != 0)
        return FI_EINVAL;
    compute(memory, datatype, operation, count, operation == FI_ATOMIC_READ ? NULL : operands,
            class == CLASS_COMPARE ? operands + bytes : NULL, class == CLASS_WRITE ? NULL : results);
    return 0;
}

void atomic_execute(struct endpoint *endpoint, struct peer *peer, const struct head *head,
                    const void *operands, size_t bytes)
{
    enum fi_op operation = head->detail & 0xff;
    enum fi_datatype datatype = head->detail >> 8 & 0xff;
    enum class class = head->detail >> 16;
    uint8_t results[ATOMIC_BYTES_MAX];
    uint8_t aligned[2 * ATOMIC_BYTES_MAX];
    size_t unit = datatype_bytes(datatype);
    struct head answer = {.kind = MESSAGE_RESULT, .number = head->number, .detail = FI_EINVAL};
    bool is_valid = class <= CLASS_COMPARE && is_supported(class, datatype, operation) && head->bytes > 0 &&
                    head->bytes <= ATOMIC_BYTES_MAX / unit;
    size_t wanted = 0;
    if (is_valid)
        wanted = head->bytes * unit * (operation == FI_ATOMIC_READ ? 0 : class == CLASS_COMPARE ? 2 : 1);
    if (is_valid && bytes == wanted) {
        if (bytes > 0)
            memcpy(aligned, operands, bytes);
        answer.detail = (uint32_t)execute(endpoint->domain, class, datatype, operation, head->data, head->tag,
                                          head->bytes, aligned, results);
    }
    bool has_results = answer.detail == 0 && class != CLASS_WRITE;
    control_send(endpoint, peer, &answer, results, has_results ? head->bytes * unit : 0);
}

void atomic_take_result(struct request *request, const struct head *head, const void *values, size_t bytes)
{
    if (head->detail == 0 && bytes == request->word_bytes)
        buffers_scatter(request->buffers, request->buffer_count, values, bytes);
    int error = head->detail == 0 && bytes != request->word_bytes ? FI_EIO : (int)head->detail;
    request_finish(request, error, error == FI_EACCES ? KUMI_WIND_REFUSED : 0);
}

static ssize_t start(struct endpoint *endpoint, const struct update *update)
{
    struct peer *peer;
    uint8_t operands[2 * ATOMIC_BYTES_MAX];
    size_t unit = datatype_bytes(update->datatype);
    bool has_operands = update->operation != FI_ATOMIC_READ;
    size_t count = has_operands ? values_of(update->operands, update->operand_count)
                                : values_of(update->results, update->result_count);
    if (!endpoint->is_enabled)
        return -FI_EOPBADSTATE;
    if (!is_supported(update->class, update->datatype, update->operation))
        return -FI_EOPNOTSUPP;
    if (count == 0 || count > ATOMIC_BYTES_MAX / unit || update->result_count > BUFFERS_MAX ||
        (update->class != CLASS_WRITE && values_of(update->results, update->result_count) != count) ||
        (update->class == CLASS_COMPARE && values_of(update->compares, update->compare_count) != count)) {
        WARN(FI_LOG_EP_DATA, "an atomic operation on %zu values: expected 1 to %zu, in equal numbers\n",
             count, ATOMIC_BYTES_MAX / unit);
        return -FI_EINVAL;
    }
    int outcome = peer_find(endpoint, update->target, &peer);
    if (outcome != 0)
        return outcome;
    size_t bytes = count * unit, operand_bytes = has_operands ? bytes : 0;
    if (has_operands)
        gather(update->operands, update->operand_count, unit, operands);
    if (update->class == CLASS_COMPARE) {
        gather(update->compares, update->compare_count, unit, operands + bytes);
        operand_bytes = 2 * bytes;
    }
    struct request *request = request_new(endpoint, REQUEST_ATOMIC, peer);
    if (request == NULL)
        return -FI_EAGAIN;
    request->event = update->class == CLASS_WRITE ? EVENT_WRITE : EVENT_READ;
    request->has_completion = update->has_completion;
    request->bytes = bytes;
    request->completion = (struct completion){
        .context = update->context,
        .flags = FI_ATOMIC | (update->class == CLASS_WRITE ? FI_WRITE : FI_READ),
        .bytes = bytes,
        .source = FI_ADDR_NOTAVAIL,
    };
    for (size_t at = 0; at < update->result_count; at++)
        request->buffers[at] = (struct iovec){update->results[at].addr, update->results[at].count * unit};
    request->buffer_count = update->result_count;
    request->word_bytes = update->class == CLASS_WRITE ? 0 : bytes;
    if (peer->is_self) {
        uint8_t results[ATOMIC_BYTES_MAX];
        int error = execute(endpoint->domain, update->class, update->datatype, update->operation, update->key,
                            update->offset, count, operands, results);
        if (error == 0)
            buffers_scatter(request->buffers, request->buffer_count, results, request->word_bytes);
        request_finish(request, error, error == FI_EACCES ? KUMI_WIND_REFUSED : 0);
        return 0;
    }
    if (!key_allows(update->key, access_of(update->class, update->operation))) {
        request_finish(request, FI_EACCES, KUMI_WIND_REFUSED);
        return 0;
    }
    if (start_word(request, update, count, operands, operands + bytes)) {
        transfer_advance(request);
        return 0;
    }
    outcome = start_message(request, update, count, operands, operand_bytes);
    if (outcome != 0)
        request_free(request);
    if (outcome == -FI_ECONNABORTED)
        peer_lose(endpoint, peer);
    return outcome;
}

static ssize_t locked_start(struct fid_ep *fid, const struct update *update)
{
    struct endpoint *endpoint = endpoint_of(fid);
    lock(endpoint->domain);
    ssize_t outcome = start(endpoint, update);
    if (outcome == -FI_EAGAIN)
        progress(endpoint->domain);
    unlock(endpoint->domain);
    return outcome;
}

static bool completes(struct fid_ep *fid)
{
    const struct endpoint *endpoint = endpoint_of(fid);
    return !endpoint->is_send_selective || endpoint->send_flags & FI_COMPLETION;
}

static ssize_t atomic_writev(struct fid_ep *fid, const struct fi_ioc *operands, void **descriptors,
                             size_t count, fi_addr_t target, uint64_t offset, uint64_t key,
                             enum fi_datatype datatype, enum fi_op operation, void *context)
{
    struct update update = {.class = CLASS_WRITE,
                            .operands = operands,
                            .operand_count = count,
                            .target = target,
                            .offset = offset,
                            .key = key,
                            .datatype = datatype,
                            .operation = operation,
                            .has_completion = completes(fid),
                            .context = context};
    (void)descriptors;
    return locked_start(fid, &update);
}

static ssize_t atomic_write(struct fid_ep *fid, const void *operand, size_t count, void *descriptor,
                            fi_addr_t target, uint64_t offset, uint64_t key, enum fi_datatype datatype,
                            enum fi_op operation, void *context)
{
    struct fi_ioc part = {(void *)operand, count};
    (void)descriptor;
    return atomic_writev(fid, &part, NULL, 1, target, offset, key, datatype, operation, context);
}

static ssize_t atomic_inject(struct fid_ep *fid, const void *operand, size_t count, fi_addr_t target,
                             uint64_t offset, uint64_t key, enum fi_datatype datatype, enum fi_op operation)
{
    struct fi_ioc part = {(void *)operand, count};
    struct update update = {.class = CLASS_WRITE,
                            .operands = &part,
                            .operand_count = 1,
                            .target = target,
                            .offset = offset,
                            .key = key,
                            .datatype = datatype,
                            .operation = operation};
    return locked_start(fid, &update);
}

/* Starts the operation of a message, with buffers for results and comparisons. */
static ssize_t start_described(struct fid_ep *fid, enum class class, const struct fi_msg_atomic *message,
                               const struct fi_ioc *compares, size_t compare_count,
                               const struct fi_ioc *results, size_t result_count, uint64_t flags)
{
    if (message->rma_iov_count != 1)
        return -FI_EINVAL;
    struct update update = {.class = class,
                            .operands = message->msg_iov,
                            .operand_count = message->iov_count,
                            .compares = compares,
                            .compare_count = compare_count,
                            .results = results,
                            .result_count = result_count,
                            .target = message->addr,
                            .offset = message->rma_iov[0].addr,
                            .key = message->rma_iov[0].key,
                            .datatype = message->datatype,
                            .operation = message->op,
                            .has_completion = !endpoint_of(fid)->is_send_selective || flags & FI_COMPLETION,
                            .context = message->context};
    return locked_start(fid, &update);
}

static ssize_t atomic_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *message, uint64_t flags)
{
    return start_described(fid, CLASS_WRITE, message, NULL, 0, NULL, 0, flags);
}

static ssize_t atomic_readwritev(struct fid_ep *fid, const struct fi_ioc *operands, void **descriptors,
                                 size_t count, struct fi_ioc *results, void **result_descriptors,
                                 size_t result_count, fi_addr_t target, uint64_t offset, uint64_t key,
                                 enum fi_datatype datatype, enum fi_op operation, void *context)
{
    struct update update = {.class = CLASS_FETCH,
                            .operands = operands,
                            .operand_count = count,
                            .results = results,
                            .result_count = result_count,
                            .target = target,
                            .offset = offset,
                            .key = key,
                            .datatype = datatype,
                            .operation = operation,
                            .has_completion = completes(fid),
                            .context = context};
    (void)descriptors, (void)result_descriptors;
    return locked_start(fid, &update);
}

static ssize_t atomic_readwrite(struct fid_ep *fid, const void *operand, size_t count, void *descriptor,
                                void *result, void *result_descriptor, fi_addr_t target, uint64_t offset,
                                uint64_t key, enum fi_datatype datatype, enum fi_op operation, void *context)
{
    struct fi_ioc part = {(void *)operand, count}, former = {result, count};
    (void)descriptor, (void)result_descriptor;
    return atomic_readwritev(fid, &part, NULL, 1, &former, NULL, 1, target, offset, key, datatype, operation,
                             context);
}

static ssize_t atomic_readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *message,
                                   struct fi_ioc *results, void **descriptors, size_t count, uint64_t flags)
{
    (void)descriptors;
    return start_described(fid, CLASS_FETCH, message, NULL, 0, results, count, flags);
}

static ssize_t atomic_compwritev(struct fid_ep *fid, const struct fi_ioc *operands, void **descriptors,
                                 size_t count, const struct fi_ioc *compares, void **compare_descriptors,
                                 size_t compare_count, struct fi_ioc *results, void **result_descriptors,
                                 size_t result_count, fi_addr_t target, uint64_t offset, uint64_t key,
                                 enum fi_datatype datatype, enum fi_op operation, void *context)
{
    struct update update = {.class = CLASS_COMPARE,
                            .operands = operands,
                            .operand_count = count,
                            .compares = compares,
                            .compare_count = compare_count,
                            .results = results,
                            .result_count = result_count,
                            .target = target,
                            .offset = offset,
                            .key = key,
                            .datatype = datatype,
                            .operation = operation,
                            .has_completion = completes(fid),
                            .context = context};
    (void)descriptors, (void)compare_descriptors, (void)result_descriptors;
    return locked_start(fid, &update);
}

static ssize_t atomic_compwrite(struct fid_ep *fid, const void *operand, size_t count, void *descriptor,
                                const void *compare, void *compare_descriptor, void *result,
                                void *result_descriptor, fi_addr_t target, uint64_t offset, uint64_t key,
                                enum fi_datatype datatype, enum fi_op operation, void *context)
{
    struct fi_ioc part = {(void *)operand, count}, former = {result, count};
    struct fi_ioc expected = {(void *)compare, count};
    (void)descriptor, (void)compare_descriptor, (void)result_descriptor;
    return atomic_compwritev(fid, &part, NULL, 1, &expected, NULL, 1, &former, NULL, 1, target, offset, key,
                             datatype, operation, context);
}

static ssize_t atomic_compwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *message,
                                   const struct fi_ioc *compares, void **compare_descriptors,
                                   size_t compare_count, struct fi_ioc *results, void **result_descriptors,
                                   size_t result_count, uint64_t flags)
{
    (void)compare_descriptors, (void)result_descriptors;
    return start_described(fid, CLASS_COMPARE, message, compares, compare_count, results, result_count,
                           flags);
}

static int validate(enum class class, enum fi_datatype datatype, enum fi_op operation, size_t *count)
{
    if (!is_supported(class, datatype, operation))
        return -FI_EOPNOTSUPP;
    *count = ATOMIC_BYTES_MAX / datatype_bytes(datatype);
    return 0;
}

static int atomic_writevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op operation,
                             size_t *count)
{
    (void)fid;
    return validate(CLASS_WRITE, datatype, operation, count);
}

static int atomic_readwritevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op operation,
                                 size_t *count)
{
    (void)fid;
    return validate(CLASS_FETCH, datatype, operation, count);
}

static int atomic_compwritevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op operation,
                                 size_t *count)
{
    (void)fid;
    return validate(CLASS_COMPARE, datatype, operation, count);
}

struct fi_ops_atomic atomic_ops = {
    .size = sizeof(struct fi_ops_atomic),
    .write = atomic_write,
    .writev = atomic_writev,
    .writemsg = atomic_writemsg,
    .inject = atomic_inject,
    .readwrite = atomic_readwrite,
    .readwritev = atomic_readwritev,
    .readwritemsg = atomic_readwritemsg,
    .compwrite = atomic_compwrite,
    .compwritev = atomic_compwritev,
    .compwritemsg = atomic_compwritemsg,
    .writevalid = atomic_writevalid,
    .readwritevalid = atomic_readwritevalid,
    .compwritevalid = atomic_compwritevalid,
};
