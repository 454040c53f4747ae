/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which libkumi.so is there. A program that loads it at run time compares `kumi_abi()` with KUMI_ABI before it calls
 * anything else; one that is linked with it is held to the same number by the library's soname, libkumi.so.KUMI_ABI.
 */
#ifndef KUMI_VERSION_H
#define KUMI_VERSION_H

#include <stdint.h>

/* Raised by each change after which a program must be compiled again. A member added at the end of a struct that
 * begins with its `size` is no such change. The build reads this line. */
#define KUMI_ABI 2

#ifdef __cplusplus
extern "C" {
#endif

/* KUMI_ABI of the headers that the library was built with. */
uint32_t kumi_abi(void);

/* The release, and a digest of the sources that decide on plans: "0.1.0+5f1c9a7e". Libraries with the same text plan
 * alike; ranks whose libraries have different texts must not carry out one plan together. */
const char *kumi_version(void);

#ifdef __cplusplus
}
#endif

#endif
