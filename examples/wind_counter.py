#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counts in the memory of another process, which only waits.

examples/wind_counter.py serve 127.0.0.1:7000
examples/wind_counter.py count 127.0.0.1:7000
"""

import sys

import kumi.wind

role, address = sys.argv[1:]
secret = b"32 bytes that only the job knows"

if role == "serve":
    with kumi.wind.Node(address, secret) as node:
        counter = node.region(8)
        peer, _ = node.receive()
        node.send(peer, counter.place)
        node.receive()  # the client has counted
        print("counted to", int.from_bytes(counter.memory, sys.byteorder))
else:
    with kumi.wind.Node("0.0.0.0:0", secret) as node:
        peer = node.connect(address)
        node.send(peer, b"where?")
        place = node.receive(5)[1].data
        for _ in range(1000):
            node.fetch_add(peer, place, 1)
        node.send(peer, b"done", "synchronous")
