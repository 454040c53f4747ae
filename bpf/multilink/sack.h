/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Selective acknowledgements (RFC 2018) that come too early. A burst on one link overtakes the
 * burst before it on another, and TCP takes the bytes that are missing then for lost. The option is
 * hidden from TCP until they are lost on their own link, or overdue. A later acknowledgement, if
 * one follows, has the same ranges, and more.
 */
#ifndef KUMI_MULTILINK_SACK_H
#define KUMI_MULTILINK_SACK_H

#include "intf.h"
#include "stream.h"

#define TCP_BYTES 20
#define IPV4_BYTES 20
/* First byte of an IPv4 header without options. */
#define IPV4_PLAIN 0x45
/* First words of options as Linux lays them out: timestamps (RFC 7323), and up to 4 ranges. */
#define OPTION_TIMESTAMPS 0x0101080a
#define OPTION_SACK 0x01010500
#define TIMESTAMPS_BYTES 12
#define RANGE_BYTES 8
#define RANGES_MAX 4
/* An experimental option (RFC 4727), which TCP skips. */
#define OPTION_HIDDEN 253
/*
 * Time, in ns, by which bytes may arrive later than estimated. The daemon corrects the estimate
 * every 2 ms (ASK_NS in crates/device/src/datapath/questions.rs).
 */
#define SLACK_NS 2000000ULL
/* Later segments of a link after which missing ones are lost (RFC 5681, section 3.2). */
#define LOST_SEGMENTS 3

/* Sequence numbers of the first byte and of that after the last. */
struct range {
	__u32 first;
	__u32 end;
};

/* What a frame acknowledges, and where. */
struct sack {
	/* Offsets of the TCP header, and of the word that begins the option. */
	__u32 transport;
	__u32 option;
	/* First missing byte, and the byte after the last one that arrived. */
	__u32 missing;
	__u32 edge;
	__u32 count;
	/* The range that has grown (RFC 2018, section 4). */
	struct range newest;
};

static __always_inline int is_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

/*
 * Returns the offset of the TCP header of a frame with more options than timestamps, or 0. Every
 * frame passes here, so it reads the frame directly, and not by the helpers of `transport_of`.
 */
static __always_inline __u32 optional_transport(const struct __sk_buff *skb)
{
	const __u8 *data = (const __u8 *)(long)skb->data, *end = (const __u8 *)(long)skb->data_end;
	__u32 transport = ETHERNET_BYTES + IPV4_BYTES, words;
	const __u8 *tcp;

	if (data + ETHERNET_BYTES + IPV4_BYTES > end)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && data[ETHERNET_BYTES + 6] == PROTOCOL_TCP)
		transport = ETHERNET_BYTES + IPV6_BYTES;
	else if (skb->protocol != bpf_htons(ETH_P_IP) || data[ETHERNET_BYTES] != IPV4_PLAIN ||
		 data[ETHERNET_BYTES + 9] != PROTOCOL_TCP)
		return 0;
	tcp = data + transport;
	if (tcp + TCP_BYTES + 4 > end)
		return 0;
	words = tcp[12] >> 4;
	if (words <= 5 || (words == 8 && *(const __be32 *)(tcp + TCP_BYTES) == bpf_htonl(OPTION_TIMESTAMPS)))
		return 0;
	return transport;
}

/*
 * Reads the selective acknowledgement of a frame. Returns 0 if it has none, or reports a duplicate
 * (RFC 2883), by which TCP undoes what it did in error.
 */
static __always_inline int read_sack(struct __sk_buff *skb, struct sack *sack)
{
	struct range range;
	__be32 word;
	__u32 length;

	sack->transport = optional_transport(skb);
	if (!sack->transport || bpf_skb_load_bytes(skb, sack->transport + 8, &word, sizeof(word)))
		return 0;
	sack->missing = sack->edge = bpf_ntohl(word);
	sack->option = sack->transport + TCP_BYTES;
	if (bpf_skb_load_bytes(skb, sack->option, &word, sizeof(word)))
		return 0;
	if (word == bpf_htonl(OPTION_TIMESTAMPS)) {
		sack->option += TIMESTAMPS_BYTES;
		if (bpf_skb_load_bytes(skb, sack->option, &word, sizeof(word)))
			return 0;
	}
	length = bpf_ntohl(word) - OPTION_SACK;
	sack->count = (length - 2) / RANGE_BYTES;
	if (length > 0xff || sack->count > RANGES_MAX || length != 2 + sack->count * RANGE_BYTES)
		return 0;
	for (__u32 at = 0; at < RANGES_MAX && at < sack->count; at++) {
		if (bpf_skb_load_bytes(skb, sack->option + 4 + at * RANGE_BYTES, &range, sizeof(range)))
			return 0;
		range.first = bpf_ntohl(range.first);
		range.end = bpf_ntohl(range.end);
		if (is_before(range.first, sack->missing) ||
		    (at == 1 && !is_before(sack->newest.first, range.first) &&
		     !is_before(range.end, sack->newest.end)))
			return 0;
		if (is_before(sack->edge, range.end))
			sack->edge = range.end;
		if (!at)
			sack->newest = range;
	}
	return sack->count;
}

