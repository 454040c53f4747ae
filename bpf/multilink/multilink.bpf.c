// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Data path of a multilink device in the kernel, for peers on trusted links.
 *
 *   kumi0 egress ─► destination in `peers`? ─► link of the earliest arrival ─► MACs of the way
 *                   and no long stream for the daemon?
 *   link ingress ─► source in `senders`?    ─► MACs of the devices ─► kumi0 ingress
 *                   early selective acknowledgement? hidden from TCP
 *
 * Questions of a peer's daemon are answered here, so no answer waits for this side's daemon.
 *
 * A frame has no header of ours: its MAC addresses tell whose it is. The source address on a link
 * is an alias, a random address that only the two daemons know. Every other frame goes its usual
 * way: broadcasts, and frames to other peers, to the daemon; the link's own frames to the kernel.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../crypto/siphash.h"
#include "intf.h"
#include "sack.h"

#define MACS_BYTES 12
/* skb->pkt_type of a frame that is for another host: PACKET_OTHERHOST of linux/if_packet.h. */
#define FOR_ANOTHER_HOST 3
/* Bytes of a frame on the wire that are not in memory: preamble, check sequence and gap. */
#define WIRE_BYTES 24
/* Least bytes of a frame: NICs pad shorter ones. */
#define LEAST_BYTES 60
/*
 * Times, in ns, between which a question without an answer shows that its path is behind. An answer
 * may be late by the shorter one, since the peer has other work. After the longer one the daemon
 * does not ask any more: it was killed. Both by judgement.
 */
#define LATE_NS 1000000ULL
#define UNASKED_NS 100000000ULL
/*
 * Time, in ns, by which the path that carried bytes before counts as behind for their repair, until
 * it answers a later question. If it was cut, the daemon notices within this time.
 */
#define LOST_NS 4000000ULL
/*
 * Time, in ns, after which a daemon that does not run has no long streams and tries no link: it
 * looks at the peers each 10 ms. By judgement.
 */
#define DAEMON_NS 100000000ULL
/* Least time between two changes of `long_at`, in ns. The daemon reads it every 50 ms. */
#define LONG_STEP_NS 1000000ULL
/* Parts of a value of `frames`. */
#define TURN_SHIFT 32
#define FRAMES_MASK 0xffffffffULL

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KUMI_PEERS_MAX);
	__type(key, struct kumi_mac);
	__type(value, struct kumi_peer);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KUMI_PEERS_MAX *KUMI_LINKS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct kumi_mac);
	__type(value, struct kumi_sender);
} senders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_LINKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_link);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_LINKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_load);
} loads SEC(".maps");

/*
 * Frames to and from each peer, by number: a change shows that it is in use. The upper half is the
 * link whose turn is next.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_PEERS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_PEERS_MAX *KUMI_LINKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_path);
} paths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_PEERS_MAX *KUMI_LINKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_count);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KUMI_PEERS_MAX *KUMI_LINKS_MAX);
	__type(key, __u32);
	__type(value, struct kumi_answer);
} answers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kumi_device);
} device SEC(".maps");

/* Time at which a long stream sent last, in ns of CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} long_at SEC(".maps");

static __always_inline int is_other(const __u8 *mac, const __u8 *than)
{
	int difference = 0;

	for (int at = 0; at < 6; at++)
		difference |= mac[at] ^ than[at];
	return difference;
}

/* Returns the segments of a frame. The kernel does not count those of a virtual machine's burst. */
static __always_inline __u32 segments_of(struct __sk_buff *skb)
{
	__u32 headers;

	if (skb->gso_segs || !skb->gso_size)
		return skb->gso_segs ? skb->gso_segs : 1;
	headers = headers_of(skb);
	return skb->len > headers ? (skb->len - headers + skb->gso_size - 1) / skb->gso_size : 1;
}

/*
 * Returns the bytes that a frame or burst takes on the wire. Both ends count alike, however their
 * bursts are cut, because the daemons compare the counts.
 */
