/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Marks the phase from MPI calls.
 *
 *                       a marked collective begins
 *      point-to-point ──────────────────────────────► MPI_Alltoall, MPI_Allreduce, ...
 *            ▲                                              │
 *            └──────────────────────────────────────────────┘
 *              one long message, or several point-to-point calls
 *
 * The end of a collective does not switch back. An iterative program has a barrier or a small
 * message between two all-to-alls. Two switches for it would exchange the state of the connections
 * twice without benefit. A long point-to-point phase is inferred instead, from its first sign.
 *
 * A nonblocking collective marks its phase from the call until the first of these events:
 *
 *   - MPI_Wait, Waitall, Waitany or Waitsome returns;
 *   - MPI_Test... reports a completion;
 *   - a blocking collective begins.
 *
 * The completion may be that of another request, because the requests are not compared. So the
 * phase may end early, but it always ends at such an event. Point-to-point calls in between overlap
 * with the collective and are not counted.
 *
 * A scope of the program (kumi_phase_begin) has priority over inference. Collectives in a scope are
 * marked while they run. Then the program's phase is restored, and no calls are counted.
 *
 * The state belongs to the process, like the page. Threads may change it concurrently. Relaxed
 * atomics suffice, because a miscount by one only moves a switch by one call.
 */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "marking.h"

/*
 * Message size, in bytes, from which one message is a point-to-point phase. Open MPI changes from
 * eager to rendezvous over TCP at this size (btl_tcp_eager_limit). It is several times the initial
 * window (10 segments, 14 KB), so the window that the phase has learned determines the time of the
 * message.
 */
enum { LONG_MESSAGE_BYTES = 64 * 1024 };

/*
 * Number of short calls that are a point-to-point phase. A halo exchange in three dimensions has
 * 12: 6 sends and 6 receives. The few messages by which programs agree on a step between two
 * collectives are fewer. Chosen by judgement.
 */
enum { POINT_TO_POINT_CALLS = 8 };

/* Calls since the last marked collective. */
static uint32_t point_to_point_calls;
/* True while a nonblocking collective is assumed to be active. */
static bool nonblocking_open;

/*
 * Number of wrapped functions that this thread is in. MPI libraries call their own public
 * functions: MPICH's Fortran functions call the C ones, ROMIO calls collectives. Only the outermost
 * is marked.
 */
static _Thread_local uint32_t wrapped_depth __attribute__((tls_model("initial-exec")));

static uint32_t phase_of(struct kumi_phase_page *page, struct kumi_mpi_call *call)
{
    uint32_t phase = __atomic_load_n(&call->phase, __ATOMIC_RELAXED);
    if (phase == 0) {
        phase = kumi_page_index(page, call->phase_name) + 1;
        __atomic_store_n(&call->phase, phase, __ATOMIC_RELAXED);
    }
    return phase - 1;
}

static void reset_inference(bool nonblocking)
{
    __atomic_store_n(&point_to_point_calls, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&nonblocking_open, nonblocking, __ATOMIC_RELAXED);
}

static void return_to_scope(struct kumi_phase_page *page)
{
    uint32_t phase;
    if (kumi_page_scope(page, &phase))
        kumi_page_switch(page, phase);
}

/*
 * Returns whether point-to-point calls are evidence of a phase at present. Within a point-to-point
 * phase, a call costs only this test.
 */
static bool inferring(struct kumi_phase_page *page)
{
    uint32_t phase;
    return kumi_page_phase(page) != KUMI_PHASE_POINT_TO_POINT &&
           !__atomic_load_n(&nonblocking_open, __ATOMIC_RELAXED) && !kumi_page_scope(page, &phase);
}

static void count_calls(struct kumi_phase_page *page, uint32_t calls)
{
    if (!inferring(page))
        return;
    if (__atomic_add_fetch(&point_to_point_calls, calls, __ATOMIC_RELAXED) >= POINT_TO_POINT_CALLS)
        kumi_page_switch(page, KUMI_PHASE_POINT_TO_POINT);
}

static int64_t integer_argument(const struct kumi_mpi_call *call, const uintptr_t *arguments, int at)
{
    switch (call->calling) {
    case BY_ADDRESS:
        return *(const int32_t *)arguments[at];
    case BY_VALUE_LARGE:
        /*
         * Only the count is wide. Ranks stay ints, and the upper half of their register is
         * undefined.
         */
        return at == 1 ? (int64_t)arguments[at] : (int32_t)arguments[at];
    case BY_VALUE:
        break;
    }
    return (int32_t)arguments[at];
}

/* Returns the size of one element in bytes, or 0 if it cannot be found out. */
static int64_t element_bytes(const struct kumi_mpi_call *call, uintptr_t datatype, const void *caller)
{
    static void *by_value, *by_address;
    int bytes = 0;
    if (call->calling == BY_ADDRESS) {
        void *at = __atomic_load_n(&by_address, __ATOMIC_RELAXED);
        if (at == NULL && (at = kumi_mpi_find("pmpi_type_size_", caller)) != NULL)
            __atomic_store_n(&by_address, at, __ATOMIC_RELAXED);
        int error = 0;
        if (at != NULL)
            ((void (*)(uintptr_t, int *, int *))at)(datatype, &bytes, &error);
        return error == 0 ? bytes : 0;
    }
    void *at = __atomic_load_n(&by_value, __ATOMIC_RELAXED);
    if (at == NULL && (at = kumi_mpi_find("PMPI_Type_size", caller)) != NULL)
        __atomic_store_n(&by_value, at, __ATOMIC_RELAXED);
    if (at == NULL || ((int (*)(uintptr_t, int *))at)(datatype, &bytes) != 0)
        return 0;
    return bytes;
}

