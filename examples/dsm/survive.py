# SPDX-License-Identifier: MIT OR Apache-2.0
"""Heat that spreads along a rod, by processes of which some may be killed:

    for RANK in 0 1 2; do
        RANK=$RANK WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=7000 python3 examples/dsm/survive.py 2000 &
    done
    sleep 3; kill -9 %2; wait

The others go back to the last barrier, divide the rod anew, and end with the result of one machine.
"""

import sys

import kumi.dsm
import numpy


def spread(rod: numpy.ndarray, first: int, end: int) -> numpy.ndarray:
    """Returns cells of the rod after a step. Its ends keep their heat."""
    first, end = max(first, 1), min(end, len(rod) - 1)
    return rod[first:end] + 0.25 * (rod[first - 1 : end - 1] - 2 * rod[first:end] + rod[first + 1 : end + 1])


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    cells = 50_000
    with kumi.dsm.join(replicas=1) as dsm:
        # The rod before a step and after it, in turn.
        rods = dsm.array((2, cells))
        if dsm.node == 0:
            rods[:, :1000] = 100.0
        dsm.barrier()
        step, left = 0, dsm.left
        while step < steps:
            place = left.index(dsm.node)
            first, end = (cells * part // len(left) for part in (place, place + 1))
            now, then = rods[step % 2], rods[(step + 1) % 2]
            try:
                then[max(first, 1) : min(end, cells - 1)] = spread(now, first, end)
                dsm.barrier()
                step += 1
            except kumi.dsm.NodeLost as lost:
                recovery = dsm.recover()
                # The first barrier was before the first step.
                step, left = recovery.barriers - 1, recovery.left
                print(f"node {dsm.node}: {lost}; nodes {left} go on from step {step}", file=sys.stderr)
        if dsm.node == left[0]:
            rod = numpy.zeros(cells)
            rod[:1000] = 100.0
            for _ in range(steps):
                rod[1:-1] = spread(rod, 0, cells)
            is_right = numpy.array_equal(rod, rods[steps % 2])
            print(f"heat: {'the sequential result' if is_right else 'WRONG'}, with {len(left)} nodes left")
        dsm.barrier()


if __name__ == "__main__":
    main()
