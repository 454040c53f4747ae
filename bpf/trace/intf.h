/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Layouts that the tracing programs share with user space. crates/tcp/src/intf.rs has the
 * same structures, and a test compares them.
 */
#ifndef KUMI_TRACE_INTF_H
#define KUMI_TRACE_INTF_H

enum kumi_trace_kind {
	KUMI_TRACE_ACK = 1,        /* a segment arrived that acknowledges; detail: payload bytes it brought */
	KUMI_TRACE_RETRANSMIT = 2, /* detail: enum kumi_trace_retransmit */
	KUMI_TRACE_STATE = 3,      /* the congestion state changed; detail: the new one */
	KUMI_TRACE_WRITE = 4,      /* the program wrote while nothing was in flight */
	KUMI_TRACE_LOCAL_DROP = 5, /* a queue of this host refused a segment */
	KUMI_TRACE_HELD_ACK = 6,   /* an acknowledgement left; detail: microseconds it had been held back */
	KUMI_TRACE_CLOSE = 7,
};

enum kumi_trace_retransmit {
	KUMI_TRACE_FAST = 0,
	KUMI_TRACE_TIMEOUT = 1,
	KUMI_TRACE_PROBE = 2, /* tail loss probe */
};

struct kumi_trace_settings {
	__u64 cgroup;       /* id of the watched cgroup; 0: none */
	__u32 only_senders; /* 0 or 1: no events for an end with nothing in flight */
	__u32 reserved;
};

struct kumi_trace_event {
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u64 cookie;
	__u64 pacing_bytes_ps;
	__u32 kind;
	__u32 detail;
	__u32 ack;     /* the sequence number acknowledged, of ACK */
	__u32 snd_una; /* before the event is acted upon, as all that follows */
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 cwnd;      /* packets */
	__u32 ssthresh;  /* packets */
	__u32 in_flight; /* packets */
	__u32 snd_wnd;   /* bytes */
	__u32 rcv_wnd;   /* bytes */
	__u32 srtt_us;
	__u32 rtt_min_us;
	__u32 rto_ticks;
	__u32 mss_bytes;
	__u8 ca_state; /* Open 0, Disorder 1, CWR 2, Recovery 3, Loss 4 */
	__u8 limit;    /* limit of the sender: 0 none, 1 network, 2 receiver window, 3 buffer */
	__u8 is_ipv6;
	__u8 reserved;
	__u16 local_port;
	__u16 remote_port;
	__u8 local[16];
	__u8 remote[16];
	__u32 lost;  /* events that found no room since the last that did */
	__u32 rank;  /* owner of the phase page, a process of `kumi run`; 0: none */
	__u32 phase; /* phase of its program; undefined without a rank */
	/* Since the connection began, as in Web100 (RFC 4898). */
	__u64 bytes_sent; /* retransmissions included */
	__u64 bytes_resent;
	__u64 bytes_acked;
	__u32 network_ticks; /* held up by the window or the wire */
	__u32 far_ticks;     /* by the far window */
	__u32 buffer_ticks;  /* by its send buffer */
	/* Since the connection is observed. */
	__u32 dupacks; /* duplicate ACKs while data was in flight */
	__u32 sacks;   /* segments with selective acknowledgements */
	__u32 dsacks;  /* duplicates that the far end reported, since the connection began */
};

#endif