static __always_inline __u64 wire_bytes(struct __sk_buff *skb)
{
	__u32 segments = segments_of(skb);

	if (segments == 1)
		return (skb->len > LEAST_BYTES ? skb->len : LEAST_BYTES) + WIRE_BYTES;
	return skb->len + segments * WIRE_BYTES + (segments - 1) * headers_of(skb);
}

static __always_inline struct kumi_path *path_of(const struct kumi_peer *peer, __u32 link)
{
	__u32 key = peer->number * KUMI_LINKS_MAX + link;

	return bpf_map_lookup_elem(&paths, &key);
}

static __always_inline struct kumi_count *count_of(__u32 peer, __u32 link)
{
	__u32 key = peer * KUMI_LINKS_MAX + link;

	return bpf_map_lookup_elem(&counts, &key);
}

/* Returns the time that bytes take, in ns. A division would take longer than the rest. */
static __always_inline __u64 time_of(__u64 bytes, __u64 byte_time)
{
	return bytes * byte_time >> KUMI_BYTE_TIME_SHIFT;
}

/*
 * Returns for how long a question has waited for its answer on a path, 0 if that is usual. What was
 * sent before it has waited as long. Otherwise the bytes on a cut path would seem to have left
 * until the daemon notices the cut.
 */
static __always_inline __u64 overdue(const struct kumi_path *path, __u32 key, __u64 now)
{
	__u64 asked_at = path->asked_at_ns, age = now - asked_at;
	struct kumi_answer *last;

	if (!asked_at || age < 2 * path->latency_ns + LATE_NS || age > UNASKED_NS)
		return 0;
	last = bpf_map_lookup_elem(&answers, &key);
	return last && last->asked_at_ns >= asked_at ? 0 : age;
}

/*
 * Returns the time at which the path has carried all that was sent on it, as far as it is known.
 * Bytes that were sent after an idle time could not leave before.
 */
static __always_inline __u64 path_free_at(const struct kumi_path *path, const struct kumi_count *count)
{
	__u64 sent = count->sent_bytes, left = path->left_bytes, start = count->start_bytes;
	__u64 by_answer = path->left_at_ns + time_of(sent > left ? sent - left : 0, path->byte_time);
	__u64 by_start = count->start_at_ns + time_of(sent - start, path->byte_time);

	return start >= left && by_start > by_answer ? by_start : by_answer;
}

/*
 * Returns the one of the links `left` to a peer on which the frame arrives first:
 *
 *   max(now, link's free_at, path's free_at) + time_of(bytes) + latency
 *
 * The link's time follows from all that this host sent on it, and from its rate. The path's follows
 * from what the peer received. So a rate that is wrong, and traffic of others, show in it.
 *
 * A link is better than another only if the frame arrives earlier by half of its own time. Among
 * equal ones it is that in turn after `first`. The link `lost_on` counts as behind. `due_at_ns`
 * receives the time of the arrival.
 */
