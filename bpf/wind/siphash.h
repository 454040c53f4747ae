/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* SipHash-2-4 (Aumasson and Bernstein, 2012) of a packet in the scratch memory. */
#ifndef KUMI_WIND_SIPHASH_H
#define KUMI_WIND_SIPHASH_H

#include "maps.h"

#define ROTATE(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))

struct sip {
	__u64 a, b, c, d;
};

static __always_inline void mix(struct sip *s)
{
	s->a += s->b;
	s->b = ROTATE(s->b, 13) ^ s->a;
	s->a = ROTATE(s->a, 32);
	s->c += s->d;
	s->d = ROTATE(s->d, 16) ^ s->c;
	s->a += s->d;
	s->d = ROTATE(s->d, 21) ^ s->a;
	s->c += s->b;
	s->b = ROTATE(s->b, 17) ^ s->c;
	s->c = ROTATE(s->c, 32);
}

static __always_inline void absorb(struct sip *s, __u64 word)
{
	s->d ^= word;
	mix(s);
	mix(s);
	s->a ^= word;
}

/* Hashes `bytes` bytes of the request, or of the response. Little-endian machines only. */
__noinline __u64 tag_of(__u64 key_low, __u64 key_high, __u32 bytes, int is_response)
{
	struct scratch *scratch = own_scratch();
	struct sip s = {
		.a = key_low ^ 0x736f6d6570736575ULL,
		.b = key_high ^ 0x646f72616e646f6dULL,
		.c = key_low ^ 0x6c7967656e657261ULL,
		.d = key_high ^ 0x7465646279746573ULL,
	};
	__u64 last = (__u64)bytes << 56;
	const __u8 *data;
	__u32 at = 0;

	if (!scratch)
		return 0;
	data = is_response ? scratch->response : scratch->request;
	for (int word = 0; word < REQUEST_BYTES_MAX / 8; word++) {
		if (at + 8 > bytes)
			break;
		absorb(&s, *(const __u64 *)(data + word * 8));
		at += 8;
	}
	if (at > REQUEST_BYTES_MAX)
		return 0;
	for (int byte = 0; byte < 7; byte++) {
		if (at + byte >= bytes)
			break;
		last |= (__u64)data[at + byte] << (8 * byte);
	}
	absorb(&s, last);
	s.c ^= 0xff;
	mix(&s);
	mix(&s);
	mix(&s);
	mix(&s);
	return s.a ^ s.b ^ s.c ^ s.d;
}

#endif
