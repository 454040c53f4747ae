/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Peers of an endpoint: by their address in the vector, and by their number at the Wind node. */
#include <stdlib.h>
#include <string.h>

#include "provider.h"

/* Makes room for `index` in an array of peers. */
static bool make_room(struct peer ***peers, size_t *room, size_t index)
{
    if (index < *room)
        return true;
    size_t grown = index + 1 > 2 * *room ? index + 1 : 2 * *room;
    struct peer **larger = realloc(*peers, grown * sizeof *larger);
    if (larger == NULL)
        return false;
    memset(larger + *room, 0, (grown - *room) * sizeof *larger);
    *peers = larger;
    *room = grown;
    return true;
}

static struct peer *peer_new(struct endpoint *endpoint, const union address *address)
{
    struct peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        return NULL;
    peer->address = *address;
    peer->name = FI_ADDR_NOTAVAIL;
    /* Differs from the vector's version, so that the name is looked up. */
    peer->looked_up = endpoint->vector->version - 1;
    list_append(&endpoint->peers, &peer->link);
    return peer;
}

struct peer *peer_by_number(struct endpoint *endpoint, uint32_t number)
{
    char text[96];
    union address address;
    if (number < endpoint->by_number_room && endpoint->by_number[number] != NULL)
        return endpoint->by_number[number];
    if (!make_room(&endpoint->by_number, &endpoint->by_number_room, number))
        return NULL;
    if (kumi_wind_peer_address(endpoint->node, number, text, sizeof text) != KUMI_WIND_DONE ||
        !address_parse(text, &address)) {
        /* It sent a message and is lost already. */
        memset(&address, 0, sizeof address);
    }
    struct peer *peer = peer_new(endpoint, &address);
    if (peer == NULL)
        return NULL;
    peer->number = number;
    endpoint->by_number[number] = peer;
    return peer;
}

fi_addr_t peer_name(struct endpoint *endpoint, struct peer *peer)
{
    if (peer->looked_up != endpoint->vector->version) {
        peer->looked_up = endpoint->vector->version;
        peer->name = peer->address.any.sa_family == 0 ? FI_ADDR_NOTAVAIL
                                                      : vector_find(endpoint->vector, &peer->address);
    }
    return peer->name;
}

/* Connects to an address, which may be this endpoint's own. */
static int peer_connect(struct endpoint *endpoint, const union address *address, struct peer **out)
{
    char text[96], error[ERROR_TEXT_BYTES];
    uint32_t number;
    if (address_equals(address, &endpoint->address)) {
        *out = peer_new(endpoint, address);
        if (*out == NULL)
            return -FI_ENOMEM;
        (*out)->is_self = true;
        return 0;
    }
    address_print(address, text, sizeof text);
    int outcome = kumi_wind_connect(endpoint->node, text, &number, error, sizeof error);
    if (outcome != KUMI_WIND_DONE) {
        WARN(FI_LOG_EP_CTRL, "cannot connect to %s: %s\n", text, error);
        return -error_of(outcome);
    }
    *out = peer_by_number(endpoint, number);
    return *out == NULL ? -FI_ENOMEM : 0;
}

int peer_find(struct endpoint *endpoint, fi_addr_t name, struct peer **out)
{
    if (name < endpoint->by_name_room && endpoint->by_name[name] != NULL) {
        struct peer *known = endpoint->by_name[name];
        if (peer_name(endpoint, known) == name || known->is_self) {
            *out = known;
            return 0;
        }
        endpoint->by_name[name] = NULL;
    }
    struct vector *vector = endpoint->vector;
    if (name >= vector->count || vector->addresses[name].any.sa_family == 0) {
        WARN(FI_LOG_EP_DATA, "address %llu is not in the vector, which has %zu\n", (unsigned long long)name,
             vector->count);
        return -FI_EINVAL;
    }
    if (!make_room(&endpoint->by_name, &endpoint->by_name_room, name))
        return -FI_ENOMEM;
    int outcome = peer_connect(endpoint, &vector->addresses[name], out);
    if (outcome == 0)
        endpoint->by_name[name] = *out;
    return outcome;
}

void peer_lose(struct endpoint *endpoint, struct peer *peer)
{
    if (peer->is_lost)
        return;
    peer->is_lost = true;
    /* The next operation connects again. Unexpected messages still name this peer. */
    for (size_t at = 0; at < endpoint->by_name_room; at++)
        if (endpoint->by_name[at] == peer)
            endpoint->by_name[at] = NULL;
    LIST_FOR_EACH(link, &endpoint->requests)
    {
        struct request *request = LIST_MEMBER(link, struct request, link);
        if (request->peer == peer)
            request_finish(request, FI_ECONNABORTED, KUMI_WIND_LOST);
    }
}

void peers_check(struct endpoint *endpoint)
{
    char error[ERROR_TEXT_BYTES], text[96];
    LIST_FOR_EACH(link, &endpoint->peers)
    {
        struct peer *peer = LIST_MEMBER(link, struct peer, link);
        if (peer->is_self || peer->is_lost)
            continue;
        if (kumi_wind_check(endpoint->node, peer->number, error, sizeof error) == KUMI_WIND_DONE)
            continue;
        address_print(&peer->address, text, sizeof text);
        WARN(FI_LOG_EP_DATA, "peer %s: %s\n", text, error);
        peer_lose(endpoint, peer);
    }
}

void peers_free(struct endpoint *endpoint)
{
    LIST_FOR_EACH(link, &endpoint->peers)
    free(LIST_MEMBER(link, struct peer, link));
    free(endpoint->by_number);
    free(endpoint->by_name);
}
