# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of Wind from Python: two nodes of one process."""

import os
import sys

import kumi.wind as wind

LABEL = os.environ.get("KUMI_TEST_LABEL", "wind")
failed = False


def claim(text, holds):
    global failed
    failed = failed or not holds
    print(f"{'ok     ' if holds else 'FAILED '}{LABEL}: {text}")


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        return text in str(error)
    return False


secret = b"s" * 32
with wind.Node("127.0.0.1:0", secret) as one, wind.Node("127.0.0.1:0", secret) as other:
    peer = one.connect(f"127.0.0.1:{other.port}")
    one.send(peer, b"hello", "synchronous")
    sender, message = other.receive(5)
    claim("a message arrives", message == (b"hello", b"", "synchronous"))
    other.send(sender, b"answer")
    claim("an answer reaches the sender", one.receive(5)[1].data == b"answer")
    region = other.region(1 << 20)
    data = bytes(range(256)) * 1000
    one.put(peer, region.place, data, offset=100)
    claim("a put is in the region", bytes(region.memory[100 : 100 + len(data)]) == data)
    claim("a get reads it", one.get(peer, region.place, len(data), offset=100) == data)
    one.put(peer, region.place, b"news", offset=500_000, notice=b"look")
    claim("a put notifies", other.receive(5)[1].data == b"look")
    claim("its data is there", bytes(region.memory[500_000:500_004]) == b"news")
    both = lambda: one.put(peer, region.place, b"ab", twin=b"ac", notice=b"c")  # noqa: E731
    claim("a twin and a notice are refused", raises(ValueError, "a twin or a notice", both))
    long = bytes(range(256)) * 2000
    with wind.Node("127.0.0.1:0", secret) as third:
        far = third.region(1 << 20)
        targets = [(peer, region.place), (one.connect(f"127.0.0.1:{third.port}"), far.place)]
        one.put_to_all(targets, long, offset=4096)
        both = (region.memory, far.memory)
        claim(
            "a put to all is in each region", all(bytes(it[4096 : 4096 + len(long)]) == long for it in both)
        )
    added = [one.fetch_add(peer, region.place, 2, offset=8) for _ in range(3)]
    claim("a fetch and add counts", added == [0, 2, 4])
    swapped = one.compare_swap(peer, region.place, 6, 100, offset=8)
    claim("a compare and swap stores", swapped == 6 and region.memory[8] == 100)
    claim("a swap stores", one.swap(peer, region.place, 0x1234, offset=8) == 100)
    stored = one.masked_store(peer, region.place, 0xFF00, 0xABCD, offset=8)
    claim("a masked store leaves the other bits", stored == 0x1234 and region.memory[8:10] == b"\x34\xab")
    one.send(peer, b"data", place=region.place, header=b"head")
    claim("a header is delivered, and data placed", other.receive(5)[1].header == b"head")
    claim("the data is in the region", bytes(region.memory[:4]) == b"data")
    region.memory[:6] = b"ABCDEF"
    one.put(peer, region.place, b"aXaaYa", twin=b"aaaaaa")
    claim("a diff that is put writes the changed bytes only", bytes(region.memory[:6]) == b"AXCDYF")
    one.send(peer, b"Zaa", place=region.place, header=b"diff", twin=b"aaa")
    claim("a diff notifies with its header", other.receive(5)[1] == (b"", b"diff", "ordered"))
    claim("a message of a diff does too", bytes(region.memory[:6]) == b"ZXCDYF")
    short = lambda: one.put(peer, region.place, b"abc", twin=b"ab")  # noqa: E731
    claim("a twin of another length is named", raises(ValueError, "2 bytes: expected 3", short))
    homeless = lambda: one.send(peer, b"abc", twin=b"abd")  # noqa: E731
    claim("a twin without a place is refused", raises(ValueError, "needs a place", homeless))
    outside = lambda: one.put(peer, region.place, b"a", offset=1 << 20)  # noqa: E731
    claim("a place out of the region is refused", raises(wind.Refused, "outside the region", outside))
    claim("a wait has a limit", raises(TimeoutError, "no message", lambda: other.receive(0.01)))
    claim("a wrong class is named", raises(ValueError, "'late'", lambda: one.send(peer, b"", "late")))
    claim("a short secret is named", raises(ValueError, "3 bytes", lambda: wind.Node("127.0.0.1:0", b"abc")))
    claim("an address is named", raises(wind.WindError, "`here`", lambda: wind.Node("here", secret)))
sys.exit(failed)
