/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wind: messages with a delivery class each, and operations on memory of another process, over UDP
 * (libkumi.so).
 *
 *    struct kumi_wind_node *node = kumi_wind_open("0.0.0.0:7000", secret, error, sizeof error);
 *    uint32_t peer;
 *    kumi_wind_connect(node, "10.0.0.2:7000", &peer, error, sizeof error);
 *    kumi_wind_send(node, peer, KUMI_WIND_ORDERED, "hello", 5, error, sizeof error);
 *
 * A process gives peers access to a region of its memory by sending them its place. Whoever has the
 * place may read and write the region at any time:
 *
 *    struct kumi_wind_place place;
 *    struct kumi_wind_region *region =
 *        kumi_wind_region_new(node, 1 << 20, &place, error, sizeof error);
 *    double *table = kumi_wind_region_memory(region);
 *
 *    // at the peer, with the place
 *    kumi_wind_put(node, peer, &place, values, sizeof values, error, sizeof error);
 *
 * Functions that return an int return an enum kumi_wind_outcome. A function that fails writes the
 * reason to `error`, at most `error_bytes` with the terminating zero. Different threads may use one
 * node. A process that is forked from one with a node must not use it.
 */
#ifndef KUMI_WIND_H
#define KUMI_WIND_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kumi_version.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KUMI_WIND_SECRET_BYTES = 32 };

/* Delivery class of a message. */
enum kumi_wind_class {
    /* Delivered after every earlier message to the peer, ordered or not. */
    KUMI_WIND_ORDERED,
    /* Delivered as soon as it is complete. */
    KUMI_WIND_UNORDERED,
    /* As ordered. The sender waits until it is placed in the receiver's memory. */
    KUMI_WIND_SYNCHRONOUS,
};

/* Parts of a message that the receiving program gets. */
enum kumi_wind_mode {
    /* Header and data. */
    KUMI_WIND_MESSAGE_THROUGH,
    /* The header. The data is written to a region. */
    KUMI_WIND_HEADER_THROUGH,
    /* Nothing. The data is written to a region. */
    KUMI_WIND_DIRECT_MAP,
    /* As the two above, for the changes of an area: kumi_wind_send_diff. */
    KUMI_WIND_HEADER_THROUGH_DIFF,
    KUMI_WIND_DIRECT_DIFF,
};

enum kumi_wind_outcome {
    KUMI_WIND_DONE,
    /* The limit has passed. */
    KUMI_WIND_LATE,
    /* The peer is lost: it ended, was restarted, or does not answer. */
    KUMI_WIND_LOST,
    /* The peer refused the place. */
    KUMI_WIND_REFUSED,
    /* An argument is invalid. */
    KUMI_WIND_ARGUMENT,
    /* The system refused something. */
    KUMI_WIND_SYSTEM,
    /* Not complete, or too much waits for the peer: call again. */
    KUMI_WIND_BUSY,
};

/* A place in a region. Its key is a secret. */
struct kumi_wind_place {
    /* Offset in the region, in bytes. */
    uint64_t offset;
    uint32_t region;
    uint32_t reserved;
    uint8_t key[16];
};

/* A message that arrived. */
struct kumi_wind_message {
    uint32_t peer;
    /* enum kumi_wind_class and enum kumi_wind_mode. */
    int32_t delivery_class;
    int32_t mode;
    uint32_t reserved;
    const void *header;
    size_t header_bytes;
    const void *data;
    size_t data_bytes;
};

struct kumi_wind_node;
struct kumi_wind_region;

/*
 * Opens a node at `address`, "IP:PORT". Port 0 leaves the choice to the kernel. All processes of a
 * job have the same secret. Returns NULL if it fails.
 */
struct kumi_wind_node *kumi_wind_open(const char *address, const uint8_t secret[KUMI_WIND_SECRET_BYTES],
                                      char *error, size_t error_bytes);

