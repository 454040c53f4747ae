/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Keeps requests and their steps in parallel arrays. */

#include <stdlib.h>
#include <string.h>

#include "flight.h"

static bool grow(void *array, int room, size_t bytes)
{
    void **at = array;
    void *grown = realloc(*at, (size_t)room * bytes);
    if (grown != NULL)
        *at = grown;
    return grown != NULL;
}

bool kumi_flight_room(struct kumi_flight *flight, const struct kumi_abi *abi)
{
    if (flight->count < flight->room)
        return true;
    int room = flight->room == 0 ? 64 : 2 * flight->room;
    if (!grow(&flight->requests, room, abi->request_bytes) ||
        !grow(&flight->statuses, room, abi->status_bytes) ||
        !grow(&flight->begun, room, sizeof(*flight->begun)) ||
        !grow(&flight->finished, room, sizeof(*flight->finished)))
        return false;
    flight->room = room;
    return true;
}

void kumi_flight_close_up(struct kumi_flight *flight, size_t request_bytes)
{
    int left = 0;
    for (int i = 0; i < flight->count; i++) {
        if (flight->begun[i].number < 0)
            continue;
        if (left != i) {
            flight->begun[left] = flight->begun[i];
            memcpy(flight->requests + (size_t)left * request_bytes,
                   flight->requests + (size_t)i * request_bytes, request_bytes);
        }
        left++;
    }
    flight->count = left;
}

void kumi_flight_end(struct kumi_flight *flight)
{
    free(flight->requests);
    free(flight->statuses);
    free(flight->begun);
    free(flight->finished);
}
