/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the TCP programs and user space share. crates/tcp/src/layout.rs has the same layout.
 */
#ifndef KUMI_TCP_INTF_H
#define KUMI_TCP_INTF_H

/* Each mechanism has its switch. */
struct kumi_tcp_settings {
	__u64 memory_max_ns; /* what is older is not believed: routes change (RFC 9959) */
	__u32 paces_restart; /* 0 or 1 */
	__u32 forgives_stall; /* 0 or 1 */
};
_Static_assert(sizeof(struct kumi_tcp_settings) == 16, "layout.rs has 16 bytes");

/* What a connection remembers of its last busy time. One in each socket's storage. */
struct kumi_tcp_memory {
	__u64 acked_at_ns; /* CLOCK_MONOTONIC; 0: never */
	__u64 span_began_ns; /* of the rates below */
	__u32 best_pps;    /* highest delivery rate of the running span, packets a second */
	__u32 last_pps;    /* the same of the span before */
	__u32 is_idle;     /* 0 or 1: the window was just cut for silence */
	__u32 is_bounded;  /* 0 or 1: a restart has shown what the path does not carry */
	__u64 restarted_at_ns; /* the last paced restart; 0: none */
};

/* Totals, one a processor. */
struct kumi_tcp_totals {
	__u64 connections; /* that chose this congestion control */
	__u64 paced;       /* restarts paced */
	__u64 stalls;      /* local refusals not taken for congestion */
	__u64 losses;      /* windows cut for losses in the network */
};
_Static_assert(sizeof(struct kumi_tcp_totals) == 32, "layout.rs has 32 bytes");

#endif
