/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Names the communication phase of this program for Kumihimo.
 *
 * TCP parameters that suit an all-to-all do not suit a halo exchange. Under `kumi run -- PROGRAM`
 * the kernel saves the parameters of each connection per phase. When the program returns to a
 * phase, the kernel restores them (GridMPI: Matsuda et al., "TCP Layer Adapted to MPI Library").
 * MPI collectives are marked without a change to the program. This interface is for phases that
 * only the program knows:
 *
 *     kumi_phase_begin("halo exchange");
 *     ... send and receive ...
 *     kumi_phase_end();
 *
 * or, to look up the name once, so that a switch costs a few nanoseconds:
 *
 *     static kumi_phase_t halo;
 *     halo = kumi_phase("halo exchange");
 *     kumi_phase_enter(halo);
 *     ...
 *     kumi_phase_leave();
 *
 * Compile kumi_phase.c into the program. Outside `kumi run`, all functions do nothing and return 0.
 *
 * Scopes nest, also with scopes of kumi.f90 and of the Python module. The innermost scope is in
 * effect. An MPI collective within a scope has its own phase while it runs. Then the scope's phase
 * is in effect again. After the outermost scope ends, the process is in "point-to-point".
 *
 * Threads: the phase belongs to the process, not to a thread. Open and close scopes in the thread
 * that communicates. Each thread has its own stack of scopes, so concurrent use is safe. The scope
 * that was opened last is in effect. When all are closed, the phase is "point-to-point".
 *
 * fork: the child shares its parent's page, so a phase that either of them enters applies to both.
 */
#ifndef KUMI_H
#define KUMI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handle of a phase: its index in the phase page. Valid in this process only. */
typedef int32_t kumi_phase_t;

/*
 * Maximum number of open scopes of a thread. Deeper scopes are counted and have no effect. Deeper
 * nesting comes from a scope in a recursive function, which has the same phase on each level.
 */
enum { KUMI_SCOPES_MAX = 64 };

/*
 * Returns the phase of this name, and adds it if it is new. `name` has 1 to 63 bytes and is copied.
 * Returns -1 for a name of another length. There is room for 30 names. Further names share the
 * phase "other", which is reported once on stderr.
 */
kumi_phase_t kumi_phase(const char *name);

/*
 * Opens a scope: the program is in this phase until the matching kumi_phase_leave(). Returns 0,
 * EINVAL if `phase` is not from kumi_phase(), or EOVERFLOW beyond KUMI_SCOPES_MAX. After an error
 * the scope is open too, without an effect on the phase. So calls stay balanced in a program that
 * ignores errors.
 */
int kumi_phase_enter(kumi_phase_t phase);

/* Closes the innermost scope. Returns 0, or EINVAL if this thread has no open scope. */
int kumi_phase_leave(void);

/* Same as kumi_phase_enter(kumi_phase(name)). Takes about 20 ns for a name that was used before. */
int kumi_phase_begin(const char *name);

/* Same as kumi_phase_leave(). */
int kumi_phase_end(void);

#ifdef __cplusplus
}
#endif

#endif
