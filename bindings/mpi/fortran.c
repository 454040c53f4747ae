/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Converts the arguments of a Fortran call to those of the C function. */

#include "fortran.h"

static uintptr_t handle_from_fortran(const struct kumi_abi *abi, enum kumi_handle_kind kind, int32_t handle)
{
    return abi->from_fortran[kind] == NULL ? (uintptr_t)(uint32_t)handle : abi->from_fortran[kind](handle);
}

/*
 * Returns whether an address represents a constant: one of `spellings`, or the value of the
 * variable at `at`.
 */
static bool stands_for(const void *address, const void *const *spellings, const void *const *at)
{
    for (int i = 0; i < KUMI_FORTRAN_SPELLINGS; i++)
        if (address == spellings[i])
            return true;
    return at != NULL && address == *at;
}

void kumi_from_fortran(const struct kumi_abi *abi, const char *kinds, const uintptr_t *fortran,
                       uintptr_t *arguments)
{
    for (int i = 0; kinds[i] != '\0'; i++) {
        const void *at = (const void *)fortran[i];
        arguments[i] = fortran[i];
        switch (kinds[i]) {
        case 'b':
            if (at == NULL)
                break;
            if (stands_for(at, abi->fortran_in_place, abi->fortran_in_place_at))
                arguments[i] = (uintptr_t)abi->in_place;
            else if (stands_for(at, abi->fortran_bottom, abi->fortran_bottom_at))
                arguments[i] = (uintptr_t)NULL;
            break;
        case 'i':
            arguments[i] = (uintptr_t)(uint32_t) * (const int32_t *)at;
            break;
        case 't':
            arguments[i] = handle_from_fortran(abi, KUMI_DATATYPE, *(const int32_t *)at);
            break;
        case 'o':
            arguments[i] = handle_from_fortran(abi, KUMI_OPERATION, *(const int32_t *)at);
            break;
        case 'c':
            arguments[i] = handle_from_fortran(abi, KUMI_COMMUNICATOR, *(const int32_t *)at);
            break;
        default:
            break;
        }
    }
}
