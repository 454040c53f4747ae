/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Posts the receives that show which calls this rank is past. */

#include "past.h"

_Static_assert(sizeof(uint64_t) == KUMI_REQUEST_BYTES_MAX, "a request has one place");
_Static_assert(1 << (KUMI_TAG_LEVELS - 1) == KUMI_TAG_CALLS, "the last level is that of KUMI_TAG_CALLS");

/*
 * On level n, a multiple of 2^n has one of KUMI_TAG_CALLS / 2^n + 2 tags. A rank that is not past
 * the call keeps the receive of an earlier multiple, at most 2^n before its own call. The question
 * is about a multiple less than 2^n after the asking rank's call. So their tags can be equal only
 * if the calls of the two ranks are more than KUMI_TAG_CALLS apart.
 */
int kumi_past_tag(int number, int level, uint64_t call)
{
    uint64_t multiple_index = (call + (1ULL << level) - 1) >> level;
    int tags = (KUMI_TAG_CALLS >> level) + 2;
    /* The sum of `tags` of all levels before. */
    int first_tag = 2 * (KUMI_TAG_CALLS - (KUMI_TAG_CALLS >> level)) + 2 * level;
    return kumi_tag(number, KUMI_TAG_PAST + first_tag + (int)(multiple_index % (uint64_t)tags));
}

static void take_back(struct kumi_past *past, int level, const struct kumi_abi *abi)
{
    if (past->is_posted[level] && abi->Cancel(&past->requests[level]) == 0)
        abi->Wait(&past->requests[level], abi->status_ignore);
    past->is_posted[level] = false;
}

void kumi_past_note(struct kumi_past *past, const struct kumi_abi *abi, int number, kumi_handle inside)
{
    uint64_t call = past->calls++;
    if (number < 0)
        return;
    for (int level = 0; level < KUMI_TAG_LEVELS && call % (1ULL << level) == 0; level++) {
        take_back(past, level, abi);
        past->is_posted[level] =
            abi->Irecv(NULL, 0, abi->byte, abi->any_source, kumi_past_tag(number, level, call), inside,
                       &past->requests[level]) == 0;
    }
}

void kumi_past_end(struct kumi_past *past, const struct kumi_abi *abi)
{
    for (int level = 0; level < KUMI_TAG_LEVELS; level++)
        take_back(past, level, abi);
}
