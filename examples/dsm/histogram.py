# SPDX-License-Identifier: MIT OR Apache-2.0
"""A histogram whose bins all lie in one page, counted by all nodes.

Each node counts into bins of its own, which are neighbours of the others' (false sharing), and adds
its part to the sum under a lock.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=7000 python3 examples/dsm/histogram.py
"""

import kumi.dsm
import numpy

BINS = 16

with kumi.dsm.join() as dsm:
    parts = dsm.array((dsm.nodes, BINS), "int64")
    total = dsm.array(BINS, "int64")
    values = numpy.random.default_rng(1).integers(0, BINS, 100_000)
    mine = values[dsm.node :: dsm.nodes]
    for chunk in numpy.array_split(mine, 20):
        parts[dsm.node] += numpy.bincount(chunk, minlength=BINS)
        dsm.barrier()
    with dsm.lock(1):
        total += parts[dsm.node]
    dsm.barrier()
    expected = numpy.bincount(values, minlength=BINS)
    is_right = (total == expected).all() and (parts.sum(axis=0) == expected).all()
    dsm.barrier()
    if dsm.node == 0:
        print("histogram:", "the sequential result" if is_right else "WRONG")
    raise SystemExit(not is_right)