/*
 * As above, with sessions that are authenticated and not encrypted: for networks in which nobody
 * else may read. All processes of a job open their nodes in the same way. On hosts with
 * `kumi wind up` the kernel executes the operations of peers, also while this process computes or
 * is stopped.
 */
struct kumi_wind_node *kumi_wind_open_trusted(const char *address,
                                              const uint8_t secret[KUMI_WIND_SECRET_BYTES], char *error,
                                              size_t error_bytes);

/* Returns 1 if the kernel of this host executes the operations of peers, and otherwise 0. */
int kumi_wind_has_kernel(const struct kumi_wind_node *node);

/* As above, for operations of this node that the kernel of the peer executes. */
int kumi_wind_peer_has_kernel(const struct kumi_wind_node *node, uint32_t peer);

/* Returns the UDP port of a node. */
int kumi_wind_port(const struct kumi_wind_node *node);

/* Ends all sessions, and frees the node. Its regions stay until they are freed. */
void kumi_wind_close(struct kumi_wind_node *node);

/* Stores the number of the peer at `address`, "IP:PORT". The session begins in the background. */
int kumi_wind_connect(const struct kumi_wind_node *node, const char *address, uint32_t *peer, char *error,
                      size_t error_bytes);

/* Sends a message. A synchronous one is placed in the peer's memory when this returns. */
int kumi_wind_send(const struct kumi_wind_node *node, uint32_t peer, int delivery_class, const void *data,
                   size_t bytes, char *error, size_t error_bytes);

/* Sends a message whose data is written to `place`, with a header for the program. */
int kumi_wind_send_to(const struct kumi_wind_node *node, uint32_t peer, int delivery_class, int mode,
                      const struct kumi_wind_place *place, const void *header, size_t header_bytes,
                      const void *data, size_t bytes, char *error, size_t error_bytes);

/*
 * Sends the bytes of `now` that differ from `twin`, a copy of the area from before its changes.
 * Both have `bytes` bytes. Only these bytes are written to `place`: different peers may change
 * different bytes of one area.
 */
int kumi_wind_send_diff(const struct kumi_wind_node *node, uint32_t peer, int delivery_class, int mode,
                        const struct kumi_wind_place *place, const void *header, size_t header_bytes,
                        const void *twin, const void *now, size_t bytes, char *error, size_t error_bytes);

/*
 * Returns the next message of any peer, which kumi_wind_message_free frees. Returns NULL after
 * `limit_ms` milliseconds. A negative limit means no limit. With a limit of 0 the call does the
 * part of the node's thread. A program that stops polling leaves that to the thread within 1 ms.
 */
struct kumi_wind_message *kumi_wind_receive(const struct kumi_wind_node *node, int64_t limit_ms);

void kumi_wind_message_free(struct kumi_wind_message *message);

/* Registers a region of zeros. Its place is stored in `place`. Returns NULL if it fails. */
struct kumi_wind_region *kumi_wind_region_new(const struct kumi_wind_node *node, size_t bytes,
                                              struct kumi_wind_place *place, char *error, size_t error_bytes);

/* Returns the region's memory. Peers may change it at any time. */
void *kumi_wind_region_memory(const struct kumi_wind_region *region);

/* Ends the access of peers, and frees the memory. */
void kumi_wind_region_free(const struct kumi_wind_node *node, struct kumi_wind_region *region);

/* Writes bytes to the peer's memory. They are there when this returns. */
int kumi_wind_put(const struct kumi_wind_node *node, uint32_t peer, const struct kumi_wind_place *place,
                  const void *data, size_t bytes, char *error, size_t error_bytes);

/*
 * Writes bytes to the peer's memory, and sends it a notice, which it receives as a message when
 * they are there. They are there when this returns. The notice of a put that is refused arrives all
 * the same.
 */
int kumi_wind_put_and_notify(const struct kumi_wind_node *node, uint32_t peer,
                             const struct kumi_wind_place *place, const void *data, size_t bytes,
                             const void *notice, size_t notice_bytes, char *error, size_t error_bytes);

