/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts in the memory of the process of wind_counter.py serve:
 *
 *    cc -I bindings/c -o wind_counter examples/wind_counter.c target/release/libkumi.so
 *    ./wind_counter 127.0.0.1:7000
 */
#include <kumi_wind.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	char error[256];
	uint32_t peer;
	const uint8_t *secret = (const uint8_t *)"32 bytes that only the job knows";
	struct kumi_wind_node *node = kumi_wind_open("0.0.0.0:0", secret, error, sizeof error);
	if (argc < 2 || node == NULL ||
	    kumi_wind_connect(node, argv[1], &peer, error, sizeof error) != KUMI_WIND_DONE)
		return 1;
	kumi_wind_send(node, peer, KUMI_WIND_ORDERED, "where?", 6, error, sizeof error);
	struct kumi_wind_message *answer = kumi_wind_receive(node, 5000);
	struct kumi_wind_place place;
	if (answer == NULL || answer->data_bytes != sizeof place)
		return 1;
	memcpy(&place, answer->data, sizeof place);
	kumi_wind_message_free(answer);
	for (int i = 0; i < 1000; i++)
		if (kumi_wind_fetch_add(node, peer, &place, 1, NULL, error, sizeof error) != KUMI_WIND_DONE)
			return 1;
	int sent = kumi_wind_send(node, peer, KUMI_WIND_SYNCHRONOUS, "done", 4, error, sizeof error);
	kumi_wind_close(node);
	return sent != KUMI_WIND_DONE;
}
