/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Frames: finds the UDP payload, and turns a frame round. */
#ifndef KUMI_WIND_FRAME_H
#define KUMI_WIND_FRAME_H

#include "maps.h"

#define ETHERNET_BYTES 14
#define VLAN_BYTES 4
#define UDP_BYTES 8
#define IPV6_BYTES 40
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_SERVICE_VLAN 0x88a8
#define PROTOCOL_UDP 17
#define HOPS 64
/* VLAN tags in the frame itself. The kernel keeps the outermost one beside it. */
#define TAGS_MAX 2

/* Places of the headers in a frame. */
struct frame {
	__u32 network; /* IP header */
	__u32 udp;
	__u32 payload;
	__u32 bytes; /* of the UDP payload; of a super-packet, all of them */
	__u8 source[16];
	__u16 source_port;
	__u16 port;
	__u8 is_ipv6;
};

static __always_inline int parse_ipv4(struct __sk_buff *skb, struct frame *frame)
{
	__u8 head[20];

	if (bpf_skb_load_bytes(skb, frame->network, head, sizeof(head)))
		return -1;
	/* A fragment is left to the program, which gets the whole datagram. */
	if ((head[0] & 0xf) < 5 || head[9] != PROTOCOL_UDP || head[6] & 0x3f || head[7])
		return -1;
	frame->udp = frame->network + (head[0] & 0xf) * 4;
	__builtin_memset(frame->source, 0, 10);
	frame->source[10] = 0xff;
	frame->source[11] = 0xff;
	__builtin_memcpy(frame->source + 12, head + 12, 4);
	frame->is_ipv6 = 0;
	return 0;
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, struct frame *frame)
{
	__u8 next;

	if (bpf_skb_load_bytes(skb, frame->network + 6, &next, 1) || next != PROTOCOL_UDP ||
	    bpf_skb_load_bytes(skb, frame->network + 8, frame->source, 16))
		return -1;
	frame->udp = frame->network + IPV6_BYTES;
	frame->is_ipv6 = 1;
	return 0;
}

/* Finds the UDP payload of a frame. Returns -1 if it has none. */
static __always_inline int parse_frame(struct __sk_buff *skb, struct frame *frame)
{
	__be16 type, ports[3];
	__u32 type_at = ETHERNET_BYTES - 2;
	int failed;

	if (bpf_skb_load_bytes(skb, type_at, &type, 2))
		return -1;
#pragma unroll
	for (int tag = 0; tag < TAGS_MAX; tag++) {
		if (type != bpf_htons(ETHERTYPE_VLAN) && type != bpf_htons(ETHERTYPE_SERVICE_VLAN))
			break;
		type_at += VLAN_BYTES;
		if (bpf_skb_load_bytes(skb, type_at, &type, 2))
			return -1;
	}
	frame->network = type_at + 2;
	if (type == bpf_htons(ETHERTYPE_IPV4))
		failed = parse_ipv4(skb, frame);
	else if (type == bpf_htons(ETHERTYPE_IPV6))
		failed = parse_ipv6(skb, frame);
	else
		return -1;
	if (failed || bpf_skb_load_bytes(skb, frame->udp, ports, sizeof(ports)))
		return -1;
	frame->source_port = bpf_ntohs(ports[0]);
	frame->port = bpf_ntohs(ports[1]);
	frame->payload = frame->udp + UDP_BYTES;
	if (skb->len < frame->payload)
		return -1;
	/* A short frame is padded, and a super-packet has the length of its first segment. */
	frame->bytes = skb->len - frame->payload;
	if (!skb->gso_size) {
		__u32 stated = bpf_ntohs(ports[2]);

		if (stated < UDP_BYTES || stated - UDP_BYTES > frame->bytes)
			return -1;
		frame->bytes = stated - UDP_BYTES;
	}
	return 0;
}

/* Swaps two addresses of `bytes` <= 16 bytes. `spare` has 64 bytes: the stack is short. */
static __always_inline int swap(struct __sk_buff *skb, __u32 at, __u32 bytes, __u8 *spare)
{
	if (bytes > 16 || bpf_skb_load_bytes(skb, at, spare, 2 * bytes))
		return -1;
	__builtin_memcpy(spare + 32, spare + bytes, bytes);
	__builtin_memcpy(spare + 32 + bytes, spare, bytes);
	return bpf_skb_store_bytes(skb, at, spare + 32, 2 * bytes, 0);
}

static __always_inline int set_ipv4_word(struct __sk_buff *skb, struct frame *frame, __u32 at, __be16 value)
{
	__be16 before;

	at += frame->network;
	if (bpf_skb_load_bytes(skb, at, &before, 2) ||
	    bpf_l3_csum_replace(skb, frame->network + 10, before, value, 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &value, 2, 0);
}

/*
 * Makes the frame one from the receiver to the sender, with `bytes` bytes of payload, which are
 * written afterwards. The UDP checksum is 0, as in RoCE v2: the response has a tag.
 */
static __always_inline int turn(struct __sk_buff *skb, struct frame *frame, __u32 bytes, __u8 *spare)
{
	__be16 udp[4];
	__be16 source;

	if (bpf_skb_change_tail(skb, frame->payload + bytes, 0) || swap(skb, 0, 6, spare))
		return -1;
	if (frame->is_ipv6) {
		__be16 length = bpf_htons(UDP_BYTES + bytes);
		__u8 hops = HOPS;

		if (bpf_skb_store_bytes(skb, frame->network + 4, &length, 2, 0) ||
		    bpf_skb_store_bytes(skb, frame->network + 7, &hops, 1, 0) ||
		    swap(skb, frame->network + 8, 16, spare))
			return -1;
	} else {
		__be16 length = bpf_htons(frame->payload - frame->network + bytes);

		if (set_ipv4_word(skb, frame, 2, length) ||
		    set_ipv4_word(skb, frame, 8, bpf_htons(HOPS << 8 | PROTOCOL_UDP)) ||
		    swap(skb, frame->network + 12, 4, spare))
			return -1;
	}
	if (bpf_skb_load_bytes(skb, frame->udp, udp, sizeof(udp)))
		return -1;
	source = udp[0];
	udp[0] = udp[1];
	udp[1] = source;
	udp[2] = bpf_htons(UDP_BYTES + bytes);
	udp[3] = 0;
	return bpf_skb_store_bytes(skb, frame->udp, udp, sizeof(udp), 0);
}

#endif
