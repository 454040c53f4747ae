/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What kumi_phase.c and the MPI wrappers both do with the page. Not for programs: they have kumi.h.
 * Everything is hidden, so the preload library and a program never bind to each other's copy.
 */
#ifndef KUMI_PAGE_ACCESS_H
#define KUMI_PAGE_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "kumi_phase_page.h"

#define KUMI_HIDDEN __attribute__((visibility("hidden")))

/* The page of this process, or NULL when it does not run under `kumi run`. Maps it when first
 * called. Any thread. */
KUMI_HIDDEN struct kumi_phase_page *kumi_page(void);

/* The index of `name`, which is added if it is new. `name` fits KUMI_PHASE_NAME_BYTES. */
KUMI_HIDDEN uint32_t kumi_page_index(struct kumi_phase_page *page, const char *name);

/* Whether the program itself has a scope open; then *phase is its phase. */
KUMI_HIDDEN bool kumi_page_scope(struct kumi_phase_page *page, uint32_t *phase);

/* The switch. Relaxed: the kernel reads nothing else along with it. */
static inline void kumi_page_switch(struct kumi_phase_page *page, uint32_t phase)
{
    __atomic_store_n(&page->phase, phase, __ATOMIC_RELAXED);
}

static inline uint32_t kumi_page_phase(const struct kumi_phase_page *page)
{
    return __atomic_load_n(&page->phase, __ATOMIC_RELAXED);
}

#endif
