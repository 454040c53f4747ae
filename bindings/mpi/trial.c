/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Tries the other way of a call from time to time. */

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "trial.h"

/*
 * Part of the usual way's time below which the other way replaces it. Two series of one way differ
 * by a few percent.
 */
static const double FASTER = 0.95;

/*
 * Calls before the first comparison; factor of the distance after each; largest distance. With the
 * factor also goes the ratio of the two times. So the calls that the slower way costs are at most a
 * quarter of the time until the second comparison, and a few percent later.
 */
enum { DISTANCE_FIRST = 4, DISTANCE_FACTOR = 4, DISTANCE_MAX = 4096 };

enum { NANOSECONDS = 1000000000 };

static unsigned long now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (unsigned long)at.tv_sec * NANOSECONDS + (unsigned long)at.tv_nsec;
}

struct kumi_trial *kumi_trial_of(struct kumi_trials *trials, const char *name, uint64_t bytes,
                                 struct kumi_ways ways)
{
    unsigned length_class = 63 - (unsigned)__builtin_clzll(bytes | 1);
    for (int i = 0; i < KUMI_TRIALS_MAX; i++) {
        struct kumi_trial *trial = &trials->of[i];
        if (trial->name == NULL) {
            trial->name = name;
            trial->length_class = length_class;
            trial->ways = ways;
            trial->distance = DISTANCE_FIRST;
        }
        if (trial->length_class == length_class && strcmp(trial->name, name) == 0)
            return trial;
    }
    return NULL;
}

/* Returns the sum of the times of a series, in nanoseconds, and at least 1. */
static unsigned long sum(const unsigned long *times)
{
    unsigned long all = 1;
    for (int i = 0; i < KUMI_TRIAL_COUNTED; i++)
        all += times[i];
    return all;
}

/* Prints the mean time of a call in each way, and the choice. */
static void tell(const struct kumi_trial *trial, unsigned long own, unsigned long library)
{
    static const char *const choices[] = {"left to the MPI library", "planned", "all at once"};
    static const char *const own_ways[] = {[KUMI_BY_PLAN] = "by plan", [KUMI_AT_ONCE] = "all at once"};
    enum kumi_way usual = trial->ways.usual;
    double milliseconds = KUMI_TRIAL_COUNTED * 1e6;
    fprintf(stderr, "kumi: %s from %llu bytes: %.3f ms %s, %.3f ms by the MPI library: %s\n", trial->name,
            1ULL << trial->length_class, (double)own / milliseconds,
            own_ways[usual == KUMI_BY_LIBRARY ? trial->ways.other : usual], (double)library / milliseconds,
            choices[usual]);
}

/* Makes the faster way the usual one. */
static void choose(struct kumi_trial *trial, bool is_told)
{
    unsigned long other = sum(trial->longest[KUMI_TRIAL_OTHER]);
    unsigned long usual = sum(trial->longest[KUMI_TRIAL_USUAL]);
    bool was_library = trial->ways.usual == KUMI_BY_LIBRARY;
    if ((double)other < (double)usual * FASTER)
        trial->ways = (struct kumi_ways){.usual = trial->ways.other, .other = trial->ways.usual};
    if (is_told)
        tell(trial, was_library ? other : usual, was_library ? usual : other);
    double ratio = other > usual ? (double)other / (double)usual : (double)usual / (double)other;
    double distance = trial->distance * DISTANCE_FACTOR * ratio;
    trial->distance = distance < DISTANCE_MAX ? (unsigned)distance : DISTANCE_MAX;
    trial->calls = 0;
}

enum kumi_way kumi_trial_begin(struct kumi_trial *trial, const struct kumi_abi *abi, kumi_handle comm,
                               bool is_told, int *error)
{
    *error = 0;
    if (trial->is_pending) {
        trial->is_pending = false;
        *error = abi->Wait(trial->request, abi->status_ignore);
        if (*error != 0)
            return trial->ways.usual;
        choose(trial, is_told);
    }
    unsigned call = trial->calls++;
    trial->time = NULL;
    if (call < trial->distance)
        return trial->ways.usual;
    call -= trial->distance;
    unsigned series = call / KUMI_TRIAL_SERIES, at = call % KUMI_TRIAL_SERIES;
    if (series == KUMI_TRIAL_SERIES_COUNT) {
        *error = abi->Iallreduce(trial->own, trial->longest, KUMI_TRIAL_SERIES_COUNT * KUMI_TRIAL_COUNTED,
                                 abi->unsigned_long, abi->maximum, comm, trial->request);
        trial->is_pending = *error == 0;
        return trial->ways.usual;
    }
    if (at > 0) {
        trial->time = &trial->own[series][at - 1];
        trial->began = now();
    }
    return series == KUMI_TRIAL_USUAL ? trial->ways.usual : trial->ways.other;
}

void kumi_trial_end(struct kumi_trial *trial)
{
    if (trial->time != NULL)
        *trial->time = now() - trial->began;
    trial->time = NULL;
}

void kumi_trials_end(struct kumi_trials *trials, const struct kumi_abi *abi)
{
    for (int i = 0; i < KUMI_TRIALS_MAX; i++) {
        if (trials->of[i].is_pending)
            abi->Wait(trials->of[i].request, abi->status_ignore);
        trials->of[i].is_pending = false;
    }
}
