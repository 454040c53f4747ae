/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Version of libkumi.so. A program that loads it at run time compares `kumi_abi()` with KUMI_ABI
 * before any other call. For a program that is linked with it, the library's soname,
 * libkumi.so.KUMI_ABI, ensures the same.
 */
#ifndef KUMI_VERSION_H
#define KUMI_VERSION_H

#include <stdint.h>

/*
 * Number of the binary interface. It rises with each change after which programs must be compiled
 * again. A member added at the end of a struct that begins with its `size` is no such change. The
 * build reads this line.
 */
#define KUMI_ABI 3

#ifdef __cplusplus
extern "C" {
#endif

/* Returns KUMI_ABI of the headers with which the library was built. */
uint32_t kumi_abi(void);

/*
 * Returns the release and a digest of the sources that decide on plans: "0.1.0+5f1c9a7e". Libraries
 * with the same text make the same plans. Ranks whose libraries have different texts must not
 * execute one plan together.
 */
const char *kumi_version(void);

#ifdef __cplusplus
}
#endif

#endif