static __always_inline __u32 earliest(struct kumi_peer *peer, __u32 left, __u64 bytes, __u64 now, __u32 first,
				      __u32 lost_on, __u64 *due_at_ns)
{
	__u64 best_ns = ~0ULL;
	__u32 best = KUMI_LINKS_MAX;

	for (__u32 turn = 0; turn < KUMI_LINKS_MAX; turn++) {
		__u32 number = (first + turn) & (KUMI_LINKS_MAX - 1);
		__u32 key = number;
		struct kumi_count *count;
		struct kumi_link *link;
		struct kumi_load *load;
		struct kumi_path *path;
		__u64 at_ns, free_at_ns, behind_ns, own_ns;

		if (!(left >> number & 1))
			continue;
		left &= ~(1U << number);
		link = bpf_map_lookup_elem(&links, &key);
		load = bpf_map_lookup_elem(&loads, &key);
		path = path_of(peer, number);
		count = count_of(peer->number, number);
		if (!link || !load || !path || !count || !link->index)
			continue;
		at_ns = load->free_at_ns > now ? load->free_at_ns : now;
		free_at_ns = path_free_at(path, count);
		if (free_at_ns > at_ns)
			at_ns = free_at_ns;
		behind_ns = overdue(path, peer->number * KUMI_LINKS_MAX + number, now);
		if (number == lost_on && behind_ns < LOST_NS)
			behind_ns = LOST_NS;
		if (now + behind_ns > at_ns)
			at_ns = now + behind_ns;
		own_ns = time_of(bytes, path->byte_time);
		at_ns += own_ns + path->latency_ns;
		if (at_ns + own_ns / 2 < best_ns) {
			best_ns = at_ns;
			best = number;
		}
		if (!left)
			break;
	}
	*due_at_ns = best_ns;
	return best;
}

/*
 * Returns the link that carried a repair's bytes before, unless it has shown since that it works.
 * Where a link was cut, TCP notices the loss before the daemon does. A repair on the same link is
 * lost as well, and a stream all of whose bytes are lost waits for TCP's timeout.
 */
static __always_inline __u32 lost_on(const struct kumi_peer *peer, const struct part *part)
{
	const struct burst *burst = part->is_repair ? sent_before(part) : 0;
	struct kumi_answer *last;
	__u32 key;

	if (!burst)
		return KUMI_LINKS_MAX;
	key = peer->number * KUMI_LINKS_MAX + burst->link;
	last = bpf_map_lookup_elem(&answers, &key);
	return last && last->asked_at_ns > burst->sent_at_ns ? KUMI_LINKS_MAX : burst->link;
}

/*
 * Returns the link on which a small stream stays while rates are guesses, KUMI_LINKS_MAX if it has
 * none that answers.
 */
static __always_inline __u32 kept_link(const struct kumi_peer *peer, const struct part *part, __u32 usable,
				       __u64 now)
{
	__u32 number = stays_on(part);
	struct kumi_path *path;

	if (number >= KUMI_LINKS_MAX || !(usable >> number & 1) || !(usable & peer->guessed))
		return KUMI_LINKS_MAX;
	path = path_of(peer, number);
	if (!path || overdue(path, peer->number * KUMI_LINKS_MAX + number, now))
		return KUMI_LINKS_MAX;
	return number;
}

/* Notes that a long stream sends, of whatever peer. */
static __always_inline void note_long(__u64 now)
{
	__u32 zero = 0;
	__u64 *at_ns = bpf_map_lookup_elem(&long_at, &zero);

	/* Not each frame writes, since all processors share the number. */
	if (at_ns && now - *at_ns > LONG_STEP_NS)
		*at_ns = now;
}

