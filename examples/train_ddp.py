#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small model on several hosts with DistributedDataParallel.

    torchrun --nnodes 4 --rdzv-backend c10d --rdzv-endpoint host1:29500 examples/train_ddp.py
    RANK=0 WORLD_SIZE=4 MASTER_ADDR=host1 MASTER_PORT=29500 examples/train_ddp.py --backend gloo

Only the name of the backend differs from a program for Gloo. The model learns which of 64 random numbers are
summed. Every rank has its own data, and all ranks end with the same weights.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

INPUTS, BATCH = 64, 32


def batch(generator, wanted):
    inputs = torch.randn(BATCH, INPUTS, generator=generator)
    return inputs, inputs[:, wanted].sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="kumi", choices=["kumi", "gloo"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=256, help="neurons of the hidden layers")
    told = parser.parse_args()
    if told.backend == "kumi":
        # The import registers the backend.
        import kumi.torch  # noqa: F401

    dist.init_process_group(told.backend)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    own_data = torch.Generator().manual_seed(1000 + rank)
    wanted = [1, 3, 5, 8, 13, 21, 34, 55]
    layers = [
        torch.nn.Linear(INPUTS, told.width),
        torch.nn.ReLU(),
        torch.nn.Linear(told.width, told.width),
        torch.nn.ReLU(),
        torch.nn.Linear(told.width, 1),
    ]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    began = time.monotonic()
    for step in range(1, told.steps + 1):
        inputs, sums = batch(own_data, wanted)
        loss = torch.nn.functional.mse_loss(model(inputs), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % max(1, told.steps // 5) == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    # The time of the slowest, and whether all are alike.
    spent = torch.tensor([time.monotonic() - began])
    dist.all_reduce(spent, op=dist.ReduceOp.MAX)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    alike = all(torch.equal(one, weights) for one in gathered)
    if rank == 0:
        per_step = spent.item() / told.steps * 1000
        weights = "the same" if alike else "DIFFERENT"
        print(f"{told.backend}: {per_step:.1f} ms per step; all ranks have {weights} weights")
    dist.destroy_process_group()
    raise SystemExit(not alike)


if __name__ == "__main__":
    main()
