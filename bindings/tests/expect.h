/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Claims of a test program. Each claim is a line "ok ..." or "FAILED ..." with the label in
 * KUMI_TEST_LABEL. In an MPI program, rank 0 prints all lines, and other ranks print failures only.
 */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdbool.h>

/* Sets this process's rank. Ranks above 0 print failures only. */
void expect_rank(int rank);

void expect_true(const char *claim, bool holds);

/*
 * Claims that the page's current phase is `phase`. The page is mapped a second time, and read
 * without code of the library, as by the kernel.
 */
void expect_phase(const char *claim, const char *phase);

/* Claims that `seen`, an index that phase_index() returned, has the name `phase`. */
void expect_index(const char *claim, int seen, const char *phase);

int phase_index(void);

/* Returns the exit status of the program: 0, or 1 if a claim failed. */
int expect_result(void);

#endif
