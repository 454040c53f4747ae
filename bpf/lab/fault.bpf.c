// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A faulty wire at line rate: loss, bursts of loss, corruption, duplication, silence.
 *
 * It is attached with clsact to a device of the lab's fabric, one copy for each direction of a
 * link. The settings are constants. The loader writes them into the object file behind the magic
 * number (crates/lab/src/cluster/fault_program.rs has the same layout), and replaces the filter
 * when they change. Frames here are single frames of MTU size, because the hosts divide
 * super-frames before the wire.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SEC(name) __attribute__((section(name), used))

static long (*skb_store_bytes)(struct __sk_buff *, __u32, const void *, __u32,
			       __u64) = (void *)BPF_FUNC_skb_store_bytes;
static long (*skb_load_bytes)(const void *, __u32, void *, __u32) = (void *)BPF_FUNC_skb_load_bytes;
static long (*clone_redirect)(struct __sk_buff *, __u32, __u64) = (void *)BPF_FUNC_clone_redirect;
static __u32 (*prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;

/* Probabilities are scaled to 2^32 - 1. Little-endian hosts only, as the loader checks. */
struct fault {
	__u64 magic;
	__u32 loss;
	__u32 burst_enter;
	__u32 burst_leave;
	__u32 burst_loss;
	__u32 corrupt;
	__u32 duplicate;
	__u32 blackhole;  /* 0 or 1 */
	__u32 is_ingress; /* 0 or 1: where copies go in again */
};
_Static_assert(sizeof(struct fault) == 40, "the loader writes 40 bytes");

#define FAULT_MAGIC 0x62616c696d756b21ULL /* "!kumilab" */

const volatile struct fault fault = { .magic = FAULT_MAGIC };

/* Gilbert-Elliott state. Two processors may race for it; a lost update is an error of one frame. */
static __u32 in_burst;

/* Marks a copy, so that it is not processed again. */
#define COPY_MARK 0x6b756d69

static __always_inline int comes_up(__u32 p)
{
	return p && prandom_u32() <= p;
}

SEC("tc")
int faulty_wire(struct __sk_buff *skb)
{
	__u32 turn = in_burst ? fault.burst_leave : fault.burst_enter;

	if (skb->mark == COPY_MARK) {
		skb->mark = 0;
		return TC_ACT_OK;
	}
	if (fault.blackhole || comes_up(fault.loss))
		return TC_ACT_SHOT;
	if (comes_up(turn))
		in_burst = !in_burst;
	if (in_burst && comes_up(fault.burst_loss))
		return TC_ACT_SHOT;
	if (comes_up(fault.corrupt) && skb->len > 14) {
		/* One bit behind the addresses, as in the model. */
		__u32 at = 12 + prandom_u32() % (skb->len - 12);
		__u8 byte;

		if (at < 0xffff && !skb_load_bytes(skb, at, &byte, 1)) {
			byte ^= 1 << (prandom_u32() & 7);
			skb_store_bytes(skb, at, &byte, 1, 0);
		}
	}
	if (comes_up(fault.duplicate)) {
		skb->mark = COPY_MARK;
		clone_redirect(skb, skb->ifindex, fault.is_ingress ? BPF_F_INGRESS : 0);
		skb->mark = 0;
	}
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
