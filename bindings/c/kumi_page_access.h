/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Access to the phase page for kumi_phase.c and the MPI wrappers. Programs use kumi.h instead. All
 * symbols are hidden, so the preload library and a program never bind to each other's copy.
 */
#ifndef KUMI_PAGE_ACCESS_H
#define KUMI_PAGE_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "kumi_phase_page.h"

#define KUMI_HIDDEN __attribute__((visibility("hidden")))

/*
 * Returns the page of this process, or NULL outside `kumi run`. The first call maps it. Any thread
 * may call it.
 */
KUMI_HIDDEN struct kumi_phase_page *kumi_page(void);

/*
 * Returns the index of `name`, and adds it if it is new. With its NUL, `name` has at most
 * KUMI_PHASE_NAME_BYTES.
 */
KUMI_HIDDEN uint32_t kumi_page_index(struct kumi_phase_page *page, const char *name);

/* Returns whether the program has an open scope. If so, writes the scope's phase to `*phase`. */
KUMI_HIDDEN bool kumi_page_scope(struct kumi_phase_page *page, uint32_t *phase);

/*
 * Switches the phase. The stores are relaxed, because the kernel reads each alone. Threads may lose
 * a count of each other, which only joins two calls into one.
 */
static inline void kumi_page_switch(struct kumi_phase_page *page, uint32_t phase)
{
    uint32_t switches = __atomic_load_n(&page->switches, __ATOMIC_RELAXED);
    __atomic_store_n(&page->switches, switches + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&page->phase, phase, __ATOMIC_RELAXED);
}

static inline uint32_t kumi_page_phase(const struct kumi_phase_page *page)
{
    return __atomic_load_n(&page->phase, __ATOMIC_RELAXED);
}

#endif
