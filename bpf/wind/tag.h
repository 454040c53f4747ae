/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tag of a packet in the scratch memory. */
#ifndef KUMI_WIND_TAG_H
#define KUMI_WIND_TAG_H

#include "../crypto/siphash.h"
#include "maps.h"

/* Hashes `bytes` bytes of the request, or of the response. */
__noinline __u64 tag_of(__u64 key_low, __u64 key_high, __u32 bytes, int is_response)
{
	struct scratch *scratch = own_scratch();
	struct sip s = sip_start(key_low, key_high);
	__u64 last = (__u64)bytes << 56;
	const __u8 *data;
	__u32 at = 0;

	if (!scratch)
		return 0;
	data = is_response ? scratch->response : scratch->request;
	for (int word = 0; word < REQUEST_BYTES_MAX / 8; word++) {
		if (at + 8 > bytes)
			break;
		sip_absorb(&s, *(const __u64 *)(data + word * 8));
		at += 8;
	}
	if (at > REQUEST_BYTES_MAX)
		return 0;
	for (int byte = 0; byte < 7; byte++) {
		if (at + byte >= bytes)
			break;
		last |= (__u64)data[at + byte] << (8 * byte);
	}
	return sip_end(&s, last);
}

#endif
