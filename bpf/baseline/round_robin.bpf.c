// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Per-packet round robin over parallel links without re-ordering, like bonding's balance-rr: a
 * rival for `kumi bench`. Addresses and routes are those of the first link. The other links carry
 * frames for it.
 *
 *   egress    on the first link: every packet except each LINKS-th leaves by another link
 *   ingress   on every other link: packets are received as if on the first
 *
 * Both ends must run it, with links in the same order. It is compiled per host with
 *
 *   LINK_IFINDICES   device indices, first link first, separated by commas
 *   LINKS            number of links
 *   BALANCE_BYTES    0: next link for each packet, as bonding does; 1: the link with the fewest
 *                    bytes so far, which keeps pure ACKs from shifting the pattern
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#define WIRE_OVERHEAD_BYTES 24 /* preamble 8, FCS 4, inter-frame gap 12: IEEE 802.3 */

/* volatile: else the compiler folds it into a section (.rodata.cst8) that libbpf does not know. */
static const volatile __u32 ifindices[LINKS] = { LINK_IFINDICES };

/* Shared by all CPUs. Lost updates between CPUs only blur the pattern, so nothing is atomic. */
static volatile __u64 packets;
static volatile __u64 bytes[LINKS];

static __u32 next_by_packets(void)
{
	return packets++ % LINKS;
}

static __u32 next_by_bytes(void)
{
	__u64 least_bytes = bytes[0];
	__u32 least = 0;

#pragma unroll
	for (__u32 link = 1; link < LINKS; link++) {
		if (bytes[link] < least_bytes) {
			least_bytes = bytes[link];
			least = link;
		}
	}
	return least;
}

SEC("egress")
int stripe(struct __sk_buff *skb)
{
	__u32 link = BALANCE_BYTES ? next_by_bytes() : next_by_packets();

	if (link >= LINKS)
		return TC_ACT_UNSPEC;
	bytes[link] += skb->len + WIRE_OVERHEAD_BYTES;
	return link == 0 ? TC_ACT_UNSPEC : bpf_redirect(ifindices[link], 0);
}

SEC("ingress")
int gather(struct __sk_buff *skb)
{
	return bpf_redirect(ifindices[0], BPF_F_INGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
