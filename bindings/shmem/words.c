/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Atomic operations on words of 4 and 8 bytes, from those of Wind on aligned words of 8 bytes:
 * addition, comparison and swap, swap, and the store of some bits. The others are a loop of
 * comparison and swap.
 */
#include "context.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lower half of a word comes first on little-endian processors only"
#endif

/* The aligned word around an object: at a PE, or in this one's memory. */
struct word {
    const char *call;
    int pe;
    uint64_t *here;
    struct kumi_wind_place place;
    /* Bits of the object in the word. */
    unsigned shift;
    uint64_t mask;
};

static struct word word_at(const char *call, void *dest, size_t bytes, int pe)
{
    if ((uintptr_t)dest % bytes != 0)
        fail(call, "%p is not aligned to its %zu bytes", dest, bytes);
    struct word word = {.call = call, .pe = pe, .place = place_of(call, dest, bytes, pe)};
    unsigned before = (uintptr_t)dest % 8;
    word.place.offset -= before;
    word.here = pe == job.me ? (uint64_t *)((char *)dest - before) : NULL;
    word.shift = before * 8;
    word.mask = bytes == 8 ? ~0ull : 0xffffffffull << word.shift;
    return word;
}

static uint64_t add(const struct word *word, uint64_t value)
{
    char error[256];
    uint64_t before = 0;
    if (word->here != NULL)
        return __atomic_fetch_add(word->here, value, __ATOMIC_SEQ_CST);
    check(
        word->call, word->pe,
        kumi_wind_fetch_add(job.node, job.peers[word->pe], &word->place, value, &before, error, sizeof error),
        error);
    return before;
}

static uint64_t compare_swap(const struct word *word, uint64_t expected, uint64_t value)
{
    char error[256];
    uint64_t before = expected;
    if (word->here != NULL) {
        __atomic_compare_exchange_n(word->here, &before, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return before;
    }
    check(word->call, word->pe,
          kumi_wind_compare_swap(job.node, job.peers[word->pe], &word->place, expected, value, &before, error,
                                 sizeof error),
          error);
    return before;
}

static uint64_t masked_store(const struct word *word, uint64_t mask, uint64_t value)
{
    char error[256];
    uint64_t before = 0;
    if (word->here != NULL) {
        before = __atomic_load_n(word->here, __ATOMIC_SEQ_CST);
        while (!__atomic_compare_exchange_n(word->here, &before, (before & ~mask) | (value & mask), false,
                                            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            ;
        return before;
    }
    check(word->call, word->pe,
          kumi_wind_masked_store(job.node, job.peers[word->pe], &word->place, mask, value, &before, error,
                                 sizeof error),
          error);
    return before;
}

/* An operation that is one of Wind's. */
struct step {
    bool is_add;
    /* Value to add; or bits to store, and their values. */
    uint64_t value, mask;
};

/* Returns false if Wind has no such operation on this word. */
static bool find_step(const struct word *word, enum word_operation operation, uint64_t value,
                      struct step *step)
{
    uint64_t shifted = value << word->shift;
    switch (operation) {
    case WORD_FETCH:
        *step = (struct step){.is_add = true};
        return true;
    case WORD_ADD:
        /* A carry out of the lower half would change the other one. */
        *step = (struct step){.is_add = true, .value = shifted};
        return word->mask >> 63;
    case WORD_SET:
        *step = (struct step){.mask = word->mask, .value = shifted};
        return true;
    case WORD_AND:
        *step = (struct step){.mask = word->mask & ~shifted};
        return true;
    case WORD_OR:
        *step = (struct step){.mask = word->mask & shifted, .value = shifted};
        return true;
    default:
        return false;
    }
}

/* Returns the word after an operation on its bits. */
static uint64_t apply(const struct word *word, enum word_operation operation, uint64_t before, uint64_t value)
{
    uint64_t operand = (before & word->mask) >> word->shift;
    uint64_t after = operation == WORD_ADD   ? operand + value
                     : operation == WORD_XOR ? operand ^ value
                                             : value;
    return (before & ~word->mask) | (after << word->shift & word->mask);
}

uint64_t word_fetch(const char *call, enum word_operation operation, void *dest, size_t bytes, uint64_t value,
                    uint64_t condition, int pe)
{
    struct word word = word_at(call, dest, bytes, pe);
    struct step step;
    uint64_t before;
    if (find_step(&word, operation, value, &step)) {
        before = step.is_add ? add(&word, step.value) : masked_store(&word, step.mask, step.value);
        return (before & word.mask) >> word.shift;
    }
    uint64_t wanted = condition << word.shift & word.mask;
    /* The first guess at the word. It is right for a comparison on 8 bytes, and the loop ends. */
    uint64_t guess = operation == WORD_COMPARE_SWAP ? wanted : add(&word, 0);
    for (;;) {
        before = compare_swap(&word, guess, apply(&word, operation, guess, value));
        bool is_other = operation == WORD_COMPARE_SWAP && (before & word.mask) != wanted;
        if (before == guess || is_other)
            return (before & word.mask) >> word.shift;
        guess = before;
    }
}

void word_post(const char *call, struct kumi_shmem_context *context, enum word_operation operation,
               void *dest, size_t bytes, uint64_t value, int pe)
{
    char error[256];
    struct word word = word_at(call, dest, bytes, pe);
    struct step step;
    if (word.here != NULL || !find_step(&word, operation, value, &step)) {
        (void)word_fetch(call, operation, dest, bytes, value, 0, pe);
        return;
    }
    mark_dirty(context, pe);
    int kind = step.is_add ? KUMI_WIND_FETCH_ADD : KUMI_WIND_MASKED_STORE;
    uint64_t first = step.is_add ? step.value : step.mask;
    check(call, pe,
          kumi_wind_post_atomic(job.node, job.peers[pe], &word.place, kind, first, step.value, error,
                                sizeof error),
          error);
}
