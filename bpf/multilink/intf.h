/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Values of the maps by which the daemon of a multilink device and its programs exchange state, in
 * the host's byte order, and the frame of a question. crates/device has the same structures in Rust
 * (datapath/intf.rs).
 */
#ifndef KUMI_MULTILINK_INTF_H
#define KUMI_MULTILINK_INTF_H

#include <linux/types.h>

#define KUMI_LINKS_MAX 16
#define KUMI_PEERS_MAX 1024
/* Times of a byte have this many bits behind the point. */
#define KUMI_BYTE_TIME_SHIFT 10

/* A MAC address as a key. */
struct kumi_mac {
	__u8 bytes[6];
	__u16 zero;
};

/* A key of SipHash: its bytes as two little-endian words. */
struct kumi_key {
	__u64 low;
	__u64 high;
};

/* MAC addresses of a frame on a link to a peer. */
struct kumi_way {
	__u8 to[6];
	__u8 from[6];
};

/* A peer, by the MAC address of its device. */
struct kumi_peer {
	/* Bit n is set if link n may carry frames to the peer. */
	__u32 links;
	/* Number of the peer, for `frames`, `paths` and `counts`. */
	__u32 number;
	/* Not 0 if the daemon carries long streams to the peer. */
	__u32 daemon_has_bulk;
	/* Bit of the link that carries all frames for a moment, so its rate shows; 0 for none. */
	__u32 tried;
	/* Bit n is set if the rate of link n's path is a guess. */
	__u32 guessed;
	struct kumi_way ways[KUMI_LINKS_MAX];
};

/* A sender, by the source address of its frames on a link (its alias there). */
struct kumi_sender {
	/* Number of the local link. */
	__u32 link;
	/* Number of the peer. */
	__u32 number;
	/* MAC address of its device. */
	__u8 mac[6];
	__u16 zero;
	/* Key of its questions. */
	struct kumi_key key;
};

/* A link, by number. */
struct kumi_link {
	/* Interface, 0 for none. */
	__u32 index;
	__u32 zero;
	/* Time that a byte takes, in 1/1024 ns. */
	__u64 byte_time;
	/* Key of the own questions. */
	struct kumi_key key;
};

/* What the programs know of a link, by number. */
struct kumi_load {
	/* Time at which the link has sent all that it was given, in ns of CLOCK_MONOTONIC. */
	__u64 free_at_ns;
};

/* What the daemon knows of a path: peer and link, by `number * KUMI_LINKS_MAX + link`. */
struct kumi_path {
	/* Time that a byte takes on the whole way, in 1/1024 ns. */
	__u64 byte_time;
	/* Time that a frame takes besides its length, in nanoseconds. */
	__u64 latency_ns;
	/* Bytes sent that had left the path at `left_at_ns`: arrived or lost. */
	__u64 left_bytes;
	__u64 left_at_ns;
	/* Time of a question without an answer when the daemon looked last; 0 for none. */
	__u64 asked_at_ns;
};

/* Bytes on a path, as on the wire. */
struct kumi_count {
	__u64 sent_bytes;
	__u64 received_bytes;
	/* Start of the path's busy period: bytes sent before it, and its time in ns. */
	__u64 start_bytes;
	__u64 start_at_ns;
};

/*
 * A question to a peer's kernel and its answer: what follows the Ethernet header of a frame of
 * EtherType KUMI_QUESTION_TYPE. Numbers are in network order; the times are those of each side's
 * CLOCK_MONOTONIC.
 */
struct kumi_question {
	__u8 kind;
	__u8 zero[7];
	/* Time of the question, and bytes that the asking side had sent on the path before it. */
	__u64 asked_at_ns;
	__u64 sent_bytes;
	/* In an answer: bytes that the answering side had received, and its time then. */
	__u64 received_bytes;
	__u64 answered_at_ns;
	/* SipHash-2-4 of all before, by the key of the asking side's link; little-endian. */
	__u64 tag;
};

/* The local experimental EtherType 1 of IEEE 802. */
#define KUMI_QUESTION_TYPE 0x88b5
#define KUMI_QUESTION 1
#define KUMI_ANSWER 2

/* Last answer on a path, by `number * KUMI_LINKS_MAX + link`. */
struct kumi_answer {
	__u64 asked_at_ns;
	__u64 sent_bytes;
	__u64 received_bytes;
	__u64 answered_at_ns;
	/* Time of its arrival, by this side's clock. */
	__u64 arrived_at_ns;
	/* All of these by XOR: the daemon may read while the program writes. */
	__u64 check;
};

/* The device itself. */
struct kumi_device {
	__u32 index;
	__u8 mac[6];
	__u8 zero[6];
	/* Time at which the daemon ran last, in ns of CLOCK_MONOTONIC. */
	__u64 alive_at_ns;
	/* Hash of the files that lay out the maps, for the daemon's successor. */
	__u64 layout;
};

#endif
