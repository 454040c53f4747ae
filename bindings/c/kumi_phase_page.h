/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The phase page: how a process tells the kernel which communication phase it is in.
 *
 * `kumi run` makes the page (an array map that can be mapped), leaves it open in the process it
 * starts and puts the descriptor's number into KUMI_PHASE_FD. Whoever knows about phases (the MPI
 * wrappers of libkumi_preload.so, kumi_phase.c in a program, the Python module) maps it shared and
 * writes; the TCP programs in the kernel only read `phase`, one aligned 4-byte load.
 *
 *      0        4        8        12       16                24       28            64
 *      +--------+--------+--------+--------+-----------------+--------+-------------+
 *      |  abi   | phase  | named  |  lock  |  scope_holder   | scope  | reserved[9] |
 *      +--------+--------+--------+--------+-----------------+--------+-------------+
 *   64 | names[32][64], NUL-terminated                                              |
 *      +----------------------------------------------------------------------------+
 * 2112 | pad, zero, up to 4096                                                      |
 *      +----------------------------------------------------------------------------+
 *
 * All fields have the byte order of the machine: the page never leaves it.
 * `lock`, `scope_holder` and `scope` are for the writers among themselves, so that several copies
 * of the code in one process (the preload library, a program that links kumi_phase.c, Python) act
 * as one. The kernel ignores them. The maker of the page writes abi, named = 1 and names[0], and
 * zero everywhere else; a page that is zero but for abi is completed by who maps it first.
 */
#ifndef KUMI_PHASE_PAGE_H
#define KUMI_PHASE_PAGE_H

#include <stddef.h>
#include <stdint.h>

enum {
    KUMI_PHASE_ABI = 1,
    /* One page: the smallest thing that can be mapped. */
    KUMI_PHASE_PAGE_BYTES = 4096,
    /* The kernel keeps one congestion state for each phase, so the number is small. A program of
     * the papers' kind has fewer than ten; 32 holds every marked MPI call that one program uses. */
    KUMI_PHASES_MAX = 32,
    /* With the NUL. The longest MPI name, MPI_Ineighbor_allgatherv, takes 25. */
    KUMI_PHASE_NAME_BYTES = 64,
    /* The phase before anybody says otherwise, and the one outside of collectives. */
    KUMI_PHASE_POINT_TO_POINT = 0,
    /* Stands for all phases that no longer have a place of their own. */
    KUMI_PHASE_OTHER = KUMI_PHASES_MAX - 1,
};

#define KUMI_PHASE_POINT_TO_POINT_NAME "point-to-point"
#define KUMI_PHASE_OTHER_NAME "other"
/* Names the environment variable that holds the number of the page's descriptor. */
#define KUMI_PHASE_FD_ENV "KUMI_PHASE_FD"

struct kumi_phase_page {
    /* KUMI_PHASE_ABI, written by who made the page. Any other value: leave the page alone. */
    uint32_t abi;
    /* The phase the process is in, an index into names. A switch is one 4-byte store here. */
    uint32_t phase;
    /* How many names are valid; only grows, stored with release order after the name. */
    uint32_t named;
    /* 0, or the process id of who is adding a name. */
    uint32_t lock;
    /* Low half: the process whose scopes are open. High half: how many. 0: none. One word, so
     * that both change in one compare-exchange. */
    uint64_t scope_holder;
    /* 0, or 1 + the phase of the innermost scope the program itself has open. */
    uint32_t scope;
    /* Must be zero. */
    uint32_t reserved[9];
    char names[KUMI_PHASES_MAX][KUMI_PHASE_NAME_BYTES];
    unsigned char pad[KUMI_PHASE_PAGE_BYTES - 64 - KUMI_PHASES_MAX * KUMI_PHASE_NAME_BYTES];
};

_Static_assert(sizeof(struct kumi_phase_page) == KUMI_PHASE_PAGE_BYTES, "the page is one page");
_Static_assert(offsetof(struct kumi_phase_page, phase) == 4, "the kernel loads phase at 4");
_Static_assert(offsetof(struct kumi_phase_page, named) == 8, "layout");
_Static_assert(offsetof(struct kumi_phase_page, lock) == 12, "layout");
_Static_assert(offsetof(struct kumi_phase_page, scope_holder) == 16, "layout");
_Static_assert(offsetof(struct kumi_phase_page, scope) == 24, "layout");
_Static_assert(offsetof(struct kumi_phase_page, names) == 64, "layout");

#endif
