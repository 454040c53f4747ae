/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Each value is changed by a compare-and-swap of the processor, as Wind's own operations are. */
#include "compute.h"

#include <string.h>

size_t datatype_bytes(enum fi_datatype datatype)
{
    switch (datatype) {
    case FI_INT8:
    case FI_UINT8:
        return 1;
    case FI_INT16:
    case FI_UINT16:
        return 2;
    case FI_INT32:
    case FI_UINT32:
    case FI_FLOAT:
        return 4;
    case FI_INT64:
    case FI_UINT64:
    case FI_DOUBLE:
        return 8;
    default:
        return 0;
    }
}

bool is_floating(enum fi_datatype datatype)
{
    return datatype == FI_FLOAT || datatype == FI_DOUBLE;
}

/* Operations on numbers of any type. `after` stays `before` for a comparison that fails. */
#define NUMBER_CASES                                  \
    case FI_MIN:                                      \
        after = operand < before ? operand : before;  \
        break;                                        \
    case FI_MAX:                                      \
        after = operand > before ? operand : before;  \
        break;                                        \
    case FI_PROD:                                     \
        after = before * operand;                     \
        break;                                        \
    case FI_LOR:                                      \
        after = before || operand;                    \
        break;                                        \
    case FI_LAND:                                     \
        after = before && operand;                    \
        break;                                        \
    case FI_LXOR:                                     \
        after = !before != !operand;                  \
        break;                                        \
    case FI_ATOMIC_WRITE:                             \
        after = operand;                              \
        break;                                        \
    case FI_CSWAP:                                    \
        after = compare == before ? operand : before; \
        break;                                        \
    case FI_CSWAP_NE:                                 \
        after = compare != before ? operand : before; \
        break;                                        \
    case FI_CSWAP_LE:                                 \
        after = compare <= before ? operand : before; \
        break;                                        \
    case FI_CSWAP_LT:                                 \
        after = compare < before ? operand : before;  \
        break;                                        \
    case FI_CSWAP_GE:                                 \
        after = compare >= before ? operand : before; \
        break;                                        \
    case FI_CSWAP_GT:                                 \
        after = compare > before ? operand : before;  \
        break;                                        \
    case FI_SUM:                                      \
        after = before + operand;                     \
        break;

#define INTEGER_CASES                                      \
    case FI_BOR:                                           \
        after = before | operand;                          \
        break;                                             \
    case FI_BAND:                                          \
        after = before & operand;                          \
        break;                                             \
    case FI_BXOR:                                          \
        after = before ^ operand;                          \
        break;                                             \
    case FI_MSWAP:                                         \
        after = (before & ~compare) | (operand & compare); \
        break;

/* Defines a function that changes the value at `memory`. `word` is an unsigned integer as long. */
#define DEFINE_UPDATE(type, word, cases)                                                           \
    static void update_##type(uint8_t *memory, enum fi_op operation, const uint8_t *operand_bytes, \
                              const uint8_t *compare_bytes, uint8_t *result)                       \
    {                                                                                              \
        type operand = 0, compare = 0, before, after;                                              \
        word seen = __atomic_load_n((word *)memory, __ATOMIC_ACQUIRE), next;                       \
        if (operand_bytes != NULL)                                                                 \
            memcpy(&operand, operand_bytes, sizeof operand);                                       \
        if (compare_bytes != NULL)                                                                 \
            memcpy(&compare, compare_bytes, sizeof compare);                                       \
        do {                                                                                       \
            memcpy(&before, &seen, sizeof before);                                                 \
            switch (operation) {                                                                   \
                cases default : after = before;                                                    \
            }                                                                                      \
            memcpy(&next, &after, sizeof next);                                                    \
        } while (!__atomic_compare_exchange_n((word *)memory, &seen, next, true, __ATOMIC_ACQ_REL, \
                                              __ATOMIC_ACQUIRE));                                  \
        if (result != NULL)                                                                        \
            memcpy(result, &before, sizeof before);                                                \
    }

DEFINE_UPDATE(int8_t, uint8_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(uint8_t, uint8_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(int16_t, uint16_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(uint16_t, uint16_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(int32_t, uint32_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(uint32_t, uint32_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(int64_t, uint64_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(uint64_t, uint64_t, NUMBER_CASES INTEGER_CASES)
DEFINE_UPDATE(float, uint32_t, NUMBER_CASES)
DEFINE_UPDATE(double, uint64_t, NUMBER_CASES)

typedef void update_function(uint8_t *, enum fi_op, const uint8_t *, const uint8_t *, uint8_t *);

static update_function *update_of(enum fi_datatype datatype)
{
    switch (datatype) {
    case FI_INT8:
        return update_int8_t;
    case FI_UINT8:
        return update_uint8_t;
    case FI_INT16:
        return update_int16_t;
    case FI_UINT16:
        return update_uint16_t;
    case FI_INT32:
        return update_int32_t;
    case FI_UINT32:
        return update_uint32_t;
    case FI_INT64:
        return update_int64_t;
    case FI_UINT64:
        return update_uint64_t;
    case FI_FLOAT:
        return update_float;
    default:
        return update_double;
    }
}

void compute(uint8_t *memory, enum fi_datatype datatype, enum fi_op operation, size_t count,
             const uint8_t *operands, const uint8_t *compares, uint8_t *results)
{
    update_function *update = update_of(datatype);
    size_t bytes = datatype_bytes(datatype);
    for (size_t at = 0; at < count * bytes; at += bytes)
        update(memory + at, operation, operands == NULL ? NULL : operands + at,
               compares == NULL ? NULL : compares + at, results == NULL ? NULL : results + at);
}
