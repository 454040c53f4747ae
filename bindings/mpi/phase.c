/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The very source that programs compile in, so that a program and the preload library cannot differ
 * in what they take the page to be. */
#include "kumi_phase.c"
