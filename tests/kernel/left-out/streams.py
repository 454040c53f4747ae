"""Sends on twelve connections under `seven`, and samples their thresholds.

    streams.py sink | streams.py ADDRESS SECONDS

Prints the number of samples, the number of thresholds that no program returned, and examples.
"""

import os
import socket
import struct
import sys
import threading
import time

PORT, STREAMS = 7107, 12
RETURNED = (7, 0x7FFFFFFF)


def drain(connection):
    while connection.recv(1 << 20):
        pass


def sink():
    listener = socket.create_server(("0.0.0.0", PORT), backlog=64)
    while True:
        threading.Thread(target=drain, args=(listener.accept()[0],), daemon=True).start()


def push(connection):
    while True:
        connection.sendall(bytes(1 << 18))


def measure(address, seconds):
    streams = []
    for _ in range(STREAMS):
        connection = socket.socket()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"seven")
        connection.connect((address, PORT))
        threading.Thread(target=push, args=(connection,), daemon=True).start()
        streams.append(connection)
    samples, others = 0, {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.002)
        for connection in streams:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            (ssthresh,) = struct.unpack_from("I", info, 76)
            samples += 1
            if ssthresh not in RETURNED:
                others[ssthresh] = others.get(ssthresh, 0) + 1
    frequent = sorted(others.items(), key=lambda item: -item[1])[:8]
    shown = ", ".join(f"{value:#x} {count}x" for value, count in frequent)
    unknown = f"{sum(others.values())} of {len(others)} thresholds that no program returned"
    print(f"{samples} samples, {unknown}: {shown}")
    os._exit(1 if others else 0)


if __name__ == "__main__":
    sink() if sys.argv[1] == "sink" else measure(sys.argv[1], float(sys.argv[2]))
