/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The same source that programs compile in, so that a program and the preload library cannot
 * disagree about the page.
 */
#include "kumi_phase.c"
