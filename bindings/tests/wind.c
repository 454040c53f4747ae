/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Wind from C: two nodes of one process. */
#include <kumi_wind.h>
#include <stdio.h>
#include <string.h>

#include "expect.h"

static const uint8_t secret[KUMI_WIND_SECRET_BYTES] = "a secret of this test";
static char error[256];

static struct kumi_wind_node *open_node(void)
{
    struct kumi_wind_node *node = kumi_wind_open("127.0.0.1:0", secret, error, sizeof error);
    if (node == NULL)
        fprintf(stderr, "%s\n", error);
    return node;
}

/* Polls both nodes until a transfer is complete. */
static int complete(struct kumi_wind_node *node, struct kumi_wind_node *other,
                    struct kumi_wind_transfer *transfer)
{
    int outcome;
    while ((outcome = kumi_wind_test(node, transfer, error, sizeof error)) == KUMI_WIND_BUSY) {
        kumi_wind_message_free(kumi_wind_receive(node, 0));
        kumi_wind_message_free(kumi_wind_receive(other, 0));
    }
    kumi_wind_transfer_free(transfer);
    return outcome;
}

/* Calls that do not wait, on memory of the program. */
static void poll_claims(struct kumi_wind_node *one, struct kumi_wind_node *other, uint32_t peer)
{
    static unsigned char memory[100000], values[90000], copy[90000];
    struct kumi_wind_place place = {.region = 9};
    for (size_t at = 0; at < sizeof values; at++)
        values[at] = (unsigned char)(at % 251);
    kumi_wind_region_key(secret, 9, place.key);
    /* An odd address: the region begins before it. */
    struct kumi_wind_region *region =
        kumi_wind_region_borrow(other, memory + 3, sizeof memory - 3, &place, error, sizeof error);
    expect_true("memory of the program becomes a region",
                region != NULL && place.offset == (uintptr_t)(memory + 3) % 8);
    struct kumi_wind_place second = {.region = 9};
    expect_true("a number in use is refused",
                kumi_wind_region_borrow(other, memory, 8, &second, error, sizeof error) == NULL &&
                    strstr(error, "region 9 exists") != NULL);
    expect_true("a put that is polled is in the memory",
                complete(one, other, kumi_wind_start_put(peer, &place, values, sizeof values)) ==
                        KUMI_WIND_DONE &&
                    memcmp(memory + 3, values, sizeof values) == 0);
    expect_true("a get that is polled reads it",
                complete(one, other, kumi_wind_start_get(peer, &place, copy, sizeof copy)) ==
                        KUMI_WIND_DONE &&
                    memcmp(copy, values, sizeof copy) == 0);
    uint64_t before = 0, *word = (uint64_t *)((uintptr_t)(memory + 64) & ~(uintptr_t)7);
    *word = 40;
    struct kumi_wind_place at_word = place;
    at_word.offset += (uint64_t)((unsigned char *)word - (memory + 3));
    expect_true(
        "an atomic operation that is polled changes the word",
        complete(one, other, kumi_wind_start_atomic(peer, &at_word, KUMI_WIND_FETCH_ADD, 2, 0, &before)) ==
                KUMI_WIND_DONE &&
            before == 40 && *word == 42);
    place.offset += sizeof memory;
    expect_true("a transfer outside the memory is refused",
                complete(one, other, kumi_wind_start_put(peer, &place, values, 1)) == KUMI_WIND_REFUSED);
    kumi_wind_region_free(other, region);

    struct iovec parts[2] = {{"ab", 2}, {"c", 1}};
    uint64_t number;
    int sent = kumi_wind_try_send(one, peer, KUMI_WIND_SYNCHRONOUS, NULL, "head", 4, parts, 2, &number, error,
                                  sizeof error);
    struct kumi_wind_message *message = kumi_wind_receive(other, 5000);
    expect_true("a message of two parts arrives as one",
                sent == KUMI_WIND_DONE && message != NULL && message->header_bytes == 4 &&
                    message->data_bytes == 3 && memcmp(message->data, "abc", 3) == 0);
    char address[64] = "";
    expect_true("its sender has an address",
                message != NULL &&
                    kumi_wind_peer_address(other, message->peer, address, sizeof address) == KUMI_WIND_DONE &&
                    strstr(address, "127.0.0.1:") == address);
    kumi_wind_message_free(message);
    uint64_t seen = 0;
    int placed;
    while ((placed = kumi_wind_test_placed(one, peer, number, error, sizeof error)) == KUMI_WIND_BUSY)
        seen = kumi_wind_wait(one, seen, 1000);
    expect_true("a synchronous message is placed at last", placed == KUMI_WIND_DONE);
    expect_true("nothing waits for the peer after a flush",
                kumi_wind_flush(one, peer, 5000, error, sizeof error) == KUMI_WIND_DONE &&
                    kumi_wind_unsent(one, peer) == 0);
    kumi_wind_wake(one);
    expect_true("a wait ends when it is woken", kumi_wind_wait(one, seen, -1) != seen);
    expect_true("a peer that answers is not lost",
                kumi_wind_check(one, peer, error, sizeof error) == KUMI_WIND_DONE);
    uint8_t other_secret[KUMI_WIND_SECRET_BYTES];
    expect_true("a key file that does not exist is named",
                kumi_wind_secret_read("/nonexistent/key", other_secret, error, sizeof error) ==
                        KUMI_WIND_ARGUMENT &&
                    strstr(error, "cannot read cluster key /nonexistent/key") != NULL);
}