SEC("tc")
int kumi_egress(struct __sk_buff *skb)
{
	struct kumi_mac to = {};
	struct kumi_way macs;
	struct kumi_device *own;
	struct kumi_peer *peer;
	struct kumi_link *link;
	struct kumi_load *load;
	struct kumi_count *count;
	struct kumi_path *path;
	struct kumi_way way;
	struct part part;
	__u64 now, bytes, free_at, turn, due_at_ns = 0, *uses;
	__u32 number, usable, segments, at, is_alive, is_burst, is_long, zero = 0;

	if (bpf_skb_load_bytes(skb, 0, &macs, MACS_BYTES))
		return TC_ACT_UNSPEC;
	__builtin_memcpy(to.bytes, macs.to, sizeof(to.bytes));
	peer = bpf_map_lookup_elem(&peers, &to);
	own = bpf_map_lookup_elem(&device, &zero);
	/* The receiver restores the device as the source, so no machine behind it may be that. */
	if (!own || is_other(macs.from, own->mac))
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	segments = segments_of(skb);
	part = part_of(skb, segments, now);
	is_alive = now - own->alive_at_ns < DAEMON_NS;
	is_long = part.stream && now < part.stream->bulk_until_ns;
	if (is_long)
		note_long(now);
	if (!peer || (is_long && peer->daemon_has_bulk && is_alive))
		return TC_ACT_UNSPEC;
	/* A daemon that does not run ends no trial. */
	usable = is_alive && peer->tried ? peer->tried : peer->links;
	bytes = wire_bytes(skb);
	uses = bpf_map_lookup_elem(&frames, &peer->number);
	if (!uses)
		return TC_ACT_UNSPEC;
	/* Bursts take turns. Single frames take the first link, so short messages stay on one. */
	turn = *uses >> TURN_SHIFT;
	is_burst = segments > 1;
	number = kept_link(peer, &part, usable, now);
	if (number >= KUMI_LINKS_MAX)
		number = earliest(peer, usable, bytes, now, is_burst ? turn : 0,
				  part.stream ? lost_on(peer, &part) : KUMI_LINKS_MAX, &due_at_ns);
	link = bpf_map_lookup_elem(&links, &number);
	load = bpf_map_lookup_elem(&loads, &number);
	if (number >= KUMI_LINKS_MAX || !link || !load)
		return TC_ACT_UNSPEC;
	free_at = load->free_at_ns;
	/* Of two processors that give the link a frame at once, one may be forgotten. */
	__sync_val_compare_and_swap(&load->free_at_ns, free_at,
				    (free_at > now ? free_at : now) + time_of(bytes, link->byte_time));
	count = count_of(peer->number, number);
	path = path_of(peer, number);
	if (!count || !path)
		return TC_ACT_UNSPEC;
	if (path_free_at(path, count) <= now) {
		count->start_bytes = count->sent_bytes;
		count->start_at_ns = now;
	}
	__sync_fetch_and_add(&count->sent_bytes, bytes);
	if (is_burst)
		turn = number + 1;
	*uses = turn << TURN_SHIFT | ((*uses + 1) & FRAMES_MASK);
	at = number;
	/* The verifier does not follow the copy of `number` whose address the helpers take. */
	asm volatile("" : "+r"(at));
	if (at >= KUMI_LINKS_MAX)
		return TC_ACT_SHOT;
	if (part.stream)
		remember(&part, at, now, due_at_ns);
	way = peer->ways[at];
	if (bpf_skb_store_bytes(skb, 0, &way, MACS_BYTES, 0))
		return TC_ACT_SHOT;
	return bpf_redirect(link->index, 0);
}

/* Returns the tag of a question or an answer. */
static __always_inline __u64 tag_of(const struct kumi_question *question, const struct kumi_key *key)
{
	const __u64 *words = (const __u64 *)question;
	struct sip s = sip_start(key->low, key->high);
	__u64 bytes = offsetof(struct kumi_question, tag);

	for (int word = 0; word < offsetof(struct kumi_question, tag) / 8; word++)
		sip_absorb(&s, words[word]);
	return sip_end(&s, bytes << 56);
}

/* Answers a question on the link and path on which it came. */
static __always_inline int answer(struct __sk_buff *skb, const struct kumi_sender *sender,
				  struct kumi_question *question)
{
	struct kumi_mac mac = {};
	struct kumi_count *count;
	struct kumi_peer *peer;
	struct kumi_way way, none = {};
	__u32 link = sender->link;

