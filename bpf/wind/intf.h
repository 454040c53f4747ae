/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Layouts that the Wind program shares with user space. crates/placement/src/intf.rs has the same
 * structures, and a test compares them.
 */
#ifndef KUMI_WIND_INTF_H
#define KUMI_WIND_INTF_H

/* Requests of a session that may be unanswered at the same time (crates/wind, slots.rs). */
#define KUMI_WIND_SLOTS 128

/* A region's memory is an array of pages. */
#define KUMI_WIND_PAGE_BYTES 4096

/* Numbers of regions whose memory the kernel has; others belong to programs. */
#define KUMI_WIND_KERNEL_REGION 0x80000000U

#define KUMI_WIND_REGIONS_MAX 1024
#define KUMI_WIND_OWNERS_MAX 1024
#define KUMI_WIND_SESSIONS_MAX 65536

/* Name of a session: what a request states. */
struct kumi_wind_name {
	__u32 index;    /* `receiver` of the request */
	__u16 port;     /* UDP port of the program */
	__u16 reserved; /* 0 */
};

/* A session whose requests the kernel executes. */
struct kumi_wind_session {
	__u8 peer[16];        /* its address; IPv4 as ::ffff:a.b.c.d */
	__u64 request_key[2]; /* SipHash keys of the tags, as two little-endian words */
	__u64 response_key[2];
	__u32 peer_index; /* `receiver` of the responses */
	__u32 owner;      /* program */
	__u32 window;     /* number of its window among those of the owner */
	__u16 peer_port;  /* UDP */
	__u16 has_tags;   /* 0 or 1 */
};

/* A region. */
struct kumi_wind_region {
	__u64 key[2];
	__u64 bytes; /* 0: no such region */
	__u32 owner; /* sessions of other owners have no access */
	__u32 reserved;
};

/* State of a request: (number + 1) * 256 + refusal * 2 + is running. 0: never used. */
struct kumi_wind_slot {
	__u64 state;
	__u64 result; /* the word before an atomic operation */
};

/* Requests of a session. The program has a mapping of it. */
struct kumi_wind_window {
	struct kumi_wind_slot slots[KUMI_WIND_SLOTS];
	__u64 puts; /* executed, with those of diffs */
	__u64 gets;
	__u64 atomics;
	__u64 repeated; /* answered again */
	__u64 refused;
	__u64 forged; /* dropped: the tag was wrong */
	__u64 bytes;  /* written and read */
	__u64 reserved;
};

#endif
