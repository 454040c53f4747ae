/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The phase page, with which a process names its communication phase for the kernel.
 *
 * `kumi run` creates the page (a BPF array map that can be mapped) and leaves it open in the
 * process that it starts. KUMI_PHASE_FD contains the number of the descriptor. The writers map the
 * page shared: the MPI wrappers of libkumi_preload.so, kumi_phase.c in a program, and the Python
 * module. The kernel's TCP programs read `phase` with one aligned 4-byte load. They read `names` to
 * show them, and to find all-to-alls.
 *
 *      0        4        8        12       16                24       28            64
 *      +--------+--------+--------+--------+-----------------+--------+-------------+
 *      |  abi   | phase  | named  |  lock  |  scope_holder   | scope  | reserved[9] |
 *      +--------+--------+--------+--------+-----------------+--------+-------------+
 *   64 | names[32][64], NUL-terminated                                              |
 *      +----------------------------------------------------------------------------+
 * 2112 | switches | peers | fair_share_bytes_ps | burst_bytes | pad, zero, to 4096    |
 *      +----------------------------------------------------------------------------+
 *
 * All fields have the byte order of the machine, because the page never leaves it.
 *
 * `lock`, `scope_holder` and `scope` coordinate the writers. Several copies of the code may be in
 * one process: the preload library, a program that links kumi_phase.c, and Python. The kernel
 * ignores these fields.
 *
 * The creator of the page writes `abi`, `named` = 1 and names[0], and zero everywhere else. A page
 * that is zero except for `abi` is completed by the first process that maps it.
 */
#ifndef KUMI_PHASE_PAGE_H
#define KUMI_PHASE_PAGE_H

#include <stddef.h>
#include <stdint.h>

enum {
    KUMI_PHASE_ABI = 1,
    /* One page, the smallest unit that can be mapped. */
    KUMI_PHASE_PAGE_BYTES = 4096,
    /*
     * Maximum number of phases, and of congestion states that the kernel keeps for a connection.
     * Programs as in the GridMPI paper have fewer than ten phases. 32 suffices for all marked MPI
     * calls that one program uses.
     */
    KUMI_PHASES_MAX = 32,
    /* Size of a name with its NUL. The longest MPI name, MPI_Ineighbor_allgatherv, takes 25. */
    KUMI_PHASE_NAME_BYTES = 64,
    /* Initial phase of a process, and the phase outside collectives and scopes. */
    KUMI_PHASE_POINT_TO_POINT = 0,
    /* Shared by all phases beyond the number for which there is room. */
    KUMI_PHASE_OTHER = KUMI_PHASES_MAX - 1,
};

#define KUMI_PHASE_POINT_TO_POINT_NAME "point-to-point"
#define KUMI_PHASE_OTHER_NAME "other"
/* Name of the environment variable that contains the number of the page's descriptor. */
#define KUMI_PHASE_FD_ENV "KUMI_PHASE_FD"

struct kumi_phase_page {
    /* KUMI_PHASE_ABI, written by the creator. A page with another value must not be used. */
    uint32_t abi;
    /* Current phase of the process, an index into `names`. A switch is one 4-byte store. */
    uint32_t phase;
    /* Number of valid names. It only grows, and is stored with release order after the name. */
    uint32_t named;
    /* Process ID of the writer that adds a name, or 0. */
    uint32_t lock;
    /*
     * Low half: ID of the process with open scopes. High half: number of its open scopes. 0 if no
     * scope is open. One field, so that one compare-exchange changes both.
     */
    uint64_t scope_holder;
    /* 1 + phase of the program's innermost open scope, or 0. */
    uint32_t scope;
    /* Must be zero. */
    uint32_t reserved[9];
    char names[KUMI_PHASES_MAX][KUMI_PHASE_NAME_BYTES];
    /*
     * Number of phases that were begun or ended, modulo 2^32. It tells the kernel's programs one
     * call of an all-to-all from the next.
     */
    uint32_t switches;
    /* Ranks of the job on other hosts, written after the fair share. 0 if it is not known. */
    uint32_t peers;
    /*
     * Bytes per second of a connection in an all-to-all of the job at which all blocks end
     * together. 0 if it is not known.
     */
    uint64_t fair_share_bytes_ps;
    /* Bytes that each of these connections may send at once. */
    uint32_t burst_bytes;
    unsigned char pad[KUMI_PHASE_PAGE_BYTES - 84 - KUMI_PHASES_MAX * KUMI_PHASE_NAME_BYTES];
};

_Static_assert(sizeof(struct kumi_phase_page) == KUMI_PHASE_PAGE_BYTES, "the page is one page");
_Static_assert(offsetof(struct kumi_phase_page, phase) == 4, "the kernel loads phase at 4");
_Static_assert(offsetof(struct kumi_phase_page, named) == 8, "layout");
_Static_assert(offsetof(struct kumi_phase_page, lock) == 12, "layout");
_Static_assert(offsetof(struct kumi_phase_page, scope_holder) == 16, "layout");
_Static_assert(offsetof(struct kumi_phase_page, scope) == 24, "layout");
_Static_assert(offsetof(struct kumi_phase_page, names) == 64, "layout");
_Static_assert(offsetof(struct kumi_phase_page, switches) == 2112, "layout");
_Static_assert(offsetof(struct kumi_phase_page, peers) == 2116, "layout");
_Static_assert(offsetof(struct kumi_phase_page, fair_share_bytes_ps) == 2120, "layout");
_Static_assert(offsetof(struct kumi_phase_page, burst_bytes) == 2128, "layout");

#endif
