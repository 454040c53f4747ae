/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The libfabric provider: two endpoints of one process, each with its own domain. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "expect.h"
#include "libfabric_sides.h"

static bool is_refused(struct fi_info *hints)
{
    struct fi_info *found = NULL;
    int outcome = query(hints, NULL, NULL, 0, &found);
    fi_freeinfo(found);
    return outcome == -FI_ENODATA;
}

static void info_claims(void)
{
    struct fi_info *hints, *found = NULL;
    hints = hints_new();
    hints->ep_attr->type = FI_EP_MSG;
    expect_true("connected endpoints are not offered", is_refused(hints));
    hints = hints_new();
    hints->caps |= FI_MULTICAST;
    expect_true("a capability that is missing is not offered", is_refused(hints));
    hints = hints_new();
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    expect_true("automatic progress is offered if it is asked for",
                query(hints, NULL, NULL, 0, &found) == 0 &&
                    found->domain_attr->data_progress == FI_PROGRESS_AUTO);
    fi_freeinfo(found);
    found = NULL;
    hints = hints_new();
    hints->domain_attr->mr_mode = 0;
    expect_true("memory access without the provider's keys is not offered", is_refused(hints));
    hints = hints_new();
    hints->tx_attr->msg_order = FI_ORDER_WAW;
    expect_true("an order of writes is not offered", is_refused(hints));
    hints = hints_new();
    hints->domain_attr->mr_mode = 0;
    hints->caps = 0;
    expect_true("without the provider's keys, messages are offered",
                query(hints, NULL, NULL, 0, &found) == 0 && found->caps & FI_TAGGED &&
                    !(found->caps & (FI_RMA | FI_ATOMIC)));
    fi_freeinfo(found);
    expect_true("a source address is honoured",
                query(hints_new(), "127.0.0.1", "24990", FI_SOURCE, &found) == 0 && found->next == NULL &&
                    ntohs(((struct sockaddr_in *)found->src_addr)->sin_port) == 24990);
    fi_freeinfo(found);
    found = NULL;
    expect_true("a source address of another host is refused",
                query(hints_new(), "198.51.100.1", NULL, FI_SOURCE, &found) == -FI_ENODATA);
    expect_true("a destination determines the source",
                query(hints_new(), "127.0.0.1", "24990", 0, &found) == 0 && found->dest_addr != NULL &&
                    ((struct sockaddr_in *)found->src_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    fi_freeinfo(found);
    hints = hints_new();
    hints->addr_format = FI_SOCKADDR_IN6;
    found = NULL;
    if (query(hints, NULL, NULL, 0, &found) == 0)
        expect_true("IPv6 is offered if it is asked for", found->addr_format == FI_SOCKADDR_IN6);
    fi_freeinfo(found);
}

static void message_claims(void)
{
    char text[64] = "";
    struct fi_cq_tagged_entry entry;
    fi_addr_t source = 0;
    size_t excess = 0;
    must("fi_recv", fi_recv(b.endpoint, text, sizeof text, NULL, FI_ADDR_UNSPEC, text));
    must("fi_send", fi_send(a.endpoint, "hello", 6, NULL, a.other, &source));
    expect_true("a send completes", await(&a, &entry, NULL, NULL) == 0 && entry.op_context == &source &&
                                        entry.flags == (FI_SEND | FI_MSG));
    expect_true("its receive completes with length, buffer and source",
                await(&b, &entry, &source, NULL) == 0 && entry.op_context == text && entry.len == 6 &&
                    entry.buf == text && entry.flags == (FI_RECV | FI_MSG) && source == b.other &&
                    strcmp(text, "hello") == 0);
    must("fi_injectdata", fi_injectdata(a.endpoint, "data", 5, 77, a.other));
    must("fi_recv", fi_recv(b.endpoint, text, sizeof text, NULL, b.other, NULL));
    expect_true("an injected message has its data, and only the receive completes",
                await(&b, &entry, NULL, NULL) == 0 && entry.data == 77 && entry.flags & FI_REMOTE_CQ_DATA &&
                    is_silent(&a));
    must("fi_send", fi_send(a.endpoint, "long text", 10, NULL, a.other, NULL));
    must("fi_recv", fi_recv(b.endpoint, text, 4, NULL, FI_ADDR_UNSPEC, NULL));
    await(&a, NULL, NULL, NULL);
    expect_true("a message that is longer than the buffer is cut, with an error",
                await(&b, &entry, NULL, &excess) == FI_ETRUNC && excess == 6 && entry.len == 4 &&
                    memcmp(text, "long", 4) == 0);
    must("fi_recv", fi_recv(b.endpoint, NULL, 0, NULL, FI_ADDR_UNSPEC, NULL));
    must("fi_send", fi_send(a.endpoint, NULL, 0, NULL, a.other, NULL));
    await(&a, NULL, NULL, NULL);
    expect_true("an empty message arrives", await(&b, &entry, NULL, NULL) == 0 && entry.len == 0);
    must("fi_send", fi_send(a.endpoint, "self", 5, NULL, a.self, NULL));
    must("fi_recv", fi_recv(a.endpoint, text, sizeof text, NULL, a.self, NULL));
    await(&a, NULL, NULL, NULL);
    expect_true("a message to the endpoint itself arrives",
                await(&a, &entry, &source, NULL) == 0 && strcmp(text, "self") == 0 && source == a.self);
    expect_true("more than can be injected is refused",
                fi_inject(a.endpoint, large, a.info->tx_attr->inject_size + 1, a.other) < 0);
    expect_true("an address that is not in the vector is refused",
                fi_send(a.endpoint, "a", 1, NULL, 1000, NULL) == -FI_EINVAL);
}

static void tag_claims(void)
{
    int values[4] = {0};
    struct fi_cq_tagged_entry entry;
    must("fi_trecv", fi_trecv(b.endpoint, &values[0], 4, NULL, FI_ADDR_UNSPEC, 0x10, 0, NULL));
    must("fi_trecv", fi_trecv(b.endpoint, &values[1], 4, NULL, FI_ADDR_UNSPEC, 0x20, 0xf, NULL));
    /* No message has this source, though its tag fits. */
    must("fi_trecv", fi_trecv(b.endpoint, &values[2], 4, NULL, b.self, 0, ~0ULL, &values[2]));
    for (int tag = 0x2f; tag >= 0x10; tag -= 0x1f)
        must("fi_tsend", fi_tsend(a.endpoint, &tag, 4, NULL, a.other, tag, NULL));
    expect_true("the mask of a receive ignores bits of the tag",
                await(&b, &entry, NULL, NULL) == 0 && entry.tag == 0x2f && values[1] == 0x2f);
    expect_true("a receive without a mask takes its tag",
                await(&b, &entry, NULL, NULL) == 0 && entry.tag == 0x10 && values[0] == 0x10);
    expect_true("a directed receive takes no message of another source", is_silent(&b) && values[2] == 0);
    must("fi_cancel", (int)fi_cancel(&b.endpoint->fid, &values[2]));
    expect_true("a receive that is cancelled ends with an error",
                await(&b, &entry, NULL, NULL) == FI_ECANCELED && entry.op_context == &values[2]);
    expect_true("a second cancel finds nothing", fi_cancel(&b.endpoint->fid, &values[2]) == -FI_ENOENT);
    for (int count = 0; count < 2; count++)
        await(&a, NULL, NULL, NULL);

    bool is_ordered = true;
    for (int number = 0; number < 300; number++) {
        memcpy(large, &number, sizeof number);
        must("fi_tsend",
             fi_tsend(a.endpoint, large, number % 3 == 2 ? 100000 : 4, NULL, a.other, number % 7, NULL));
        if (number % 3 != 2)
            await(&a, NULL, NULL, NULL);
        if (number % 3 != 2)
            continue;
        /* The three messages are unexpected. A receive of any tag takes them in order. */
        for (int earlier = number - 2; earlier <= number; earlier++) {
            int got = -1;
            must("fi_trecv", fi_trecv(b.endpoint, copy, 100000, NULL, b.other, 0, ~0ULL, NULL));
            is_ordered &= await(&b, &entry, NULL, NULL) == 0 && entry.tag == (uint64_t)(earlier % 7);
            memcpy(&got, copy, sizeof got);
            is_ordered &= got == earlier;
        }
        await(&a, NULL, NULL, NULL);
    }
    expect_true("short and long messages keep their order", is_ordered);
}

static void peek_claims(void)
{
    struct fi_cq_tagged_entry entry;
    struct fi_msg_tagged search = {.addr = FI_ADDR_UNSPEC, .tag = 5, .context = &search};
    char text[32] = "";
    struct iovec buffer = {text, sizeof text};
    must("fi_trecvmsg", (int)fi_trecvmsg(b.endpoint, &search, FI_PEEK | FI_COMPLETION));
    expect_true("a search for a message that has not arrived finds nothing",
                await(&b, &entry, NULL, NULL) == FI_ENOMSG && entry.op_context == &search);
    must("fi_tsend", fi_tsend(a.endpoint, "first", 6, NULL, a.other, 5, NULL));
    must("fi_tsend", fi_tsend(a.endpoint, "second", 7, NULL, a.other, 5, NULL));
    must("fi_tsend", fi_tsend(a.endpoint, large, LARGE_BYTES, NULL, a.other, 6, NULL));
    await(&a, NULL, NULL, NULL);
    await(&a, NULL, NULL, NULL);
    int found = FI_ENOMSG;
    while (found == FI_ENOMSG) {
        must("fi_trecvmsg", (int)fi_trecvmsg(b.endpoint, &search, FI_PEEK | FI_COMPLETION));
        found = await(&b, &entry, NULL, NULL);
    }
    expect_true("a search finds the first message", found == 0 && entry.len == 6);
    must("fi_trecvmsg", (int)fi_trecvmsg(b.endpoint, &search, FI_PEEK | FI_CLAIM | FI_COMPLETION));
    expect_true("a claim finds it as well", await(&b, &entry, NULL, NULL) == 0 && entry.len == 6);
    must("fi_trecv", fi_trecv(b.endpoint, copy, 32, NULL, FI_ADDR_UNSPEC, 5, 0, NULL));
    expect_true("a receive does not take the claimed message",
                await(&b, &entry, NULL, NULL) == 0 && strcmp((char *)copy, "second") == 0);
    search.msg_iov = &buffer;
    search.iov_count = 1;
    must("fi_trecvmsg", (int)fi_trecvmsg(b.endpoint, &search, FI_CLAIM | FI_COMPLETION));
    expect_true("its claim does", await(&b, &entry, NULL, NULL) == 0 && strcmp(text, "first") == 0);
    search.tag = 6;
    found = FI_ENOMSG;
    while (found == FI_ENOMSG) {
        must("fi_trecvmsg", (int)fi_trecvmsg(b.endpoint, &search, FI_PEEK | FI_DISCARD | FI_COMPLETION));
        found = await(&b, &entry, NULL, NULL);
    }
    expect_true("a long message is discarded, and its send completes",
                found == 0 && entry.len == LARGE_BYTES && await(&a, NULL, NULL, NULL) == 0);
}

static void long_claims(void)
{
    struct fi_cq_tagged_entry entry;
    size_t excess = 0;
    fill(large, LARGE_BYTES, 1);
    memset(copy, 0, LARGE_BYTES);
    must("fi_tsend", fi_tsend(a.endpoint, large, LARGE_BYTES, NULL, a.other, 1, NULL));
    must("fi_trecv", fi_trecv(b.endpoint, copy, LARGE_BYTES, NULL, b.other, 1, 0, NULL));
    expect_true("a message of 16 MB arrives",
                await(&b, &entry, NULL, NULL) == 0 && entry.len == LARGE_BYTES &&
                    memcmp(copy, large, LARGE_BYTES) == 0 && await(&a, NULL, NULL, NULL) == 0);
    memset(copy, 0, 300000);
    must("fi_tsend", fi_tsend(a.endpoint, large, 200000, NULL, a.other, 1, NULL));
    must("fi_trecv", fi_trecv(b.endpoint, copy, 150000, NULL, b.other, 1, 0, NULL));
    expect_true("a long message that is longer than the buffer is cut, with an error",
                await(&b, &entry, NULL, &excess) == FI_ETRUNC && excess == 50000 && entry.len == 150000 &&
                    memcmp(copy, large, 150000) == 0 && copy[150000] == 0 &&
                    await(&a, NULL, NULL, NULL) == 0);
    struct iovec from[5] = {{large + 1, 70001}, {large + 200000, 3}, {large + 300001, 90000}};
    struct iovec to[2] = {{copy + 5, 100000}, {copy + 500001, 100000}};
    must("fi_tsendv", fi_tsendv(a.endpoint, from, NULL, 3, a.other, 2, NULL));
    must("fi_trecvv", fi_trecvv(b.endpoint, to, NULL, 2, b.other, 2, 0, NULL));
    bool is_whole = await(&b, &entry, NULL, NULL) == 0 && entry.len == 160004;
    is_whole = is_whole && memcmp(copy + 5, large + 1, 70001) == 0 &&
               memcmp(copy + 5 + 70001, large + 200000, 3) == 0 &&
               memcmp(copy + 5 + 70004, large + 300001, 29996) == 0 &&
               memcmp(copy + 500001, large + 300001 + 29996, 60004) == 0;
    expect_true("a long message is gathered and scattered", is_whole && await(&a, NULL, NULL, NULL) == 0);
    expect_true("too many buffers are refused",
                fi_tsendv(a.endpoint, from, NULL, a.info->tx_attr->iov_limit + 1, a.other, 2, NULL) ==
                    -FI_EINVAL);
    /* Both directions at once. */
    for (int number = 0; number < 4; number++) {
        must("fi_tsend", fi_tsend(a.endpoint, large, 1 << 20, NULL, a.other, 10 + number, NULL));
        must("fi_tsend", fi_tsend(b.endpoint, large, 1 << 20, NULL, b.other, 10 + number, NULL));
    }
    for (int number = 3; number >= 0; number--) {
        must("fi_trecv", fi_trecv(a.endpoint, copy + (number << 20), 1 << 20, NULL, FI_ADDR_UNSPEC,
                                  10 + number, 0, NULL));
        must("fi_trecv", fi_trecv(b.endpoint, copy + ((number + 4) << 20), 1 << 20, NULL, FI_ADDR_UNSPEC,
                                  10 + number, 0, NULL));
    }
    for (int count = 0; count < 8; count++)
        is_whole &= await(&a, NULL, NULL, NULL) == 0 && await(&b, NULL, NULL, NULL) == 0;
    for (int number = 0; number < 8; number++)
        is_whole &= memcmp(copy + (number << 20), large, 1 << 20) == 0;
    expect_true("long messages in both directions arrive at once", is_whole);
}

static void level_claims(void)
{
    struct fi_cq_tagged_entry entry;
    uint64_t before = fi_cntr_read(a.sends);
    struct iovec buffer = {large, 100};
    struct fi_msg_tagged message = {.msg_iov = &buffer, .iov_count = 1, .addr = a.other, .tag = 3};
    must("fi_tsendmsg", (int)fi_tsendmsg(a.endpoint, &message, FI_TRANSMIT_COMPLETE | FI_COMPLETION));
    expect_true("FI_TRANSMIT_COMPLETE needs no receive", await(&a, NULL, NULL, NULL) == 0);
    must("fi_tsendmsg", (int)fi_tsendmsg(a.endpoint, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    expect_true("FI_DELIVERY_COMPLETE waits for the receive", is_silent(&a));
    for (int count = 0; count < 2; count++) {
        must("fi_trecv", fi_trecv(b.endpoint, copy, 100, NULL, b.other, 3, 0, NULL));
        await(&b, NULL, NULL, NULL);
    }
    expect_true("and completes with it", await(&a, NULL, NULL, NULL) == 0);
    buffer.iov_len = 1 << 20;
    must("fi_tsendmsg", (int)fi_tsendmsg(a.endpoint, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    expect_true("a long message waits for the receive", is_silent(&a));
    must("fi_trecv", fi_trecv(b.endpoint, copy, 1 << 20, NULL, b.other, 3, 0, NULL));
    expect_true("and is confirmed", await(&b, NULL, NULL, NULL) == 0 && await(&a, NULL, NULL, NULL) == 0);
    expect_true("the counter has all three sends", fi_cntr_read(a.sends) == before + 3);
    expect_true("a wait for more ends in time", fi_cntr_wait(a.sends, before + 4, 20) == -FI_ETIMEDOUT);
    int64_t began_ms = now_ms();
    expect_true("a wait for a completion ends in time",
                fi_cq_sread(a.queue, &entry, 1, NULL, 20) == -FI_EAGAIN && now_ms() - began_ms >= 19);
}

static void *send_later(void *unused)
{
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    must("fi_tinject", fi_tinject(a.endpoint, "wake", 5, a.other, 8));
    return unused;
}

static void *send_many(void *number)
{
    for (int count = 0; count < 2000;)
        if (fi_tinject(a.endpoint, &count, sizeof count, a.other, (uint64_t)(uintptr_t)number) == 0)
            count++;
    return NULL;
}

static void thread_claims(void)
{
    pthread_t threads[4];
    struct fi_cq_tagged_entry entry;
    must("fi_trecv", fi_trecv(b.endpoint, copy, 100, NULL, FI_ADDR_UNSPEC, 8, 0, NULL));
    pthread_create(&threads[0], NULL, send_later, NULL);
    expect_true("a wait ends when a message arrives",
                fi_cq_sread(b.queue, &entry, 1, NULL, LIMIT_MS) == 1 && entry.len == 5);
    pthread_join(threads[0], NULL);
    for (uintptr_t number = 0; number < 4; number++)
        pthread_create(&threads[number], NULL, send_many, (void *)number);
    int expected[4] = {0};
    bool is_ordered = true;
    for (int count = 0; count < 8000 && is_ordered; count++) {
        int value = -1;
        must("fi_trecv", fi_trecv(b.endpoint, &value, sizeof value, NULL, FI_ADDR_UNSPEC, 0, 3, NULL));
        is_ordered = fi_cq_sread(b.queue, &entry, 1, NULL, LIMIT_MS) == 1;
        is_ordered = is_ordered && value == expected[entry.tag & 3]++;
    }
    for (int number = 0; number < 4; number++)
        pthread_join(threads[number], NULL);
    expect_true("threads that send at once each keep their order", is_ordered);
}

/* A side with automatic progress takes messages while its program does nothing. */
static void progress_claims(void)
{
    struct side side = {.is_automatic = true};
    struct fi_cq_tagged_entry entry;
    struct iovec buffer = {large, LARGE_BYTES};
    struct fid_mr *region;
    uint32_t value = 5, operand = 3;
    side_open(&side);
    fi_addr_t address = insert(&a, &side);
    struct fi_msg_tagged message = {.msg_iov = &buffer, .iov_count = 1, .addr = address, .tag = 1};
    memset(copy, 0, LARGE_BYTES);
    fill(large, LARGE_BYTES, 3);
    must("fi_trecv", fi_trecv(side.endpoint, copy, LARGE_BYTES, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    must("fi_tsendmsg", (int)fi_tsendmsg(a.endpoint, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    expect_true("automatic progress receives a long message",
                await(&a, NULL, NULL, NULL) == 0 && memcmp(copy, large, LARGE_BYTES) == 0);
    must("fi_mr_reg", fi_mr_reg(side.domain, &value, sizeof value, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0,
                                &region, NULL));
    must("fi_atomic",
         fi_atomic(a.endpoint, &operand, 1, NULL, address, 0, fi_mr_key(region), FI_UINT32, FI_SUM, NULL));
    expect_true("and executes an atomic operation of 32 bits",
                await(&a, NULL, NULL, NULL) == 0 && value == 8);
    expect_true("its completion waits for the program",
                fi_cq_read(side.queue, &entry, 1) == 1 && entry.len == LARGE_BYTES);
    must("fi_close", fi_close(&region->fid));
    side_close(&side);
    must("fi_av_remove", fi_av_remove(a.vector, &address, 1, 0));
}

int main(void)
{
    struct fi_info *found = NULL;
    char *key = strdup(getenv("FI_KUMI_KEY"));
    setenv("FI_KUMI_KEY", "/nonexistent/key", 1);
    expect_true("without a key file nothing is offered",
                query(hints_new(), NULL, NULL, 0, &found) == -FI_ENODATA);
    setenv("FI_KUMI_KEY", key, 1);
    free(key);
    info_claims();
    large = calloc(1, LARGE_BYTES);
    copy = calloc(1, LARGE_BYTES);
    side_open(&a);
    side_open(&b);
    a.other = insert(&a, &b);
    a.self = insert(&a, &a);
    b.self = insert(&b, &b);
    b.other = insert(&b, &a);
    message_claims();
    tag_claims();
    peek_claims();
    long_claims();
    level_claims();
    thread_claims();
    memory_claims();
    atomic_claims();
    progress_claims();

    expect_true("a domain with open objects stays", fi_close(&b.domain->fid) == -FI_EBUSY);
    must("fi_tinject", fi_tinject(b.endpoint, "last", 5, b.other, 1));
    must("fi_tsend", fi_tsend(b.endpoint, large, LARGE_BYTES, NULL, b.other, 2, NULL));
    side_close(&b);
    memset(&b, 0, sizeof b);
    must("fi_trecv", fi_trecv(a.endpoint, copy, 5, NULL, a.other, 1, 0, NULL));
    expect_true("a message that was sent before the close arrives",
                await(&a, NULL, NULL, NULL) == 0 && strcmp((char *)copy, "last") == 0);
    must("fi_trecv", fi_trecv(a.endpoint, copy, LARGE_BYTES, NULL, FI_ADDR_UNSPEC, 2, 0, NULL));
    expect_true("a long one that was only offered fails", await(&a, NULL, NULL, NULL) == FI_ECONNABORTED);
    /* The end of the peer may be known before the call, or after it. */
    ssize_t sent = fi_tsend(a.endpoint, large, LARGE_BYTES, NULL, a.other, 1, NULL);
    expect_true("a long message to a peer that ended fails",
                sent == -FI_ECONNABORTED || (sent == 0 && await(&a, NULL, NULL, NULL) == FI_ECONNABORTED));
    expect_true("a second one as well, after a new attempt to connect",
                fi_tsend(a.endpoint, large, LARGE_BYTES, NULL, a.other, 1, NULL) == 0 &&
                    await(&a, NULL, NULL, NULL) == FI_ECONNABORTED);
    side_close(&a);
    free(large);
    free(copy);
    return expect_result();
}
