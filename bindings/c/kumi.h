/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tells Kumihimo which communication phase this program is in.
 *
 * A TCP connection that is tuned for an all-to-all is tuned wrongly for a halo exchange. Under
 * `kumi run -- PROGRAM` the kernel keeps what a connection has learned for each phase by itself,
 * and takes it out again when the program comes back to that phase (after Matsuda et al., "TCP
 * Layer Adapted to MPI Library"). MPI collectives are marked without a change to the program; this
 * interface is for phases that only the program knows:
 *
 *     kumi_phase_begin("halo exchange");
 *     ... send and receive ...
 *     kumi_phase_end();
 *
 * or, where the name is looked up once and a switch costs a few nanoseconds:
 *
 *     static kumi_phase_t halo;
 *     halo = kumi_phase("halo exchange");
 *     kumi_phase_enter(halo);
 *     ...
 *     kumi_phase_leave();
 *
 * Compile kumi_phase.c into the program. Not under `kumi run`, everything here does nothing and
 * returns 0.
 *
 * Scopes nest, also with those of kumi.f90 and the Python module; the innermost one holds. MPI
 * collectives inside of a scope have their own phase while they run and then give it back. The end
 * of the outermost scope leaves the process in "point-to-point".
 *
 * Threads: a process is in one phase, not each of its threads. Open and close scopes in the thread
 * that communicates. Each thread has its own nesting, so that threads that do it at the same time
 * do no harm: the scope opened last holds, and once all are closed the phase is point-to-point.
 *
 * fork: the child shares its parent's page, so a phase either of them enters holds for both.
 */
#ifndef KUMI_H
#define KUMI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A phase with its name already looked up. Valid in this process, until it ends. */
typedef int32_t kumi_phase_t;

/* How many scopes can be open in one thread. Deeper ones are counted and have no effect: deeper
 * nesting than this is a scope in a recursion, whose phase is the same on each level. */
enum { KUMI_SCOPES_MAX = 64 };

/*
 * The phase of this name, which is made if it is new. `name` has 1 to 63 bytes; it is copied.
 * Returns -1 for any other name. There is room for 30 names; further ones share the phase "other",
 * which is said once on stderr.
 */
kumi_phase_t kumi_phase(const char *name);

/*
 * Opens a scope: the program is in this phase until the matching kumi_phase_leave(). Returns 0,
 * EINVAL if `phase` is not from kumi_phase(), or EOVERFLOW beyond KUMI_SCOPES_MAX. A scope is open
 * after an error too, without effect on the phase, so that who does not look stays balanced.
 */
int kumi_phase_enter(kumi_phase_t phase);

/* Closes the innermost scope. Returns 0, or EINVAL if this thread has none open. */
int kumi_phase_leave(void);

/* kumi_phase_enter(kumi_phase(name)). About 20 ns for a name that was used before. */
int kumi_phase_begin(const char *name);

/* kumi_phase_leave(), by the name that goes with kumi_phase_begin(). */
int kumi_phase_end(void);

#ifdef __cplusplus
}
#endif

#endif
