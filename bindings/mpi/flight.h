/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Steps of a plan that are in flight. */
#ifndef KUMI_MPI_FLIGHT_H
#define KUMI_MPI_FLIGHT_H

#include "communicator.h"

/*
 * Steps begun and not yet completed. The requests are an array, as MPI_Testsome expects, and
 * `begun` has the step of each request at the same index.
 */
struct kumi_flight {
    char *requests;
    char *statuses;
    struct kumi_begun {
        int64_t number;
        struct kumi_coll_step step;
        /* Received bytes that are to be combined; NULL for other steps. */
        char *scratch;
    } * begun;
    int *finished;
    int count, room;
};

/* Makes room for one more step. Returns false if there is no memory. */
KUMI_HIDDEN bool kumi_flight_room(struct kumi_flight *flight, const struct kumi_abi *abi);

/* Removes completed steps. The others keep their order. */
KUMI_HIDDEN void kumi_flight_close_up(struct kumi_flight *flight, size_t request_bytes);

KUMI_HIDDEN void kumi_flight_end(struct kumi_flight *flight);

#endif
