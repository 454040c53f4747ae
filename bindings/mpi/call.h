/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A call of a collective that is replaced, and its arguments by their places. */
#ifndef KUMI_MPI_CALL_H
#define KUMI_MPI_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "blocks.h"
#include "communicator.h"

struct call {
    const struct kumi_communicator *of;
    const uintptr_t *arguments;
    int result;
};

static inline int integer(const struct call *call, int at)
{
    return (int)(int32_t)call->arguments[at];
}

static inline char *memory(const struct call *call, int at)
{
    return (char *)call->arguments[at];
}

static inline const int *integers(const struct call *call, int at)
{
    return (const int *)call->arguments[at];
}

static inline bool is_in_place(const struct call *call, int at)
{
    return (const void *)call->arguments[at] == call->of->abi->in_place;
}

/* Buffer, count and datatype, in this order from an argument on, of so many blocks. */
static inline struct kumi_buffer buffer(const struct call *call, int at, int blocks)
{
    return (struct kumi_buffer){.at = memory(call, at),
                                .count = integer(call, at + 1),
                                .type = call->arguments[at + 2],
                                .blocks = blocks};
}

/* Buffer, counts, displacements and datatype. */
static inline struct kumi_buffer buffers(const struct call *call, int at, int blocks)
{
    return (struct kumi_buffer){.at = memory(call, at),
                                .counts = integers(call, at + 1),
                                .places = integers(call, at + 2),
                                .type = call->arguments[at + 3],
                                .blocks = blocks};
}

static inline bool is_root_right(const struct call *call, int root)
{
    return root >= 0 && root < call->of->size;
}

#endif