/* Writes the bytes of `now` that differ from `twin`. They are there when this returns. */
int kumi_wind_put_diff(const struct kumi_wind_node *node, uint32_t peer, const struct kumi_wind_place *place,
                       const void *twin, const void *now, size_t bytes, char *error, size_t error_bytes);

/*
 * Writes the same bytes to a place of each of `count` peers. They are there when this returns.
 * Long data is passed on from each peer to the next one, so each link carries it once. A failure
 * is that of the first peer that failed; the others have the bytes.
 */
int kumi_wind_put_to_all(const struct kumi_wind_node *node, const uint32_t *peers,
                         const struct kumi_wind_place *places, size_t count, const void *data, size_t bytes,
                         char *error, size_t error_bytes);

/* Reads bytes of the peer's memory. */
int kumi_wind_get(const struct kumi_wind_node *node, uint32_t peer, const struct kumi_wind_place *place,
                  void *data, size_t bytes, char *error, size_t error_bytes);

/*
 * Change the 64-bit word at `place`, whose offset is a multiple of 8, and store the word of before
 * in `before`.
 */
int kumi_wind_fetch_add(const struct kumi_wind_node *node, uint32_t peer, const struct kumi_wind_place *place,
                        uint64_t value, uint64_t *before, char *error, size_t error_bytes);
int kumi_wind_compare_swap(const struct kumi_wind_node *node, uint32_t peer,
                           const struct kumi_wind_place *place, uint64_t expected, uint64_t value,
                           uint64_t *before, char *error, size_t error_bytes);
int kumi_wind_swap(const struct kumi_wind_node *node, uint32_t peer, const struct kumi_wind_place *place,
                   uint64_t value, uint64_t *before, char *error, size_t error_bytes);

/* As above: stores the bits of `value` that are set in `mask`, and leaves the others. */
int kumi_wind_masked_store(const struct kumi_wind_node *node, uint32_t peer,
                           const struct kumi_wind_place *place, uint64_t mask, uint64_t value,
                           uint64_t *before, char *error, size_t error_bytes);

/*
 * Start a put, or an atomic operation (enum kumi_wind_atomic) whose result is not wanted.
 * kumi_wind_flush waits for them. The memory may be used again when this returns. While another one
 * is in flight, it may leave up to 1 ms later, with those that follow. Operations that
 * are started one after the other may be executed in any order. If too much waits for the peer,
 * this waits for it.
 */
int kumi_wind_post_put(const struct kumi_wind_node *node, uint32_t peer, const struct kumi_wind_place *place,
                       const void *data, size_t bytes, char *error, size_t error_bytes);
int kumi_wind_post_atomic(const struct kumi_wind_node *node, uint32_t peer,
                          const struct kumi_wind_place *place, int operation, uint64_t first, uint64_t second,
                          char *error, size_t error_bytes);

/*
 * Waits until every message and operation to the peer has arrived. A negative limit means no limit.
 */
int kumi_wind_flush(const struct kumi_wind_node *node, uint32_t peer, int64_t limit_ms, char *error,
                    size_t error_bytes);

/*
 * The functions below serve a library that polls. None of them waits, except kumi_wind_wait.
 *
 *    struct kumi_wind_transfer *put = kumi_wind_start_put(peer, &place, values, sizeof values);
 *    while (kumi_wind_test(node, put, error, sizeof error) == KUMI_WIND_BUSY)
 *        handle(kumi_wind_receive(node, 0));
 *    kumi_wind_transfer_free(put);
 */

/* Stores the secret that the cluster key file at `path` stands for. `kumi wind` has the same. */
int kumi_wind_secret_read(const char *path, uint8_t secret[KUMI_WIND_SECRET_BYTES], char *error,
                          size_t error_bytes);

/* Stores the key of a region that every process with the secret can derive from `number`. */
void kumi_wind_region_key(const uint8_t secret[KUMI_WIND_SECRET_BYTES], uint64_t number, uint8_t key[16]);

