/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libkumi.so with slow plans: a function in front of the library's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

#include "kumi_coll.h"

enum { SLOW_MICROSECONDS = 20000 };

void kumi_coll_work_free(struct kumi_coll_work *work)
{
    __typeof__(kumi_coll_work_free) *real =
        (__typeof__(kumi_coll_work_free) *)dlsym(RTLD_NEXT, "kumi_coll_work_free");
    usleep(SLOW_MICROSECONDS);
    real(work);
}