	__builtin_memcpy(mac.bytes, sender->mac, sizeof(mac.bytes));
	peer = bpf_map_lookup_elem(&peers, &mac);
	count = count_of(sender->number, link);
	if (!peer || !count || link >= KUMI_LINKS_MAX)
		return TC_ACT_SHOT;
	way = peer->ways[link];
	/* A path that is not up here has no addresses. */
	if (!is_other(way.to, none.to))
		return TC_ACT_SHOT;
	question->kind = KUMI_ANSWER;
	question->received_bytes = bpf_cpu_to_be64(count->received_bytes);
	question->answered_at_ns = bpf_cpu_to_be64(bpf_ktime_get_ns());
	question->tag = tag_of(question, &sender->key);
	if (bpf_skb_store_bytes(skb, 0, &way, MACS_BYTES, 0) ||
	    bpf_skb_store_bytes(skb, ETHERNET_BYTES, question, sizeof(*question), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

/* Keeps an answer for the daemon. */
static __always_inline int keep(const struct kumi_sender *sender, const struct kumi_question *question)
{
	__u32 key = sender->number * KUMI_LINKS_MAX + sender->link;
	struct kumi_answer *kept = bpf_map_lookup_elem(&answers, &key);

	if (!kept)
		return TC_ACT_SHOT;
	kept->asked_at_ns = bpf_be64_to_cpu(question->asked_at_ns);
	kept->sent_bytes = bpf_be64_to_cpu(question->sent_bytes);
	kept->received_bytes = bpf_be64_to_cpu(question->received_bytes);
	kept->answered_at_ns = bpf_be64_to_cpu(question->answered_at_ns);
	kept->arrived_at_ns = bpf_ktime_get_ns();
	kept->check = kept->asked_at_ns ^ kept->sent_bytes ^ kept->received_bytes ^ kept->answered_at_ns ^
		      kept->arrived_at_ns;
	return TC_ACT_SHOT;
}

static __always_inline int handle_question(struct __sk_buff *skb, const struct kumi_sender *sender)
{
	struct kumi_question question;

	struct kumi_link *link;
	__u32 number = sender->link;

	if (bpf_skb_load_bytes(skb, ETHERNET_BYTES, &question, sizeof(question)))
		return TC_ACT_SHOT;
	if (question.kind == KUMI_QUESTION && question.tag == tag_of(&question, &sender->key))
		return answer(skb, sender, &question);
	link = bpf_map_lookup_elem(&links, &number);
	if (link && link->index && question.kind == KUMI_ANSWER &&
	    question.tag == tag_of(&question, &link->key))
		return keep(sender, &question);
	return TC_ACT_SHOT;
}

SEC("tc")
int link_ingress(struct __sk_buff *skb)
{
	struct kumi_mac from = {};
	struct kumi_sender *sender;
	struct kumi_count *count;
	struct kumi_device *own;
	struct kumi_path *path;
	struct kumi_way macs;
	__u64 bytes, *uses;
	__u32 key, zero = 0;

	if (skb->pkt_type == FOR_ANOTHER_HOST ||
	    bpf_skb_load_bytes(skb, sizeof(from.bytes), from.bytes, sizeof(from.bytes)))
		return TC_ACT_UNSPEC;
	sender = bpf_map_lookup_elem(&senders, &from);
	if (!sender)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(KUMI_QUESTION_TYPE))
		return handle_question(skb, sender);
	own = bpf_map_lookup_elem(&device, &zero);
	if (!own)
		return TC_ACT_UNSPEC;
	bytes = wire_bytes(skb);
	count = count_of(sender->number, sender->link);
	if (count)
		__sync_fetch_and_add(&count->received_bytes, bytes);
	uses = bpf_map_lookup_elem(&frames, &sender->number);
	if (uses)
		__sync_fetch_and_add(uses, 1);
	key = sender->number * KUMI_LINKS_MAX + sender->link;
	path = bpf_map_lookup_elem(&paths, &key);
	if (path)
		hide_early_sack(skb, bpf_ktime_get_ns() - path->latency_ns);
	__builtin_memcpy(macs.to, own->mac, sizeof(macs.to));
	__builtin_memcpy(macs.from, sender->mac, sizeof(macs.from));
	if (bpf_skb_store_bytes(skb, 0, &macs, MACS_BYTES, 0))
		return TC_ACT_SHOT;
	return bpf_redirect(own->index, BPF_F_INGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
