// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Wind at the ingress of a device: executes requests on the memory of regions, and answers them,
 * without the program that owns the memory. It may compute, sleep or be stopped.
 *
 *   frame ─► UDP, kind Request ─► session ─► tag ─► slot ─► region ─► response ─► the same device
 *              │ any other        │ none, or a region of the program
 *              └──────────────────┴──► the kernel's stack, unchanged
 */
#include "execute.h"
#include "frame.h"

/* Segments of a super-packet: UDP_MAX_SEGMENTS of linux/udp.h. */
#define SEGMENTS_MAX 128

/*
 * Before a check, `asm volatile("" : "+r"(x))` makes the compiler check the register that it then
 * uses. The verifier of Linux 6.1 follows no other copy.
 */

/* A walk over the requests of a packet. */
struct walk {
	struct __sk_buff *skb;
	struct kumi_wind_session *session;
	struct kumi_wind_window *window;
	__u32 at;       /* of the next request in the frame */
	__u32 left;     /* bytes from there on */
	__u32 segment;  /* bytes of a segment */
	__u32 response; /* bytes of the response */
	int outcome;    /* of the first request, if it has no answer */
};

/* Appends an answer to the response. Returns -1 if it does not fit. */
static __always_inline int append(struct walk *walk, struct scratch *scratch, const struct request *request,
				  int outcome)
{
	__u32 at = walk->response;
	__u32 result_bytes = outcome ? 0 : request->result_bytes;
	__u8 *head;

	if (at > REQUEST_BYTES_MAX - TAG_BYTES - ANSWER_HEAD_BYTES - 8)
		return -1;
	head = scratch->response + at;
	head[0] = ANSWER_RECORD;
	head[1] = outcome;
	head[2] = result_bytes >> 8;
	head[3] = result_bytes;
	*(__u64 *)(head + 4) = bpf_cpu_to_be64(request->number);
	if (!outcome && request->operation >= FETCH_ADD)
		*(__u64 *)(head + 12) = bpf_cpu_to_be64(scratch->word);
	walk->response = at + ANSWER_HEAD_BYTES + result_bytes;
	return 0;
}

/* Appends a summary to the response, if one of its requests asks for it and it fits. */
static __always_inline void append_summary(struct walk *walk, struct scratch *scratch)
{
	__u64 highest = scratch->summarized - 1;
	__u64 executed;
	__u32 at;
	__u8 *head;

	if (!scratch->summarized)
		return;
	executed = summarize(walk->window, highest);
	at = walk->response;
	asm volatile("" : "+r"(at));
	if (at > REQUEST_BYTES_MAX - TAG_BYTES - SUMMARY_BYTES)
		return;
	head = scratch->response + at;
	*(__u32 *)head = bpf_htonl(SUMMARY_RECORD << 24);
	*(__u64 *)(head + 4) = bpf_cpu_to_be64(highest);
	*(__u64 *)(head + 12) = bpf_cpu_to_be64(executed);
	walk->response = at + SUMMARY_BYTES;
}

/* Handles the next request of the packet. Returns 1 at the last one that has an answer. */
static long handle_next(__u32 index, void *context)
{
	struct walk *walk = context;
	struct scratch *scratch = own_scratch();
	__u32 bytes = walk->left < walk->segment ? walk->left : walk->segment;
	struct request request;
	int outcome;

	walk->outcome = SILENT;
	if (!scratch || bytes < REQUEST_HEAD_BYTES || bytes > REQUEST_BYTES_MAX ||
	    bpf_skb_load_bytes(walk->skb, walk->at, scratch->request, bytes))
		return 1;
	if (scratch->request[0] != REQUEST_KIND ||
	    big32(scratch->request + 4) != big32(scratch->response + 4))
		return 1;
	if (walk->session->has_tags) {
		__u64 tag;

		bytes -= TAG_BYTES;
		if (bytes > REQUEST_BYTES_MAX - TAG_BYTES)
			return 1;
		tag = tag_of(walk->session->request_key[0], walk->session->request_key[1], bytes, 0);
		if (tag != *(__u64 *)(scratch->request + bytes)) {
			__sync_fetch_and_add(&walk->window->forged, 1);
			return 1;
		}
	}
	if (parse(scratch->request, bytes, &request))
		return 1;
	if (!(request.region & KUMI_WIND_KERNEL_REGION)) {
		walk->outcome = PROGRAM;
		return 1;
	}
	/* A response to a get has the whole packet, so several in one are left to the program. */
	if (request.operation == GET && (index > 0 || walk->segment < walk->left)) {
		walk->outcome = PROGRAM;
		return 1;
	}
	outcome = execute(walk->window, &request, walk->session->owner);
	if (outcome < 0)
		return 1;
	if (outcome || request.operation > PUT_DIFF || !(scratch->request[1] & QUIET)) {
		if (append(walk, scratch, &request, outcome))
			return 1;
		/* A response has the number of the last request that it answers. */
		__builtin_memcpy(scratch->response + 8, scratch->request + 8, 8);
		if (scratch->request[1] & WANTS_SUMMARY && request.operation != GET)
			scratch->summarized = request.number + 1;
	}
	if (walk->segment >= walk->left || request.operation == GET)
		return 1;
	walk->at += walk->segment;
	walk->left -= walk->segment;
	return 0;
}

