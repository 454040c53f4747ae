# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of shared memory from Python: node 0 of two prints the claims."""

import os

import kumi.dsm

LABEL = os.environ.get("KUMI_TEST_LABEL", "dsm")
failed = False


def claim(text, holds):
    global failed
    failed = failed or not holds
    if dsm.node == 0 or not holds:
        print(f"{'ok     ' if holds else 'FAILED '}{LABEL}: {text}")


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        return text in str(error)
    return False


def lock_twice():
    with dsm.lock(5), dsm.lock(5):
        pass


with kumi.dsm.join() as dsm:
    other = 1 - dsm.node
    memory = dsm.alloc(3 * 4096, cyclic=1)
    for page in range(3):
        memory[page * 4096 + dsm.node] = 10 * page + dsm.node + 1
    dsm.barrier()
    seen = [memory[page * 4096 + other] for page in range(3)]
    claim("bytes of one page come from both nodes", seen == [10 * page + other + 1 for page in range(3)])
    for _ in range(50):
        with dsm.lock(3):
            memory[100] += 1
    dsm.barrier()
    claim("a counter under a lock counts", memory[100] == 100)
    dsm.barrier()
    if dsm.node == 1:
        memory[4096 : 2 * 4096] = b"x" * 4096
    dsm.barrier()
    with open(os.devnull, "wb", buffering=0) as null:
        dsm.prefetch(memory)
        claim("a system call reads prefetched pages", null.write(memory) == len(memory))
        with dsm.pinned(memory):
            for number in range(3):
                memory[4096 * dsm.node + 9] = number
                dsm.barrier()
                length = null.write(memory)
                claim(f"a system call reads pinned pages behind barrier {number}", length == len(memory))
                dsm.barrier()
    if dsm.node == 1:
        memory[4096 : 2 * 4096] = b"x" * 4096
    dsm.barrier()
    claim("a slice has what was written", memory[4096 : 2 * 4096] == b"x" * 4096)
    updated = dsm.array((2, 10_000), "int64", updated=True)
    for number in range(3):
        updated[dsm.node, number::7] = number + 1 + dsm.node
        dsm.barrier()
        seen = updated[other, number::7]
        claim(f"updates of barrier {number} are there", (seen == number + 1 + other).all())
        dsm.barrier()
    claim(
        "two placements are refused",
        raises(ValueError, "at most one", lambda: dsm.alloc(1, home=0, cyclic=1)),
    )
    claim("a length of 0 is refused", raises(ValueError, "length 0", lambda: dsm.alloc(0)))
    sizes = lambda: dsm.alloc(1000 + dsm.node)  # noqa: E731
    claim("lengths that differ are named", raises(kumi.dsm.DsmError, "alloc of 1001 bytes", sizes))
    claim("a lock that is held is refused", raises(ValueError, "lock 5 is held", lock_twice))
    dsm.barrier()
claim_closed = raises(ValueError, "closed", lambda: dsm.node)
if not claim_closed:
    failed = True
raise SystemExit(failed)
