/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Claims of a test program: one line each, "ok ..." or "FAILED ...", under the label in
 * KUMI_TEST_LABEL. In an MPI program rank 0 prints all lines and the others their failures. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdbool.h>

/* Ranks above 0 print failures only. */
void expect_rank(int rank);

void expect_true(const char *claim, bool holds);

/* That the page says `phase` at present. The page is mapped a second time, as the kernel would see
 * it, and none of the library's code is used to read it. */
void expect_phase(const char *claim, const char *phase);

/* That `seen`, an index read with phase_index(), has this name. */
void expect_index(const char *claim, int seen, const char *phase);

int phase_index(void);

/* What main() returns: 0, or 1 if anything failed. */
int expect_result(void);

#endif
