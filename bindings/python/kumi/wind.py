# SPDX-License-Identifier: MIT OR Apache-2.0
"""Wind: messages with a delivery class each, and operations on memory of another process.

    import kumi.wind

    secret = bytes(32)  # the same in all processes of a job, and known to nobody else
    with kumi.wind.Node("0.0.0.0:7000", secret) as node:
        peer = node.connect("10.0.0.2:7000")
        node.send(peer, b"hello")
        peer, message = node.receive()

A region is memory that peers may read and write at any time, if they have its place:

    region = node.region(1 << 20)
    table = numpy.frombuffer(region.memory, numpy.float64)
    node.send(peer, region.place)

    # at the peer
    node.put(peer, place, values.tobytes(), offset=800)

Different threads may use one node. A forked process must not use its parent's node.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Literal, NamedTuple

from . import _library

__all__ = ["Message", "Node", "PeerLost", "Refused", "Region", "WindError"]

Delivery = Literal["ordered", "unordered", "synchronous"]

_CLASSES: tuple[Delivery, ...] = ("ordered", "unordered", "synchronous")
_SECRET_BYTES = 32
_LATE, _LOST, _REFUSED, _ARGUMENT = 1, 2, 3, 4
_HEADER_THROUGH, _DIRECT_MAP, _HEADER_THROUGH_DIFF, _DIRECT_DIFF = 1, 2, 3, 4


class WindError(RuntimeError):
    """A node cannot be opened, or the system refused something."""


class PeerLost(WindError):
    """The peer ended, was restarted, or does not answer."""


class Refused(WindError):
    """The peer has no such region, or the place lies outside it."""


class _Place(ctypes.Structure):
    _fields_ = [
        ("offset", c_uint64),
        ("region", c_uint32),
        ("reserved", c_uint32),
        ("key", c_uint8 * 16),
    ]


class _Message(ctypes.Structure):
    _fields_ = [
        ("peer", c_uint32),
        ("delivery_class", c_int32),
        ("mode", c_int32),
        ("reserved", c_uint32),
        ("header", c_void_p),
        ("header_bytes", c_size_t),
        ("data", c_void_p),
        ("data_bytes", c_size_t),
    ]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kumi_wind_open": (c_void_p, [ctypes.c_char_p, ctypes.c_char_p, *_library._SAY]),
    "kumi_wind_open_trusted": (c_void_p, [ctypes.c_char_p, ctypes.c_char_p, *_library._SAY]),
    "kumi_wind_has_kernel": (ctypes.c_int, [c_void_p]),
    "kumi_wind_put_to_all": (
        ctypes.c_int,
        [
            c_void_p,
            POINTER(c_uint32),
            POINTER(_Place),
            c_size_t,
            ctypes.c_char_p,
            c_size_t,
            *_library._SAY,
        ],
    ),
    "kumi_wind_port": (ctypes.c_int, [c_void_p]),
    "kumi_wind_close": (None, [c_void_p]),
    "kumi_wind_connect": (
        ctypes.c_int,
        [c_void_p, ctypes.c_char_p, POINTER(c_uint32), *_library._SAY],
    ),
    "kumi_wind_send": (
        ctypes.c_int,
        [c_void_p, c_uint32, ctypes.c_int, ctypes.c_char_p, c_size_t, *_library._SAY],
    ),
    "kumi_wind_send_to": (
        ctypes.c_int,
        [
            c_void_p,
            c_uint32,
            ctypes.c_int,
            ctypes.c_int,
            POINTER(_Place),
            ctypes.c_char_p,
            c_size_t,
            ctypes.c_char_p,
            c_size_t,
            *_library._SAY,
        ],
    ),
    "kumi_wind_send_diff": (
        ctypes.c_int,
        [
            c_void_p,
            c_uint32,
            ctypes.c_int,
            ctypes.c_int,
            POINTER(_Place),
            ctypes.c_char_p,
            c_size_t,
            ctypes.c_char_p,
            ctypes.c_char_p,
            c_size_t,
            *_library._SAY,
        ],
    ),
    "kumi_wind_receive": (POINTER(_Message), [c_void_p, c_int64]),
    "kumi_wind_message_free": (None, [POINTER(_Message)]),
    "kumi_wind_region_new": (c_void_p, [c_void_p, c_size_t, POINTER(_Place), *_library._SAY]),
    "kumi_wind_region_memory": (c_void_p, [c_void_p]),
    "kumi_wind_region_free": (None, [c_void_p, c_void_p]),
    "kumi_wind_put": (
        ctypes.c_int,
        [c_void_p, c_uint32, POINTER(_Place), ctypes.c_char_p, c_size_t, *_library._SAY],
    ),
    "kumi_wind_put_and_notify": (
        ctypes.c_int,
        [
            c_void_p,
            c_uint32,
            POINTER(_Place),
            ctypes.c_char_p,
            c_size_t,
            ctypes.c_char_p,
            c_size_t,
            *_library._SAY,
        ],
    ),
    "kumi_wind_put_diff": (
        ctypes.c_int,
        [
            c_void_p,
            c_uint32,
            POINTER(_Place),
            ctypes.c_char_p,
            ctypes.c_char_p,
            c_size_t,
            *_library._SAY,
        ],
    ),
    "kumi_wind_get": (
        ctypes.c_int,
        [c_void_p, c_uint32, POINTER(_Place), c_void_p, c_size_t, *_library._SAY],
    ),
    "kumi_wind_fetch_add": (
        ctypes.c_int,
        [c_void_p, c_uint32, POINTER(_Place), c_uint64, POINTER(c_uint64), *_library._SAY],
    ),
    "kumi_wind_compare_swap": (
        ctypes.c_int,
        [c_void_p, c_uint32, POINTER(_Place), c_uint64, c_uint64, POINTER(c_uint64), *_library._SAY],
    ),
    "kumi_wind_swap": (
        ctypes.c_int,
        [c_void_p, c_uint32, POINTER(_Place), c_uint64, POINTER(c_uint64), *_library._SAY],
    ),
    "kumi_wind_masked_store": (
        ctypes.c_int,
        [c_void_p, c_uint32, POINTER(_Place), c_uint64, c_uint64, POINTER(c_uint64), *_library._SAY],
    ),
    "kumi_wind_flush": (ctypes.c_int, [c_void_p, c_uint32, c_int64, *_library._SAY]),
}


def _load() -> ctypes.CDLL:
    library = _library.library()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Message(NamedTuple):
    """A message that arrived."""

    #: Data; empty if it was written to a region.
    data: bytes
    #: Header, empty for a message that was sent without one.
    header: bytes
    #: Class with which it was sent.
    delivery: Delivery


class _Error:
    """Buffer for the reason of a failure."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(_library.ERROR_BYTES)

    @property
    def arguments(self) -> tuple[Any, int]:
        return self.buffer, _library.ERROR_BYTES

    @property
    def text(self) -> str:
        return self.buffer.value.decode(errors="replace")

    def check(self, outcome: int) -> None:
        """Raises the exception of a failure."""
        if outcome == 0:
            return
        if outcome == _ARGUMENT:
            raise ValueError(self.text)
        if outcome == _LATE:
            raise TimeoutError(self.text)
        kinds = {_LOST: PeerLost, _REFUSED: Refused}
        raise kinds.get(outcome, WindError)(self.text)


