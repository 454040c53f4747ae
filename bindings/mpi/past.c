/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Posts the receives that show which calls this rank is past. */

#include "past.h"
#include "tags.h"

_Static_assert(sizeof(uint64_t) == KUMI_REQUEST_BYTES_MAX, "a request has one place");

int kumi_past_tag(int number, uint64_t call)
{
    return kumi_tag(number, KUMI_TAG_PAST + (int)(call % KUMI_TAG_CALLS));
}

static void take_back(struct kumi_past *past, int at, const struct kumi_abi *abi)
{
    if (past->is_posted[at] && abi->Cancel(&past->requests[at]) == 0)
        abi->Wait(&past->requests[at], abi->status_ignore);
    past->is_posted[at] = false;
}

void kumi_past_note(struct kumi_past *past, const struct kumi_abi *abi, int number, kumi_handle inside)
{
    uint64_t call = past->calls++;
    int at = (int)(call % KUMI_PAST_KEPT);
    if (number < 0)
        return;
    take_back(past, at, abi);
    past->is_posted[at] = abi->Irecv(NULL, 0, abi->byte, abi->any_source, kumi_past_tag(number, call), inside,
                                     &past->requests[at]) == 0;
}

void kumi_past_end(struct kumi_past *past, const struct kumi_abi *abi)
{
    for (int at = 0; at < KUMI_PAST_KEPT; at++)
        take_back(past, at, abi);
}
