# SPDX-License-Identifier: MIT OR Apache-2.0
"""A product of matrices: each node computes a block of rows, in memory that all share.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=7000 python3 examples/dsm/matmul.py
"""

import kumi.dsm
import numpy

SIDE = 300

with kumi.dsm.join() as dsm:
    left, right, product = (dsm.array((SIDE, SIDE), "int64") for _ in range(3))
    if dsm.node == 0:
        left[:] = numpy.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 17
        right[:] = numpy.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 23
    dsm.barrier()
    rows = slice(SIDE * dsm.node // dsm.nodes, SIDE * (dsm.node + 1) // dsm.nodes)
    dsm.prefetch(right)
    product[rows] = left[rows] @ right
    dsm.barrier()
    is_right = (product == numpy.array(left) @ numpy.array(right)).all()
    dsm.barrier()
    if dsm.node == 0:
        print("product of matrices:", "the sequential result" if is_right else "WRONG")
    raise SystemExit(not is_right)
