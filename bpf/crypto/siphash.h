/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* SipHash-2-4 (Aumasson and Bernstein, 2012) on little-endian machines. */
#ifndef KUMI_SIPHASH_H
#define KUMI_SIPHASH_H

#include <linux/types.h>

#define ROTATE(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))

struct sip {
	__u64 a, b, c, d;
};

static __always_inline struct sip sip_start(__u64 key_low, __u64 key_high)
{
	struct sip s = {
		.a = key_low ^ 0x736f6d6570736575ULL,
		.b = key_high ^ 0x646f72616e646f6dULL,
		.c = key_low ^ 0x6c7967656e657261ULL,
		.d = key_high ^ 0x7465646279746573ULL,
	};

	return s;
}

static __always_inline void sip_mix(struct sip *s)
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

static __always_inline void sip_absorb(struct sip *s, __u64 word)
{
	s->d ^= word;
	sip_mix(s);
	sip_mix(s);
	s->a ^= word;
}

/* Returns the hash. `last` has the length in its highest byte, and the bytes beyond words. */
static __always_inline __u64 sip_end(struct sip *s, __u64 last)
{
	sip_absorb(s, last);
	s->c ^= 0xff;
	sip_mix(s);
	sip_mix(s);
	sip_mix(s);
	sip_mix(s);
	return s->a ^ s->b ^ s->c ^ s->d;
}

#endif
