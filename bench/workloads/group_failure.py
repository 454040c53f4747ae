#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loses ranks during collectives, one after the other, until two remain.

    RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. group_failure.py INTERFACE SEED

The seed determines the next victim, its fault (killed, stopped, or cable pulled) and the time. It
is the same on all ranks. The collective must fail on each other rank. These ranks shrink the group
and check the next collective. A rank measures times from the end of its last collective, which is
before the fault. The first of the remaining ranks prints one JSON object per loss.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import kumi.coll
import numpy

ELEMENTS = 20_000
FAULTS = ("kill", "stop", "cut")


def go(fault, interface):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        # A child process kills the stopped process after 4 s, when this loss is over.
        subprocess.Popen(["sh", "-c", f"sleep 4; kill -KILL {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "cut":
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)


def one_loss(group, chance, interface):
    """Causes one loss. Returns this rank's figures of it, or None on the victim."""
    members = group.members
    victim = chance.choice(members)
    fault = chance.choice(FAULTS)
    rounds, delay = chance.randrange(1, 4), chance.random() * 0.06
    me = members[group.rank]
    expected = None
    for at in range(1000):
        began = time.monotonic()
        if me == victim and at == rounds:
            threading.Timer(delay, go, (fault, interface)).start()
        ones = numpy.ones(ELEMENTS)
        try:
            group.all_reduce(ones)
        except kumi.coll.PeerLost as error:
            if me == victim:
                return None
            expected = members.index(victim)
            seen = time.monotonic() - began
            named_right = error.ranks == [expected]
            break
        assert (ones == len(members)).all()
    else:
        raise SystemExit("nobody was lost")
    group.shrink()
    # The next collective must be correct at once.
    ones = numpy.ones(ELEMENTS)
    group.all_reduce(ones)
    is_right = bool((ones == len(members) - 1).all()) and victim not in group.members
    worst = numpy.array([seen, float(not named_right), float(not is_right), time.monotonic() - began])
    group.all_reduce(worst, "max")
    return {
        "program": "failure",
        "fault": fault,
        "members": len(members),
        "error_after_ms": worst[0] * 1e3,
        "misnamed": worst[1],
        "wrong": worst[2],
        "going_on_after_ms": worst[3] * 1e3,
        "losses": 1,
    }


def main():
    interface, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)
    group = kumi.coll.Group(interface=interface)
    while group.size > 2:
        said = one_loss(group, chance, interface)
        if said is None:
            os._exit(0)
        if group.rank == 0:
            print(json.dumps(said), flush=True)
    group.close()


if __name__ == "__main__":
    main()