class Region:
    """Memory that peers may read and write. It ends with its node, or with :meth:`close`."""

    def __init__(self, node: Node, length: int) -> None:
        error = _Error()
        place = _Place()
        self._node = node
        self._pointer = node._library.kumi_wind_region_new(
            node._pointer, length, byref(place), *error.arguments
        )
        if not self._pointer:
            raise WindError(error.text)
        #: Bytes that name the region to a peer. Whoever has them may access the region.
        self.place = bytes(place)
        start = node._library.kumi_wind_region_memory(self._pointer)
        #: The memory, as a writable buffer of bytes.
        self.memory = memoryview((c_uint8 * length).from_address(start)).cast("B")

    def close(self) -> None:
        """Ends the access of peers. ``memory`` must not be used any more."""
        if self._pointer:
            self._node._library.kumi_wind_region_free(self._node._pointer, self._pointer)
            self._pointer = None


class Node:
    """A node at ``address``, "IP:PORT". Port 0 leaves the choice to the kernel.

    Args:
        address: address and UDP port of the node.
        secret: 32 bytes, the same in all processes of the job.
        trusted: sessions are authenticated and not encrypted, so that the kernel of a host with
            ``kumi wind up`` executes the operations of peers. The same in all processes.

    Raises:
        WindError: the address is invalid or in use.
        ValueError: the secret has another length.
    """

    def __init__(self, address: str, secret: bytes, *, trusted: bool = False) -> None:
        self._pointer: int | None = None
        if len(secret) != _SECRET_BYTES:
            raise ValueError(f"secret has {len(secret)} bytes: expected {_SECRET_BYTES}")
        self._library = _load()
        error = _Error()
        opens = self._library.kumi_wind_open_trusted if trusted else self._library.kumi_wind_open
        self._pointer = opens(address.encode(), secret, *error.arguments)
        if not self._pointer:
            raise WindError(error.text)
        self._regions: list[Region] = []

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all sessions and regions."""
        if self._pointer:
            for region in self._regions:
                region.close()
            self._library.kumi_wind_close(self._pointer)
            self._pointer = None

    @property
    def has_kernel(self) -> bool:
        """Whether the kernel of this host executes the operations of peers."""
        return bool(self._library.kumi_wind_has_kernel(self._pointer))

    @property
    def port(self) -> int:
        """UDP port of the node."""
        return int(self._library.kumi_wind_port(self._pointer))

    def connect(self, address: str) -> int:
        """Returns the number of the peer at ``address``, "IP:PORT"."""
        error, peer = _Error(), c_uint32()
        error.check(
            self._library.kumi_wind_connect(self._pointer, address.encode(), byref(peer), *error.arguments)
        )
        return peer.value

    def send(
        self,
        peer: int,
        data: bytes,
        delivery: Delivery = "ordered",
        *,
        place: bytes | None = None,
        offset: int = 0,
        header: bytes | None = None,
        twin: bytes | None = None,
    ) -> None:
        """Sends a message. A synchronous one is in the peer's memory when this returns.

        Args:
            peer: number of the peer.
            data: bytes of the message.
            delivery: ``ordered`` after every earlier message, ``unordered`` when complete, or
                ``synchronous``: as ordered, and this waits for it.
            place: place of a region of the peer, to which the data is written.
            offset: offset in the region.
            header: bytes for the peer's program; without them it is not notified. Only with ``place``.
            twin: copy of ``data`` from before its changes: only bytes that differ are sent and
                written. Only with ``place``.

        Raises:
            PeerLost: the peer is lost.
            Refused: a synchronous message's place is not in a region of the peer.
        """
        if delivery not in _CLASSES:
            raise ValueError(f"invalid delivery {delivery!r}: expected one of {', '.join(_CLASSES)}")
        error, number = _Error(), _CLASSES.index(delivery)
        if place is None:
            if header is not None:
                raise ValueError("a header needs a place, to which the data is written")
            if twin is not None:
                raise ValueError("a twin needs a place, to which the changes are written")
            outcome = self._library.kumi_wind_send(
                self._pointer, peer, number, data, len(data), *error.arguments
            )
        elif twin is not None:
            _check_twin(twin, data)
            mode = _DIRECT_DIFF if header is None else _HEADER_THROUGH_DIFF
            header = header or b""
            outcome = self._library.kumi_wind_send_diff(
                self._pointer,
                peer,
                number,
                mode,
                byref(_at(place, offset)),
                header,
                len(header),
                twin,
                data,
                len(data),
                *error.arguments,
            )
        else:
            mode = _DIRECT_MAP if header is None else _HEADER_THROUGH
            header = header or b""
            outcome = self._library.kumi_wind_send_to(
                self._pointer,
                peer,
                number,
                mode,
                byref(_at(place, offset)),
                header,
                len(header),
                data,
                len(data),
                *error.arguments,
            )
        error.check(outcome)

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        """Returns the next message, with the number of its peer.

        Raises:
            TimeoutError: no message within ``timeout`` seconds.
        """
        limit_ms = -1 if timeout is None else max(0, int(timeout * 1000))
        found = self._library.kumi_wind_receive(self._pointer, limit_ms)
        if not found:
            raise TimeoutError(f"no message within {timeout} s")
        message = found.contents
        result = Message(
            ctypes.string_at(message.data, message.data_bytes),
            ctypes.string_at(message.header, message.header_bytes),
            _CLASSES[message.delivery_class],
        )
        peer = int(message.peer)
        self._library.kumi_wind_message_free(found)
        return peer, result

    def region(self, length: int) -> Region:
        """Registers a region of ``length`` zero bytes."""
        region = Region(self, length)
        self._regions.append(region)
        return region

    def put(
        self,
        peer: int,
        place: bytes,
        data: bytes,
        offset: int = 0,
        *,
        twin: bytes | None = None,
        notice: bytes | None = None,
    ) -> None:
        """Writes ``data`` to a region of the peer. It is there when this returns.

        With ``twin``, a copy of the data from before its changes, only bytes that differ are written.
        With ``notice``, the peer's program receives it as a message when the data is there; that of a
        put that is refused arrives all the same.
        """
        error = _Error()
        at = byref(_at(place, offset))
        if notice is not None:
            if twin is not None:
                raise ValueError("a put has a twin or a notice; send() with a header has both")
            outcome = self._library.kumi_wind_put_and_notify(
                self._pointer, peer, at, data, len(data), notice, len(notice), *error.arguments
            )
        elif twin is None:
            outcome = self._library.kumi_wind_put(self._pointer, peer, at, data, len(data), *error.arguments)
        else:
            _check_twin(twin, data)
            outcome = self._library.kumi_wind_put_diff(
                self._pointer, peer, at, twin, data, len(data), *error.arguments
            )
        error.check(outcome)

    def put_to_all(self, targets: Sequence[tuple[int, bytes]], data: bytes, offset: int = 0) -> None:
        """Writes ``data`` to a region of each peer: pairs of a peer and its place.

        Long data is passed on from each peer to the next one, so each link carries it once. An
        exception is that of the first peer that failed; the others have the data.
        """
        error, count = _Error(), len(targets)
        peers = (c_uint32 * count)(*(peer for peer, _ in targets))
        places = (_Place * count)(*(_at(place, offset) for _, place in targets))
        outcome = self._library.kumi_wind_put_to_all(
            self._pointer, peers, places, count, data, len(data), *error.arguments
        )
        error.check(outcome)

    def get(self, peer: int, place: bytes, length: int, offset: int = 0) -> bytes:
        """Reads ``length`` bytes of a region of the peer."""
        error, data = _Error(), ctypes.create_string_buffer(length)
        outcome = self._library.kumi_wind_get(
            self._pointer, peer, byref(_at(place, offset)), data, length, *error.arguments
        )
        error.check(outcome)
        return data.raw

    def _atomic(self, name: str, peer: int, place: bytes, offset: int, words: tuple[int, ...]) -> int:
        error, before = _Error(), c_uint64()
        function = getattr(self._library, f"kumi_wind_{name}")
        operands = (word % (1 << 64) for word in words)
        at = byref(_at(place, offset))
        error.check(function(self._pointer, peer, at, *operands, byref(before), *error.arguments))
        return before.value

    def fetch_add(self, peer: int, place: bytes, value: int, offset: int = 0) -> int:
        """Adds to a 64-bit word of the peer, and returns the word of before."""
        return self._atomic("fetch_add", peer, place, offset, (value,))

    def compare_swap(self, peer: int, place: bytes, expected: int, value: int, offset: int = 0) -> int:
        """Stores ``value`` in a word of the peer if it is ``expected``; returns the word of before."""
        return self._atomic("compare_swap", peer, place, offset, (expected, value))

    def swap(self, peer: int, place: bytes, value: int, offset: int = 0) -> int:
        """Stores ``value`` in a 64-bit word of the peer, and returns the word of before."""
        return self._atomic("swap", peer, place, offset, (value,))

    def masked_store(self, peer: int, place: bytes, mask: int, value: int, offset: int = 0) -> int:
        """Stores the bits of ``value`` that are set in ``mask``; returns the word of before."""
        return self._atomic("masked_store", peer, place, offset, (mask, value))

    def flush(self, peer: int, timeout: float | None = None) -> None:
        """Waits until every message to the peer has arrived."""
        error = _Error()
        limit_ms = -1 if timeout is None else max(0, int(timeout * 1000))
        error.check(self._library.kumi_wind_flush(self._pointer, peer, limit_ms, *error.arguments))


def _check_twin(twin: bytes, data: bytes) -> None:
    if len(twin) != len(data):
        raise ValueError(f"twin has {len(twin)} bytes: expected {len(data)}, as the data has")


def _at(place: bytes, offset: int) -> _Place:
    if len(place) != ctypes.sizeof(_Place):
        raise ValueError(f"place has {len(place)} bytes: expected {ctypes.sizeof(_Place)}")
    at = _Place.from_buffer_copy(place)
    at.offset += offset
    return at
