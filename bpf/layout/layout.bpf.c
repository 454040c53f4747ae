// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * One variable of each structure that the programs share with user space, so that the object's type
 * information has them all. A test of crates/tcp reads it. Nothing loads this object.
 */
#include <linux/types.h>

#include "../tcp/intf.h"
#include "../trace/intf.h"

struct kumi_tcp_settings settings;
struct kumi_tcp_totals totals;
struct kumi_tcp_connection connection;
struct kumi_tcp_process process;
struct kumi_trace_settings trace_settings;
struct kumi_trace_event event;