int main(void)
{
    struct kumi_wind_node *one = open_node(), *other = open_node();
    if (one == NULL || other == NULL)
        return 1;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", kumi_wind_port(other));
    uint32_t peer;
    expect_true("a node connects to another one",
                kumi_wind_connect(one, address, &peer, error, sizeof error) == KUMI_WIND_DONE);

    expect_true("a synchronous message is placed", kumi_wind_send(one, peer, KUMI_WIND_SYNCHRONOUS, "hello",
                                                                  5, error, sizeof error) == KUMI_WIND_DONE);
    struct kumi_wind_message *message = kumi_wind_receive(other, 5000);
    expect_true("its bytes arrive", message != NULL && message->data_bytes == 5 &&
                                        memcmp(message->data, "hello", 5) == 0 &&
                                        message->delivery_class == KUMI_WIND_SYNCHRONOUS);
    kumi_wind_message_free(message);

    struct kumi_wind_place place;
    struct kumi_wind_region *region = kumi_wind_region_new(other, 1 << 16, &place, error, sizeof error);
    unsigned char *memory = kumi_wind_region_memory(region);
    place.offset = 100;
    expect_true("a put is in the peer's memory",
                kumi_wind_put(one, peer, &place, "abc", 3, error, sizeof error) == KUMI_WIND_DONE &&
                    memcmp(memory + 100, "abc", 3) == 0);
    char copy[4] = "";
    expect_true("a put with a notice is in the peer's memory",
                kumi_wind_put_and_notify(one, peer, &place, "abc", 3, "look", 4, error, sizeof error) ==
                        KUMI_WIND_DONE &&
                    memcmp(memory + 100, "abc", 3) == 0);
    message = kumi_wind_receive(other, 5000);
    expect_true("the notice arrives",
                message != NULL && message->data_bytes == 4 && memcmp(message->data, "look", 4) == 0);
    kumi_wind_message_free(message);
    expect_true("a get reads it",
                kumi_wind_get(one, peer, &place, copy, 3, error, sizeof error) == KUMI_WIND_DONE &&
                    strcmp(copy, "abc") == 0);
    place.offset = 8;
    uint64_t before = 1;
    int added = kumi_wind_fetch_add(one, peer, &place, 5, &before, error, sizeof error);
    expect_true("a fetch and add returns the word before it", added == KUMI_WIND_DONE && before == 0);
    int swapped = kumi_wind_compare_swap(one, peer, &place, 5, 9, &before, error, sizeof error);
    expect_true("a compare and swap stores", swapped == KUMI_WIND_DONE && before == 5 && memory[8] == 9);
    swapped = kumi_wind_swap(one, peer, &place, 0x1234, &before, error, sizeof error);
    expect_true("a swap stores", swapped == KUMI_WIND_DONE && before == 9 && memory[8] == 0x34);
    int stored = kumi_wind_masked_store(one, peer, &place, 0xff00, 0xabcd, &before, error, sizeof error);
    expect_true("a masked store leaves the other bits",
                stored == KUMI_WIND_DONE && before == 0x1234 && memory[8] == 0x34 && memory[9] == 0xab);
    place.offset = 0;
    int sent = kumi_wind_send_to(one, peer, KUMI_WIND_ORDERED, KUMI_WIND_HEADER_THROUGH, &place, "head", 4,
                                 "data", 4, error, sizeof error);
    message = kumi_wind_receive(other, 5000);
    expect_true("data of a message goes to the region, its header to the program",
                sent == KUMI_WIND_DONE && message != NULL && message->header_bytes == 4 &&
                    message->data_bytes == 0 && memcmp(memory, "data", 4) == 0);
    kumi_wind_message_free(message);

    memcpy(memory, "ABCDEF", 6);
    expect_true("a diff that is put writes the changed bytes only",
                kumi_wind_put_diff(one, peer, &place, "aaaaaa", "aXaaYa", 6, error, sizeof error) ==
                        KUMI_WIND_DONE &&
                    memcmp(memory, "AXCDYF", 6) == 0);
    sent = kumi_wind_send_diff(one, peer, KUMI_WIND_ORDERED, KUMI_WIND_HEADER_THROUGH_DIFF, &place, "head", 4,
                               "aaa", "Zaa", 3, error, sizeof error);
    message = kumi_wind_receive(other, 5000);
    expect_true("a message of a diff does too, and its header goes to the program",
                sent == KUMI_WIND_DONE && message != NULL && message->header_bytes == 4 &&
                    message->mode == KUMI_WIND_HEADER_THROUGH_DIFF && memcmp(memory, "ZXCDYF", 6) == 0);
    kumi_wind_message_free(message);
    expect_true("a mode without a diff is refused",
                kumi_wind_send_diff(one, peer, KUMI_WIND_ORDERED, KUMI_WIND_DIRECT_MAP, &place, NULL, 0, "a",
                                    "b", 1, error, sizeof error) == KUMI_WIND_ARGUMENT &&
                    strstr(error, "invalid mode 2 of a diff") != NULL);

    const uint32_t peers[] = {peer, peer};
    struct kumi_wind_place places[] = {place, place};
    places[1].offset = 100;
    int spread = kumi_wind_put_to_all(one, peers, places, 2, "all", 3, error, sizeof error);
    expect_true("a put to all is at each place", spread == KUMI_WIND_DONE && memcmp(memory, "all", 3) == 0 &&
                                                     memcmp(memory + 100, "all", 3) == 0);
    uint8_t secret[KUMI_WIND_SECRET_BYTES] = {7};
    struct kumi_wind_node *trusted = kumi_wind_open_trusted("127.0.0.1:0", secret, error, sizeof error);
    expect_true("a node without encryption opens, and states its executor",
                trusted != NULL && (kumi_wind_has_kernel(trusted) | 1) == 1);
    kumi_wind_close(trusted);

    place.offset = 1 << 16;
    expect_true("a place out of the region is refused",
                kumi_wind_put(one, peer, &place, "a", 1, error, sizeof error) == KUMI_WIND_REFUSED &&
                    strstr(error, "outside the region") != NULL);
    place.offset = 0;
    kumi_wind_region_free(other, region);
    expect_true("a region that was freed is refused",
                kumi_wind_put(one, peer, &place, "a", 1, error, sizeof error) == KUMI_WIND_REFUSED);
    expect_true("no message is late", kumi_wind_receive(other, 10) == NULL);
    poll_claims(one, other, peer);
    kumi_wind_close(other);
    int lost = KUMI_WIND_DONE;
    while (lost == KUMI_WIND_DONE)
        lost = kumi_wind_flush(one, peer, 5000, error, sizeof error);
    expect_true("a peer that ended is lost",
                lost == KUMI_WIND_LOST && strstr(error, "ended the session") != NULL);
    kumi_wind_close(one);
    return expect_result();
}
