#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Collectives of a group of libkumi, over its transport (KUMI_TRANSPORT).

    RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. group_coll.py WHAT SIZE_BYTES... [--seconds S]

WHAT is alltoall or allgather, of blocks of SIZE_BYTES. Each rank times a round from the end of a
barrier. The time of a round is the longest over the ranks. Every byte of every round is checked,
outside the time. Rank 0 prints one JSON object per size.
"""

import argparse
import json
import os
import statistics
import time

import numpy
from kumi.coll import Group

BUCKET_ROUNDS_MAX = 1000


def alltoall(group, array, number):
    """Block from rank f to rank t of round n consists of bytes f + 7 t + 31 n."""
    ranks, rank = group.size, group.rank
    array[:] = ((rank + 7 * numpy.arange(ranks) + 31 * number) % 256).astype("uint8")[:, None]
    start = time.monotonic()
    came = group.all_to_all(array)
    seconds = time.monotonic() - start
    expected = ((numpy.arange(ranks) + 7 * rank + 31 * number) % 256).astype("uint8")
    assert (came == expected[:, None]).all(), f"round {number}: wrong bytes"
    return seconds


def allgather(group, array, number):
    """Block of rank r of round n consists of bytes r + 31 n."""
    array[0, :] = (group.rank + 31 * number) % 256
    start = time.monotonic()
    came = group.all_gather(array[0])
    seconds = time.monotonic() - start
    expected = ((numpy.arange(group.size) + 31 * number) % 256).astype("uint8")
    assert (came.reshape(group.size, -1) == expected[:, None]).all(), f"round {number}: wrong bytes"
    return seconds


def main():
    parser = argparse.ArgumentParser()
    programs = {one.__name__: one for one in (alltoall, allgather)}
    parser.add_argument("what", choices=programs)
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    told = parser.parse_args()
    act = programs[told.what]
    with Group() as group:
        for size in told.sizes:
            array = numpy.zeros((group.size, size), "uint8")
            act(group, array, 0)
            rounds, began = [], time.monotonic()
            while True:
                group.barrier()
                seconds = act(group, array, len(rounds))
                is_over = float(time.monotonic() - began > told.seconds)
                longest = group.all_reduce(numpy.array([seconds, is_over]), "max")
                rounds.append(float(longest[0]) * 1e6)
                if longest[1] or len(rounds) == BUCKET_ROUNDS_MAX:
                    break
            if group.rank == 0:
                line = {
                    "program": "group",
                    "operation": told.what,
                    "transport": os.environ.get("KUMI_TRANSPORT", "tcp"),
                    "size_bytes": size,
                    "ranks": group.size,
                    "rounds": len(rounds),
                    "median_us": statistics.median(rounds),
                    "max_us": max(rounds),
                }
                print(json.dumps(line), flush=True)
        group.barrier()


if __name__ == "__main__":
    main()