/* Sends the response in place of the frame. */
static __always_inline int respond(struct __sk_buff *skb, struct frame *frame, struct walk *walk,
				   struct scratch *scratch)
{
	__u32 bytes = walk->response;

	if (walk->session->has_tags) {
		__u64 *key = walk->session->response_key;
		__u64 tag = tag_of(key[0], key[1], bytes, 1);

		asm volatile("" : "+r"(bytes));
		if (bytes > REQUEST_BYTES_MAX - TAG_BYTES)
			return TC_ACT_SHOT;
		*(__u64 *)(scratch->response + bytes) = tag;
		bytes += TAG_BYTES;
	}
	if (turn(skb, frame, bytes, scratch->request))
		return TC_ACT_SHOT;
	asm volatile("" : "+r"(bytes));
	if (bytes < HEADER_BYTES || bytes > REQUEST_BYTES_MAX ||
	    bpf_skb_store_bytes(skb, frame->payload, scratch->response, bytes, 0))
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline int is_equal(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]));
}

SEC("tc")
int wind(struct __sk_buff *skb)
{
	struct kumi_wind_name name = {};
	struct frame frame __attribute__((aligned(8)));
	struct walk walk = {};
	struct scratch *scratch;
	void *windows;

	if (parse_frame(skb, &frame))
		return TC_ACT_UNSPEC;
	scratch = own_scratch();
	/* Until it is complete, the response has the session's index in the place of the peer's. */
	if (!scratch || bpf_skb_load_bytes(skb, frame.payload, scratch->response, HEADER_BYTES) ||
	    scratch->response[0] != REQUEST_KIND)
		return TC_ACT_UNSPEC;
	name.index = big32(scratch->response + 4);
	name.port = frame.port;
	walk.session = bpf_map_lookup_elem(&sessions, &name);
	if (!walk.session || walk.session->peer_port != frame.source_port ||
	    !is_equal(walk.session->peer, frame.source))
		return TC_ACT_UNSPEC;
	windows = bpf_map_lookup_elem(&owners, &walk.session->owner);
	if (!windows)
		return TC_ACT_UNSPEC;
	walk.window = bpf_map_lookup_elem(windows, &walk.session->window);
	if (!walk.window)
		return TC_ACT_UNSPEC;
	scratch->summarized = 0;
	walk.skb = skb;
	walk.at = frame.payload;
	walk.left = frame.bytes;
	walk.segment = skb->gso_size ? skb->gso_size : frame.bytes;
	walk.response = HEADER_BYTES;
	bpf_loop(SEGMENTS_MAX, handle_next, &walk, 0);
	if (walk.response == HEADER_BYTES)
		return walk.outcome == PROGRAM ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	append_summary(&walk, scratch);
	scratch->response[0] = RESPONSE_KIND;
	scratch->response[1] = 0;
	*(__be32 *)(scratch->response + 4) = bpf_htonl(walk.session->peer_index);
	return respond(skb, &frame, &walk, scratch);
}

char _license[] SEC("license") = "Dual BSD/GPL";