static __always_inline const struct burst *burst_of_age(const struct stream *stream, __u32 age)
{
	return &stream->bursts[(stream->count - age) & (BURSTS - 1)];
}

/*
 * Returns all bits set if a number is negative, otherwise 0. With a branch, the verifier would
 * follow both ways in each round of a loop.
 */
static __always_inline __u32 if_negative(__s32 number)
{
	__u32 mask = number >> 31;

	asm volatile("" : "+r"(mask));
	return mask;
}

/* Returns the bytes of a burst that are in a range. */
static __always_inline __u32 bytes_in(const struct burst *burst, const struct range *range)
{
	__u32 before = range->first - burst->first, after = burst->end - range->end;
	__u32 bytes = burst->end - burst->first;

	bytes -= before & ~if_negative(before);
	bytes -= after & ~if_negative(after);
	return bytes & ~if_negative(bytes);
}

/*
 * Returns whether missing bytes may still be in flight. `now` is the arrival of the acknowledgement
 * less the latency of its path. The bytes are lost if three segments of `mss` bytes that followed
 * them on the same link have arrived, as TCP on a single path counts (RFC 5681), or if they are
 * overdue. If no other link carries later bytes, only bytes of the same link can cause another
 * acknowledgement, and one byte of them that arrived shows a loss. If none did, TCP's tail loss
 * probe (RFC 8985, section 7) or its timeout repairs the loss.
 */
static __always_inline int is_early(const struct stream *stream, const struct sack *sack, __u32 mss,
				    __u64 now)
{
	const struct burst *burst, *missing = 0;
	__u32 later = 0, bytes = 0, link = 0, age;

	for (age = 1; age <= BURSTS; age++) {
		burst = burst_of_age(stream, age);
		if (!burst->sent_at_ns)
			return 0;
		link = burst->link & (KUMI_LINKS_MAX - 1);
		later |= (if_negative(sack->edge - burst->end) & 1) << link;
		if (sack->missing - burst->first < burst->end - burst->first) {
			missing = burst;
			break;
		}
	}
	if (!missing || now >= missing->due_at_ns + SLACK_NS)
		return 0;
	for (__u32 newer = 1; newer <= BURSTS && newer <= age; newer++) {
		burst = burst_of_age(stream, newer);
		bytes += bytes_in(burst, &sack->newest) & ~if_negative(-(__s32)(burst->link ^ link));
	}
	return bytes < (later & ~(1U << link) ? LOST_SEGMENTS * mss : 1);
}

/* Returns this host's socket of a frame that arrives, which is to be released; NULL for none. */
static __always_inline struct bpf_sock *socket_of(struct __sk_buff *skb, const struct sack *sack)
{
	struct bpf_sock_tuple tuple = {};
	__u32 is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);

	if (is_ipv6) {
		if (bpf_skb_load_bytes(skb, ETHERNET_BYTES + 8, &tuple.ipv6.saddr, 32) ||
		    bpf_skb_load_bytes(skb, sack->transport, &tuple.ipv6.sport, 4))
			return 0;
		return bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (bpf_skb_load_bytes(skb, ETHERNET_BYTES + 12, &tuple.ipv4.saddr, 8) ||
	    bpf_skb_load_bytes(skb, sack->transport, &tuple.ipv4.sport, 4))
		return 0;
	return bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Hides the selective acknowledgement of a frame if the missing bytes may be in flight. */
static __always_inline void hide_early_sack(struct __sk_buff *skb, __u64 now)
{
	struct sack sack = {};
	struct bpf_tcp_sock *tcp;
	struct stream *stream;
	struct bpf_sock *sk;
	__be16 shown, hidden;
	__u32 length;
	int is_hidden;

	if (!read_sack(skb, &sack))
		return;
	sk = socket_of(skb, &sack);
	if (!sk)
		return;
	stream = bpf_sk_storage_get(&streams, sk, 0, 0);
	tcp = bpf_tcp_sock(sk);
	is_hidden = stream && tcp && is_early(stream, &sack, tcp->mss_cache, now);
	bpf_sk_release(sk);
	if (!is_hidden)
		return;
	length = 2 + sack.count * RANGE_BYTES;
	shown = bpf_htons(OPTION_SACK & 0xff00) | bpf_htons(length);
	hidden = bpf_htons(OPTION_HIDDEN << 8) | bpf_htons(length);
	/* The two changes cancel out in a NIC's sum of the whole frame (CHECKSUM_COMPLETE). */
	if (!bpf_skb_store_bytes(skb, sack.option + 2, &hidden, sizeof(hidden), 0))
		bpf_l4_csum_replace(skb, sack.transport + 16, shown, hidden, sizeof(hidden));
}

#endif /* KUMI_MULTILINK_SACK_H */
