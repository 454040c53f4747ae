/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The libfabric provider: memory regions, reads, writes and atomic operations. */
#include <string.h>

#include "expect.h"
#include "libfabric_sides.h"

void memory_claims(void)
{
    struct fid_mr *region, *reader;
    struct fi_cq_tagged_entry entry;
    fill(large, LARGE_BYTES, 2);
    memset(copy, 0, LARGE_BYTES);
    /* An odd address, so that the Wind region begins before it. */
    uint8_t *memory = copy + 3;
    size_t bytes = LARGE_BYTES - 3;
    must("fi_mr_reg",
         fi_mr_reg(b.domain, memory, bytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &region, NULL));
    must("fi_mr_reg", fi_mr_reg(b.domain, memory, 100, FI_REMOTE_READ, 0, 0, 0, &reader, NULL));
    uint64_t key = fi_mr_key(region);
    must("fi_write", fi_write(a.endpoint, large, bytes, NULL, a.other, 0, key, &region));
    expect_true("a write of 16 MB is in the peer's memory",
                await(&a, &entry, NULL, NULL) == 0 && entry.op_context == &region &&
                    entry.flags == (FI_RMA | FI_WRITE) && memcmp(memory, large, bytes) == 0);
    memset(large, 0, LARGE_BYTES);
    must("fi_read", fi_read(a.endpoint, large + 1, 1000001, NULL, a.other, 7, key, NULL));
    expect_true("a read of odd addresses returns it",
                await(&a, &entry, NULL, NULL) == 0 && entry.flags == (FI_RMA | FI_READ) && large[0] == 0 &&
                    memcmp(large + 1, memory + 7, 1000001) == 0 && large[1000002] == 0);
    must("fi_writedata", fi_writedata(a.endpoint, "data", 4, NULL, 99, a.other, 50, key, NULL));
    expect_true("a write with data completes at both ends",
                await(&a, NULL, NULL, NULL) == 0 && await(&b, &entry, NULL, NULL) == 0 && entry.data == 99 &&
                    entry.flags & FI_REMOTE_CQ_DATA && memcmp(memory + 50, "data", 4) == 0);
    must("fi_inject_write", fi_inject_write(a.endpoint, "inject", 6, a.other, 60, key));
    int64_t end_ms = now_ms() + LIMIT_MS;
    while (memcmp(memory + 60, "inject", 6) != 0 && now_ms() < end_ms)
        is_silent(&a);
    expect_true("an injected write arrives, without a completion",
                memcmp(memory + 60, "inject", 6) == 0 && is_silent(&a));
    must("fi_write", fi_write(a.endpoint, "x", 1, NULL, a.other, bytes, key, NULL));
    expect_true("a write beyond the region is refused", await(&a, NULL, NULL, NULL) == FI_EACCES);
    must("fi_read", fi_read(a.endpoint, large, 1, NULL, a.other, UINT64_MAX, key, NULL));
    expect_true("a read at an offset that overflows is refused", await(&a, NULL, NULL, NULL) == FI_EACCES);
    must("fi_write", fi_write(a.endpoint, "x", 1, NULL, a.other, 0, key ^ 1, NULL));
    expect_true("a write with a wrong key is refused", await(&a, NULL, NULL, NULL) == FI_EACCES);
    uint64_t read_key = fi_mr_key(reader);
    must("fi_write", fi_write(a.endpoint, "x", 1, NULL, a.other, 0, read_key, NULL));
    expect_true("a write to a region that is only read is refused", await(&a, NULL, NULL, NULL) == FI_EACCES);
    must("fi_write", fi_write(a.endpoint, "x", 1, NULL, a.other, 0, read_key | 3 << 27, NULL));
    expect_true("so is one with a key that claims the right", await(&a, NULL, NULL, NULL) == FI_EACCES);
    must("fi_read", fi_read(b.endpoint, large, 100, NULL, b.self, 0, read_key, NULL));
    expect_true("a read of the endpoint's own domain works",
                await(&b, NULL, NULL, NULL) == 0 && memcmp(large, memory, 100) == 0);
    /* A second endpoint of the domain, which is opened after the registration. */
    struct side second = b;
    must("fi_endpoint", fi_endpoint(b.domain, b.info, &second.endpoint, NULL));
    must("fi_ep_bind", fi_ep_bind(second.endpoint, &b.vector->fid, 0));
    must("fi_ep_bind", fi_ep_bind(second.endpoint, &b.queue->fid, FI_TRANSMIT | FI_RECV));
    must("fi_enable", fi_enable(second.endpoint));
    fi_addr_t address = insert(&a, &second);
    must("fi_write", fi_write(a.endpoint, "second", 6, NULL, address, 70, key, NULL));
    expect_true("a region is reachable at each endpoint of its domain",
                await(&a, NULL, NULL, NULL) == 0 && memcmp(memory + 70, "second", 6) == 0);
    must("fi_close", fi_close(&second.endpoint->fid));
    must("fi_av_remove", fi_av_remove(a.vector, &address, 1, 0));
    expect_true("an address that was removed is refused",
                fi_write(a.endpoint, "x", 1, NULL, address, 0, key, NULL) == -FI_EINVAL);
    must("fi_close", fi_close(&region->fid));
    must("fi_write", fi_write(a.endpoint, "x", 1, NULL, a.other, 0, key, NULL));
    expect_true("a write to a region that was closed is refused", await(&a, NULL, NULL, NULL) == FI_EACCES);
    must("fi_close", fi_close(&reader->fid));
}

