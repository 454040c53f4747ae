# SPDX-License-Identifier: MIT OR Apache-2.0
"""Scopes of the Python module. The test maps the page a second time to read it."""

import mmap
import os
import struct
import sys

import kumi

page = mmap.mmap(int(os.environ["KUMI_PHASE_FD"]), 4096, mmap.MAP_SHARED, mmap.PROT_READ)
failures = 0


def expect(claim, phase):
    global failures
    index = struct.unpack_from("=I", page, 4)[0]
    name = page[64 + 64 * index :][:64].split(b"\0")[0].decode()
    failures += name != phase
    why = "" if name == phase else f"; it was {name}"
    print("ok    " if name == phase else "FAILED", f"{os.environ['KUMI_TEST_LABEL']}: {claim}{why}")


@kumi.phase("decorated")
def recursive(levels):
    if levels > 0:
        recursive(levels - 1)
    expect(f"a decorated function, {levels} levels to go, is in its phase", "decorated")


with kumi.phase("exchange"):
    expect("with kumi.phase() marks", "exchange")
    with kumi.phase("naïve"):
        expect("and nests", "naïve")
    expect("and gives back", "exchange")
    recursive(1)
    expect("and gives back after a decorated function", "exchange")
expect("and leaves point-to-point", "point-to-point")
try:
    with kumi.phase("exchange"):
        raise KeyError
except KeyError:
    expect("also by an exception", "point-to-point")
try:
    kumi.phase("x" * 64)
    failures += 1
except ValueError:
    pass
sys.exit(failures != 0)