static void send_begins(struct kumi_phase_page *page, const struct kumi_mpi_call *call,
                        const uintptr_t *arguments, const void *caller)
{
    if (!inferring(page))
        return;
    int64_t count = integer_argument(call, arguments, 1);
    /* MPI_PROC_NULL is negative in all libraries: the edge of a grid sends nothing. */
    if (integer_argument(call, arguments, 3) < 0)
        return;
    int64_t bytes = count <= 0 ? 0 : element_bytes(call, arguments[2], caller);
    /*
     * A negative size is MPI_UNDEFINED, for an element of 2 GB or more. The division cannot
     * overflow.
     */
    if (bytes < 0 || (bytes > 0 && count > (LONG_MESSAGE_BYTES - 1) / bytes))
        kumi_page_switch(page, KUMI_PHASE_POINT_TO_POINT);
    else if (call->kind == SEND)
        count_calls(page, 1);
}

static void call_begins(struct kumi_phase_page *page, struct kumi_mpi_call *call, const uintptr_t *arguments,
                        const void *caller)
{
    switch (call->kind) {
    case COLLECTIVE:
    case NONBLOCKING:
        reset_inference(call->kind == NONBLOCKING);
        kumi_page_switch(page, phase_of(page, call));
        break;
    case SEND:
    case SEND_INIT:
        send_begins(page, call, arguments, caller);
        break;
    case RECEIVE:
    case START:
        count_calls(page, 1);
        break;
    case STARTALL: {
        int64_t requests = integer_argument(call, arguments, 0);
        if (requests > 0)
            count_calls(page, (uint32_t)requests);
        break;
    }
    case UNMARKED_COLLECTIVE:
    case WAIT:
    case TEST_AT_1:
    case TEST_AT_2:
    case TEST_AT_3:
        break;
    }
}

static bool has_completed(const struct kumi_mpi_call *call, const uintptr_t *arguments)
{
    if (call->kind == WAIT)
        return true;
    int at = call->kind == TEST_AT_1 ? 1 : call->kind == TEST_AT_2 ? 2 : 3;
    /*
     * A flag, or a number for MPI_Testsome. If no request was active, the number is negative
     * (MPI_UNDEFINED) and the flag is true. The phase then ends early, which the rule allows.
     */
    return *(const int32_t *)arguments[at] != 0;
}

static void call_ends(struct kumi_phase_page *page, const struct kumi_mpi_call *call,
                      const uintptr_t *arguments)
{
    switch (call->kind) {
    case COLLECTIVE:
        return_to_scope(page);
        break;
    case WAIT:
    case TEST_AT_1:
    case TEST_AT_2:
    case TEST_AT_3:
        if (__atomic_load_n(&nonblocking_open, __ATOMIC_RELAXED) && has_completed(call, arguments)) {
            reset_inference(false);
            return_to_scope(page);
        }
        break;
    case UNMARKED_COLLECTIVE:
    case NONBLOCKING:
    case SEND:
    case SEND_INIT:
    case RECEIVE:
    case START:
    case STARTALL:
        break;
    }
}

/*
 * Returns the page in which phases are marked. Returns NULL if there is no page, or if `kumi run
 * --no-phases` reserves it for the program.
 */
static struct kumi_phase_page *marked_page(void)
{
    enum { UNASKED, MARKED, LEFT };
    static int answer = UNASKED;
    int now = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (now == UNASKED) {
        const char *phases = getenv("KUMI_PHASES");
        now = phases != NULL && strcmp(phases, "off") == 0 ? LEFT : MARKED;
        __atomic_store_n(&answer, now, __ATOMIC_RELAXED);
    }
    return now == MARKED ? kumi_page() : NULL;
}

bool kumi_mpi_is_idle;

void kumi_mpi_begun(bool is_planning)
{
    bool is_idle = !is_planning && marked_page() == NULL;
    __atomic_store_n(&kumi_mpi_is_idle, is_idle, __ATOMIC_RELAXED);
}

void *kumi_mpi_enter(struct kumi_mpi_call *call, const uintptr_t *arguments, const void *caller)
{
    void *real = __atomic_load_n(&call->real, __ATOMIC_RELAXED);
    if (real == NULL) {
        real = kumi_mpi_find_real(call, caller);
        if (real == NULL) {
            fprintf(stderr, "kumi: %s was called, but no MPI library provides it\n", call->symbol);
            return NULL;
        }
        __atomic_store_n(&call->real, real, __ATOMIC_RELAXED);
    }
    struct kumi_phase_page *page = marked_page();
    if (wrapped_depth++ == 0 && page != NULL && kumi_mpi_known_library(caller))
        call_begins(page, call, arguments, caller);
    return real;
}

bool kumi_mpi_is_outermost(void)
{
    return wrapped_depth == 1;
}

void kumi_mpi_leave(struct kumi_mpi_call *call, const uintptr_t *arguments)
{
    struct kumi_phase_page *page = marked_page();
    /*
     * The library was checked when the call was entered, so the address of the caller is not
     * needed.
     */
    if (--wrapped_depth == 0 && page != NULL && kumi_mpi_known_library(NULL))
        call_ends(page, call, arguments);
}
