# SPDX-License-Identifier: MIT OR Apache-2.0
"""ctypes interface of libkumi.so. bindings/c/kumi_group.h documents the functions."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Sequence
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

#: Interface number that this package requires: KUMI_ABI of bindings/c/kumi_version.h.
ABI = 3
CARD_BYTES = 512
ERROR_BYTES = 1024

GATHER, SCATTER, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL = range(8)
#: Names of the operations in messages, by number.
OPERATION_NAMES = (
    "a gather",
    "a scatter",
    "a broadcast",
    "a reduce",
    "an all-gather",
    "a reduce-scatter",
    "an all-reduce",
    "an all-to-all",
)
DONE, NOT_YET, LOST, EXCLUDED, DISAGREE, MISFIT, SYSTEM, CLOSED = range(8)
# enum kumi_element by NumPy's names. "byte" is for data that is moved and not combined, and
# "bfloat16" is a name of PyTorch.
ELEMENTS = {
    "byte": 0,
    "int8": 1,
    "uint8": 2,
    "int16": 3,
    "uint16": 4,
    "int32": 5,
    "uint32": 6,
    "int64": 7,
    "uint64": 8,
    "float16": 9,
    "bfloat16": 10,
    "float32": 11,
    "float64": 12,
    "bool": 13,
}
REDUCTIONS = {"sum": 0, "product": 1, "min": 2, "max": 3, "and": 4, "or": 5, "xor": 6}


class _Sized(ctypes.Structure):
    """Struct that begins with its size."""

    def __init__(self, *members: Any) -> None:
        super().__init__(ctypes.sizeof(self), *members)


class Config(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("host", c_char_p),
        ("interface", c_char_p),
        ("network", c_char_p),
        ("silence_ms", c_uint32),
        ("patience_ms", c_uint32),
        ("job", c_void_p),
        ("secret", c_char_p),
    ]


class Call(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("operation", c_int32),
        ("root", c_int32),
        ("element", c_int32),
        ("reduction", c_int32),
        ("bytes", POINTER(c_uint64)),
        ("blocks", c_size_t),
        ("from_", POINTER(c_void_p)),
        ("to", POINTER(c_void_p)),
    ]


class Done(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("bytes", c_uint64),
        ("from_", c_int32),
        ("reserved", c_uint32),
    ]


_SAY: list[Any] = [POINTER(c_char), c_size_t]
#: Result type and argument types of each function.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kumi_group_listen": (c_void_p, [POINTER(Config), POINTER(c_char), *_SAY]),
    "kumi_group_join": (c_void_p, [c_void_p, c_int, c_int, c_char_p, *_SAY]),
    "kumi_group_from_environment": (c_void_p, [POINTER(Config), *_SAY]),
    "kumi_group_free": (None, [c_void_p]),
    "kumi_group_rank": (c_int, [c_void_p]),
    "kumi_group_size": (c_int, [c_void_p]),
    "kumi_group_members": (c_size_t, [c_void_p, POINTER(c_int32), c_size_t]),
    "kumi_group_lost": (c_size_t, [c_void_p, POINTER(c_int32), c_size_t]),
    "kumi_group_shrink": (c_int, [c_void_p, c_int64, *_SAY]),
    "kumi_group_start": (c_void_p, [c_void_p, POINTER(Call), *_SAY]),
    "kumi_group_send": (c_void_p, [c_void_p, c_int, c_uint64, c_void_p, c_uint64, *_SAY]),
    "kumi_group_receive": (c_void_p, [c_void_p, c_int, c_uint64, c_void_p, c_uint64, *_SAY]),
    "kumi_ticket_wait": (c_int, [c_void_p, c_int64, POINTER(Done), *_SAY]),
    "kumi_ticket_free": (None, [c_void_p]),
    "kumi_ticket_notify": (None, [c_void_p, c_void_p, c_uint64]),
    "kumi_queue_new": (c_void_p, []),
    "kumi_queue_next": (c_int, [c_void_p, c_int64, POINTER(c_uint64)]),
}

_loaded: ctypes.CDLL | None = None


def _places() -> list[str]:
    named = os.environ.get("KUMI_COLL_LIBRARY")
    if named:
        return [named]
    places = [os.path.join(os.path.dirname(__file__), "libkumi.so")]
    command = shutil.which("kumi")
    if command:
        folder = os.path.dirname(os.path.realpath(command))
        places += [os.path.join(folder, "libkumi.so"), os.path.join(folder, "../lib/libkumi.so")]
    return places


def _check(loaded: ctypes.CDLL, place: str) -> None:
    """Raises ImportError if the library has another interface number."""
    abi = None
    if hasattr(loaded, "kumi_abi"):
        loaded.kumi_abi.restype, loaded.kumi_abi.argtypes = c_uint32, []
        abi = loaded.kumi_abi()
    if abi != ABI:
        raise ImportError(
            f"kumi: {place} has interface {'0' if abi is None else abi}: expected {ABI}; "
            "use the libkumi.so of this package (set KUMI_COLL_LIBRARY to its path)"
        )


def version() -> str:
    """Returns the library's release and a digest of the planner's sources, "0.1.0+5f1c9a7e"."""
    loaded = library()
    loaded.kumi_version.restype, loaded.kumi_version.argtypes = c_char_p, []
    text: bytes = loaded.kumi_version()
    return text.decode()


def library() -> ctypes.CDLL:
    """Returns libkumi.so as a ``ctypes.CDLL``. It is loaded once.

    Raises:
        ImportError: The library was not found, or has another interface number.
    """
    global _loaded
    if _loaded is None:
        places = _places()
        place = next((place for place in places if os.path.exists(place)), None)
        if place is None:
            looked = ", ".join(os.path.normpath(place) for place in places)
            raise ImportError(f"kumi: libkumi.so not found at {looked}; set KUMI_COLL_LIBRARY to its path")
        loaded = ctypes.CDLL(place)
        _check(loaded, place)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        _loaded = loaded
    return _loaded


def _pointers(addresses: Sequence[int]) -> ctypes.Array[c_void_p]:
    return (c_void_p * max(len(addresses), 1))(*addresses)


def call(
    operation: int,
    root: int,
    element: str,
    reduction: str,
    lengths: Sequence[int],
    from_: Sequence[int],
    to: Sequence[int],
) -> Call:
    """Returns the call of a collective on memory addresses.

    Raises:
        TypeError: The element type is unknown.
        ValueError: The reduction is unknown.
    """
    if element not in ELEMENTS:
        raise TypeError(f"kumi: unsupported element type {element}: expected one of {', '.join(ELEMENTS)}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"kumi: unknown reduction `{reduction}`: expected one of {', '.join(REDUCTIONS)}")
    return Call(
        operation,
        root,
        ELEMENTS[element],
        REDUCTIONS[reduction],
        (c_uint64 * max(len(lengths), 1))(*lengths),
        len(lengths),
        _pointers(from_),
        _pointers(to),
    )


def error_buffer() -> ctypes.Array[c_char]:
    """Returns a buffer in which a function stores its error."""
    return ctypes.create_string_buffer(ERROR_BYTES)


def error_text(buffer: ctypes.Array[c_char]) -> str:
    """Returns the error that a function has stored in a buffer."""
    text: bytes = buffer.value
    return text.decode(errors="replace")