/*
 * Registers memory that the caller owns, until the region is freed. `place` has the region's number
 * and key; the number must not be in use. The offset of the memory in the region is stored in it:
 * at most 7, because a region begins at a multiple of 8. Returns NULL if it fails.
 */
struct kumi_wind_region *kumi_wind_region_borrow(const struct kumi_wind_node *node, void *memory,
                                                 size_t bytes, struct kumi_wind_place *place, char *error,
                                                 size_t error_bytes);

/*
 * Sends a message that consists of a header and `count` parts. With a place, the parts are written
 * to it and the program gets the header. Stores the message's number for kumi_wind_test_placed in
 * `message`, which may be NULL. The memory may be used again when this returns.
 */
int kumi_wind_try_send(const struct kumi_wind_node *node, uint32_t peer, int delivery_class,
                       const struct kumi_wind_place *place, const void *header, size_t header_bytes,
                       const struct iovec *parts, size_t count, uint64_t *message, char *error,
                       size_t error_bytes);

/* Returns the bytes to a peer that wait or are in flight. */
uint64_t kumi_wind_unsent(const struct kumi_wind_node *node, uint32_t peer);

/* Returns KUMI_WIND_DONE once for a synchronous message that is placed in the peer's memory. */
int kumi_wind_test_placed(const struct kumi_wind_node *node, uint32_t peer, uint64_t message, char *error,
                          size_t error_bytes);

struct kumi_wind_transfer;

enum kumi_wind_atomic {
    /* Adds `first`. */
    KUMI_WIND_FETCH_ADD,
    /* Stores `second` if the word is `first`. */
    KUMI_WIND_COMPARE_SWAP,
    /* Stores `first`. */
    KUMI_WIND_SWAP,
    /* Stores the bits of `second` that are set in `first`. */
    KUMI_WIND_MASKED_STORE,
};

/*
 * Create a transfer, which kumi_wind_test starts and kumi_wind_transfer_free frees. Its memory
 * stays until it is complete. kumi_wind_start_atomic returns NULL for an unknown operation.
 */
struct kumi_wind_transfer *kumi_wind_start_put(uint32_t peer, const struct kumi_wind_place *place,
                                               const void *data, size_t bytes);
struct kumi_wind_transfer *kumi_wind_start_get(uint32_t peer, const struct kumi_wind_place *place, void *data,
                                               size_t bytes);
struct kumi_wind_transfer *kumi_wind_start_atomic(uint32_t peer, const struct kumi_wind_place *place,
                                                  int operation, uint64_t first, uint64_t second,
                                                  uint64_t *before);

/*
 * Continues a transfer. Returns KUMI_WIND_BUSY until it is complete, and then its outcome, once. A
 * transfer that is freed earlier leaves its results in the node.
 */
int kumi_wind_test(const struct kumi_wind_node *node, struct kumi_wind_transfer *transfer, char *error,
                   size_t error_bytes);

void kumi_wind_transfer_free(struct kumi_wind_transfer *transfer);

/* Returns KUMI_WIND_LOST and the reason for a peer that is lost. */
int kumi_wind_check(const struct kumi_wind_node *node, uint32_t peer, char *error, size_t error_bytes);

/* Writes "IP:PORT" of a peer. Returns KUMI_WIND_LOST for one that is lost or unknown. */
int kumi_wind_peer_address(const struct kumi_wind_node *node, uint32_t peer, char *text, size_t text_bytes);

/*
 * Waits until something has happened since this function returned `seen`: a datagram arrived, a
 * timeout passed, or kumi_wind_wake was called. Returns at the latest after `limit_ms`
 * milliseconds; a negative limit means no limit. The first call has 0.
 */
uint64_t kumi_wind_wait(const struct kumi_wind_node *node, uint64_t seen, int64_t limit_ms);

void kumi_wind_wake(const struct kumi_wind_node *node);

#ifdef __cplusplus
}
#endif

#endif
