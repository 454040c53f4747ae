/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The provider's own messages. Each is the header of a Wind message; every integer is big-endian.
 *
 *    |  kind (8)  | flags (8) |     0 (16)     |            detail (32)            |
 *    |                                 tag (64)                                    |
 *    |                                 data (64)                                   |
 *    |                                 bytes (64)                                  |
 *    |                                number (64)                                  |
 *
 *    sender                     receiver
 *      Eager, contents  ────────►          a short message
 *      Offer            ────────►          a long one: its receive is not posted yet
 *              ◄────────  Accept, place    the posted buffer is a Wind region
 *      Data, contents   ────────►          the contents are written to the region
 *              ◄────────  Confirm          if the sender asked for it
 */
#ifndef WIRE_H
#define WIRE_H

#include <endian.h>
#include <string.h>

#include "provider.h"

enum message_kind {
    /* A message with its contents. number: the sender's request, if a Confirm is wanted. */
    MESSAGE_EAGER = 1,
    /* bytes: length of a long message. number: the sender's request. */
    MESSAGE_OFFER,
    /* number: the sender's request. bytes: those that it sends. tag: the receiver's request. */
    MESSAGE_ACCEPT,
    /* number: the receiver's request. bytes: length of this part, which went to the place. */
    MESSAGE_DATA,
    /* number: the sender's request, which is complete. */
    MESSAGE_CONFIRM,
    /* data and bytes: those of a write to memory that is complete. */
    MESSAGE_WRITTEN,
    /* An atomic operation: detail, address in `tag` and key in `data`; the operands follow. */
    MESSAGE_ATOMIC,
    /* number: the request of an atomic operation. detail: an errno. The former values follow. */
    MESSAGE_RESULT,
};

enum message_flag { FLAG_TAGGED = 1, FLAG_DATA = 2, FLAG_CONFIRM = 4 };

struct head {
    uint8_t kind;
    uint8_t flags;
    uint16_t zero;
    uint32_t detail;
    uint64_t tag;
    uint64_t data;
    uint64_t bytes;
    uint64_t number;
};

_Static_assert(sizeof(struct head) == 40, "layout of the wire");

/* The place of an Accept. */
struct wire_place {
    uint64_t offset;
    uint32_t region;
    uint32_t zero;
    uint8_t key[16];
};

_Static_assert(sizeof(struct wire_place) == 32, "layout of the wire");

/* Converts between the byte orders of the host and the wire, in both directions. */
static inline struct head head_swap(struct head head)
{
    head.detail = htobe32(head.detail);
    head.tag = htobe64(head.tag);
    head.data = htobe64(head.data);
    head.bytes = htobe64(head.bytes);
    head.number = htobe64(head.number);
    return head;
}

static inline struct wire_place place_to_wire(const struct kumi_wind_place *place)
{
    struct wire_place wire = {.offset = htobe64(place->offset), .region = htobe32(place->region)};
    memcpy(wire.key, place->key, sizeof wire.key);
    return wire;
}

static inline struct kumi_wind_place place_from_wire(const struct wire_place *wire)
{
    struct kumi_wind_place place = {.offset = be64toh(wire->offset), .region = be32toh(wire->region)};
    memcpy(place.key, wire->key, sizeof place.key);
    return place;
}

/*
 * Sends a message of the provider now, or when there is room: progress sends it then. Its order
 * relative to other messages is not defined.
 */
void control_send(struct endpoint *endpoint, struct peer *peer, const struct head *head, const void *contents,
                  size_t bytes);
void control_free(struct endpoint *endpoint);

/* Handles an atomic operation of a peer, and the result of one of this side. */
void atomic_execute(struct endpoint *endpoint, struct peer *peer, const struct head *head,
                    const void *operands, size_t bytes);
void atomic_take_result(struct request *request, const struct head *head, const void *values, size_t bytes);

#endif
