#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ranks that are lost in the midst of collectives, one after the other, until two are left.

    RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. group_failure.py INTERFACE SEED

Who goes next, how (killed, stopped, or its cable pulled) and when follows from the seed, on all ranks alike. The others'
collective must fail on each; they shrink, and the next is checked. A rank counts from when its last collective
was done, which is before anything happened. The first of those left prints one JSON object a loss.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy

import kumi.coll

ELEMENTS = 20_000
FAULTS = ("kill", "stop", "cut")


def go(fault, interface):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        # Somebody has to end it, when all is over.
        subprocess.Popen(["sh", "-c", f"sleep 4; kill -KILL {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "cut":
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)


def one_loss(group, chance, interface):
    """What this rank saw of it; nothing if it was this rank's."""
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
    # Which must be right at once.
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