/* Executes a fetching operation at b. Returns its outcome, and stores the value of before. */
static int fetch(uint64_t offset, uint64_t key, enum fi_datatype type, enum fi_op operation,
                 const void *operand, void *before)
{
    ssize_t started = fi_fetch_atomic(a.endpoint, operand, 1, NULL, before, NULL, a.other, offset, key, type,
                                      operation, NULL);
    return started == 0 ? await(&a, NULL, NULL, NULL) : (int)-started;
}

void atomic_claims(void)
{
    static uint64_t words[16] __attribute__((aligned(8)));
    struct fid_mr *region, *odd;
    uint64_t operand = 5, before = 0, compare = 45;
    struct fi_atomic_attr attributes;
    must("fi_mr_reg",
         fi_mr_reg(b.domain, words, sizeof words, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &region, NULL));
    must("fi_mr_reg", fi_mr_reg(b.domain, (uint8_t *)words + 4, sizeof words - 4,
                                FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &odd, NULL));
    uint64_t key = fi_mr_key(region);
    words[1] = 40;
    expect_true("a sum of 64 bits returns the word of before",
                fetch(8, key, FI_UINT64, FI_SUM, &operand, &before) == 0 && before == 40 && words[1] == 45);
    operand = 9;
    must("fi_compare_atomic", fi_compare_atomic(a.endpoint, &operand, 1, NULL, &compare, NULL, &before, NULL,
                                                a.other, 8, key, FI_UINT64, FI_CSWAP, NULL));
    expect_true("a compare-and-swap stores",
                await(&a, NULL, NULL, NULL) == 0 && before == 45 && words[1] == 9);
    must("fi_compare_atomic", fi_compare_atomic(a.endpoint, &operand, 1, NULL, &compare, NULL, &before, NULL,
                                                a.other, 8, key, FI_UINT64, FI_CSWAP, NULL));
    expect_true("or returns the other word",
                await(&a, NULL, NULL, NULL) == 0 && before == 9 && words[1] == 9);
    compare = 0xff00;
    operand = 0xabcd;
    must("fi_compare_atomic", fi_compare_atomic(a.endpoint, &operand, 1, NULL, &compare, NULL, &before, NULL,
                                                a.other, 8, key, FI_UINT64, FI_MSWAP, NULL));
    expect_true("a masked swap leaves the other bits",
                await(&a, NULL, NULL, NULL) == 0 && before == 9 && words[1] == 0xab09);
    operand = 7;
    expect_true("a swap stores", fetch(8, key, FI_INT64, FI_ATOMIC_WRITE, &operand, &before) == 0 &&
                                     before == 0xab09 && words[1] == 7);
    expect_true("a read leaves the word",
                fetch(8, key, FI_UINT64, FI_ATOMIC_READ, NULL, &before) == 0 && before == 7 && words[1] == 7);
    /* Wind does not have the following ones: the target's progress executes them. */
    operand = 12;
    expect_true("a bitwise or",
                fetch(8, key, FI_UINT64, FI_BOR, &operand, &before) == 0 && before == 7 && words[1] == 15);
    int32_t small = -3, small_before = 0;
    words[2] = 10;
    expect_true("a minimum of 32 bits leaves the next value",
                fetch(20, key, FI_INT32, FI_MIN, &small, &small_before) == 0 && small_before == 0 &&
                    ((int32_t *)words)[5] == -3 && ((int32_t *)words)[4] == 10);
    double real = 2.5, real_before = 0;
    memcpy(&words[3], &real, sizeof real);
    expect_true("a product of doubles", fetch(24, key, FI_DOUBLE, FI_PROD, &real, &real_before) == 0 &&
                                            real_before == 2.5 &&
                                            memcmp(&words[3], &(double){6.25}, sizeof real) == 0);
    uint64_t many[4] = {1, 2, 3, 4}, former[4];
    words[4] = words[5] = words[6] = words[7] = 100;
    must("fi_fetch_atomic",
         fi_fetch_atomic(a.endpoint, many, 4, NULL, former, NULL, a.other, 32, key, FI_UINT64, FI_SUM, NULL));
    expect_true("a sum of four words",
                await(&a, NULL, NULL, NULL) == 0 && former[3] == 100 && words[4] == 101 && words[7] == 104);
    must("fi_atomic",
         fi_atomic(a.endpoint, many, 1, NULL, a.other, 4, fi_mr_key(odd), FI_UINT64, FI_SUM, NULL));
    expect_true("a region that begins within a word counts from its own start",
                await(&a, NULL, NULL, NULL) == 0 && words[1] == 16);
    expect_true("a value that is not aligned is refused",
                fetch(4, key, FI_UINT64, FI_SUM, &operand, &before) == FI_EINVAL);
    expect_true("a value beyond the region is refused",
                fetch(sizeof words, key, FI_UINT64, FI_SUM, &operand, &before) == FI_EACCES &&
                    fetch(sizeof words, key, FI_UINT32, FI_SUM, &operand, &before) == FI_EACCES);
    expect_true("a query tells what exists",
                fi_query_atomic(b.domain, FI_INT32, FI_SUM, &attributes, FI_FETCH_ATOMIC) == 0 &&
                    attributes.size == 4 && attributes.count >= 1 &&
                    fi_query_atomic(b.domain, FI_DOUBLE, FI_BOR, &attributes, 0) == -FI_EOPNOTSUPP &&
                    fi_query_atomic(b.domain, FI_LONG_DOUBLE, FI_SUM, &attributes, 0) == -FI_EOPNOTSUPP &&
                    fi_query_atomic(b.domain, FI_UINT64, FI_CSWAP, &attributes, 0) == -FI_EOPNOTSUPP);
    must("fi_close", fi_close(&odd->fid));
    must("fi_close", fi_close(&region->fid));
}
