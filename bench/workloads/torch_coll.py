#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Collectives of a PyTorch program over Gloo or, under `kumi run --coll`, over Kumihimo.

    RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. torch_coll.py WHAT SIZE_BYTES...
                                                                      [--seconds S]

WHAT is allreduce, allgather, gather_object or ddp (a training step with SIZE_BYTES of gradients).
Only the backend's name differs. Each rank times a round from the end of a barrier. The time of a
round is the longest over the ranks. The result is checked, except in ddp. Rank 0 prints one JSON
object per size.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

BUCKET_ROUNDS_MAX = 1000


def allreduce(size):
    vector = torch.empty(size // 4)

    def act():
        vector.fill_(dist.get_rank())
        dist.all_reduce(vector)
        assert vector[-1] == sum(range(dist.get_world_size()))

    return act


def allgather(size):
    mine = torch.full((size,), dist.get_rank(), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]

    def act():
        dist.all_gather(rows, mine)
        assert [int(row[-1]) for row in rows] == list(range(len(rows)))

    return act


def gather_object(size):
    mine = {"rank": dist.get_rank(), "bytes": bytes(size)}

    def act():
        came = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, came)
        assert came is None or [one["rank"] for one in came] == list(range(len(came)))

    return act


def ddp(size):
    width = int((size / 4 / 2) ** 0.5)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(2)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    inputs = torch.randn(4, width)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def act():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return act


def main():
    parser = argparse.ArgumentParser()
    programs = {one.__name__: one for one in (allreduce, allgather, gather_object, ddp)}
    parser.add_argument("what", choices=programs)
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    told = parser.parse_args()
    torch.set_num_threads(1)
    backend = "kumi" if os.environ.get("KUMI_COLL_LIBRARY") else "gloo"
    if backend == "kumi":
        # The import registers the backend.
        import kumi.torch  # noqa: F401
    dist.init_process_group(backend)
    for size in told.sizes:
        act = programs[told.what](size)
        act()
        rounds, began = [], time.monotonic()
        while True:
            dist.barrier()
            start = time.monotonic()
            act()
            mine = torch.tensor([time.monotonic() - start, float(time.monotonic() - began > told.seconds)])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            rounds.append(mine[0].item() * 1e6)
            if mine[1] or len(rounds) == BUCKET_ROUNDS_MAX:
                break
        if dist.get_rank() == 0:
            line = {
                "program": "torch",
                "operation": told.what,
                "backend": backend,
                "size_bytes": size,
                "ranks": dist.get_world_size(),
                "rounds": len(rounds),
                "median_us": statistics.median(rounds),
                "max_us": max(rounds),
            }
            print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
