/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the programs remember of this host's TCP streams: which are long, and which link carried
 * which bytes. TCP of machines behind the device has no socket here, so it has no stream.
 */
#ifndef KUMI_MULTILINK_STREAM_H
#define KUMI_MULTILINK_STREAM_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Bytes of headers of a segment that is not understood: Ethernet, IPv4 and TCP with timestamps. */
#define SEGMENT_BYTES 66
#define ETHERNET_BYTES 14
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define PROTOCOL_TCP 6
/* Segments on the way with which a stream is a long one: more than one burst of 64 KB. */
#define BULK_SEGMENTS 44
/*
 * Time without a pause after which a stream is a long one with more than SMALL_SEGMENTS on the way,
 * in ns. On unlike links, segments that overtake each other may keep a window below BULK_SEGMENTS.
 * By judgement: a message of 64 KB takes less, except on links below 10 Mb/s.
 */
#define BUSY_NS 50000000ULL
/* Time for which it then stays one, in ns. Chosen by judgement. */
#define BULK_NS 100000000ULL
/*
 * Segments on the way up to which a stream stays on its link while the rates of the links are not
 * known: an initial window (RFC 6928). On links whose rates are taken wrongly they overtake each
 * other, and TCP takes that for losses. Windows stayed at two segments, which show no rate
 * (`docs/perf-log.md`, 2026-11-29).
 */
#define SMALL_SEGMENTS 10
/*
 * Bursts that are remembered, a power of 2: of eight links of 250 Mb/s those of 4 ms, of two of 10
 * Gb/s those of 1.6 ms. By judgement.
 */
#define BURSTS 64
/* Most bytes of small messages that are one burst. */
#define BURST_BYTES 65536

/* Bytes of a stream that left together. */
struct burst {
	__u64 sent_at_ns;
	/* Time at which the bytes should have arrived; 0 if that is not known. */
	__u64 due_at_ns;
	/* Sequence numbers of the first byte and of that after the last. */
	__u32 first;
	__u32 end;
	__u32 link;
	__u32 zero;
};

struct stream {
	/* Time until which it is a long one, in ns of CLOCK_MONOTONIC. */
	__u64 bulk_until_ns;
	/* Time since which bytes were always on the way. */
	__u64 busy_at_ns;
	/* Bursts so far. */
	__u64 count;
	struct burst bursts[BURSTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct stream);
} streams SEC(".maps");

/* A frame's part of a stream. */
struct part {
	/* 0 for none: the frame is not TCP of this host, or only acknowledges. */
	struct stream *stream;
	__u32 first;
	__u32 end;
	/* Bytes from `first` on were sent before. */
	int is_repair;
	/* The segments on the way and these are few. */
	int is_small;
};

/* Returns the offset of the transport header in a frame, 0 if that is not understood. */
static __always_inline __u32 transport_of(struct __sk_buff *skb, __u8 *protocol)
{
	__u8 first;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETHERNET_BYTES, &first, 1) ||
		    bpf_skb_load_bytes(skb, ETHERNET_BYTES + 9, protocol, 1))
			return 0;
		return ETHERNET_BYTES + (first & 15) * 4;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETHERNET_BYTES + 6, protocol, 1))
			return 0;
		return ETHERNET_BYTES + IPV6_BYTES;
	}
	return 0;
}

/* Returns the bytes of headers of a burst's segments. */
static __always_inline __u32 headers_of(struct __sk_buff *skb)
{
	__u8 protocol = 0, offset;
	__u32 transport = transport_of(skb, &protocol);

	if (!transport)
		return SEGMENT_BYTES;
	if (protocol != PROTOCOL_TCP)
		return transport + UDP_BYTES;
	if (bpf_skb_load_bytes(skb, transport + 12, &offset, 1))
		return SEGMENT_BYTES;
	return transport + (offset >> 4) * 4;
}

/* Reads which part of a stream a frame of `segments` segments is. */
static __always_inline struct part part_of(struct __sk_buff *skb, __u32 segments, __u64 now)
{
	/* TCP header up to its flags. */
	struct {
		__u16 ports[2];
		__be32 sequence, acknowledged;
		__u8 offset, flags;
	} __attribute__((packed)) header;
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp;
	struct part part = {};
	__u32 transport, bytes;
	__u8 protocol = 0;

	if (!sk)
		return part;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return part;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return part;
	transport = transport_of(skb, &protocol);
	if (!transport || protocol != PROTOCOL_TCP ||
	    bpf_skb_load_bytes(skb, transport, &header, sizeof(header)))
		return part;
	transport += (header.offset >> 4) * 4;
	bytes = skb->len > transport ? skb->len - transport : 0;
	/* SYN and FIN have a sequence number each. */
	bytes += (header.flags >> 1 & 1) + (header.flags & 1);
	if (!bytes)
		return part;
	part.first = bpf_ntohl(header.sequence);
	part.end = part.first + bytes;
	part.is_repair = (__s32)(part.first - tcp->snd_nxt) < 0;
	part.is_small = tcp->packets_out && tcp->packets_out + segments <= SMALL_SEGMENTS;
	part.stream = bpf_sk_storage_get(&streams, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!part.stream)
		return part;
	if (!tcp->packets_out)
		part.stream->busy_at_ns = now;
	if (tcp->packets_out > BULK_SEGMENTS ||
	    (tcp->packets_out > SMALL_SEGMENTS && now - part.stream->busy_at_ns > BUSY_NS))
		part.stream->bulk_until_ns = now + BULK_NS;
	return part;
}

/* Remembers the link of a part. Small messages in a row on one link are one burst. */
static __always_inline void remember(const struct part *part, __u32 link, __u64 now, __u64 due_at_ns)
{
	struct burst *burst = &part->stream->bursts[(part->stream->count - 1) & (BURSTS - 1)];

	if (burst->link == link && burst->end == part->first && part->end - burst->first <= BURST_BYTES) {
		burst->sent_at_ns = now;
		burst->due_at_ns = due_at_ns;
		burst->end = part->end;
		return;
	}
	burst = &part->stream->bursts[part->stream->count++ & (BURSTS - 1)];
	burst->sent_at_ns = now;
	burst->due_at_ns = due_at_ns;
	burst->first = part->first;
	burst->end = part->end;
	burst->link = link;
}

/* Returns the link of a small stream's last burst, KUMI_LINKS_MAX if the part may take any. */
static __always_inline __u32 stays_on(const struct part *part)
{
	if (!part->stream || !part->stream->count || !part->is_small || part->is_repair)
		return KUMI_LINKS_MAX;
	return part->stream->bursts[(part->stream->count - 1) & (BURSTS - 1)].link;
}

/* Returns the burst in which a part's first byte was sent last, NULL if it is not remembered. */
static __always_inline const struct burst *sent_before(const struct part *part)
{
	for (__u32 age = 1; age <= BURSTS; age++) {
		const struct burst *burst = &part->stream->bursts[(part->stream->count - age) & (BURSTS - 1)];

		if (part->first - burst->first < burst->end - burst->first)
			return burst;
	}
	return 0;
}

#endif /* KUMI_MULTILINK_STREAM_H */
