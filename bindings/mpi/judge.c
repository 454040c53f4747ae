/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Has the MPI library check arguments, on a communicator of one rank and with one element. */

#include "judge.h"

/*
 * Maximum size of an element of a basic datatype, in bytes. MPI_C_LONG_DOUBLE_COMPLEX has 32, the
 * pair types have fewer.
 */
enum { ELEMENT_BYTES_MAX = 64 };

bool kumi_is_valid(const struct kumi_abi *abi, const struct kumi_buffer *buffer)
{
    if (buffer->type == abi->no_type || buffer->count < 0)
        return false;
    for (int i = 0; buffer->counts != NULL && i < buffer->blocks; i++)
        if (buffer->counts[i] < 0)
            return false;
    return true;
}

int kumi_judge_buffers(const struct call *call, const struct kumi_buffer *sent,
                       const struct kumi_buffer *received)
{
    if (sent->at != received->at || sent->at == NULL || (sent->counts == NULL && sent->count == 0) ||
        (received->counts == NULL && received->count == 0))
        return 0;
    /* Moves one element onto itself, which changes nothing. */
    return call->of->abi->Allgather(sent->at, 1, received->type, received->at, 1, received->type,
                                    call->of->job->alone);
}

int kumi_judge_reduction(const struct call *call, const char *sent, char *received, kumi_handle type,
                         kumi_handle operation)
{
    /*
     * Programs repeat a few pairs, so the last valid pair is remembered and not checked again. A
     * handle may be reused after its operation was freed. This is harmless: only the program's own
     * operations can be freed, and they are valid for every datatype.
     */
    static _Thread_local kumi_handle right_type, right_operation;
    const struct kumi_abi *abi = call->of->abi;
    bool is_aliased = sent == received && sent != NULL && (const void *)sent != abi->in_place;
    if (!is_aliased && type == right_type && operation == right_operation)
        return 0;
    char from[ELEMENT_BYTES_MAX] = {0}, to[ELEMENT_BYTES_MAX];
    int error = is_aliased ? abi->Allreduce(sent, received, 1, type, operation, call->of->job->alone)
                           : abi->Allreduce(from, to, 1, type, operation, call->of->job->alone);
    if (error == 0) {
        right_type = type;
        right_operation = operation;
    }
    return error;
}
