# SPDX-License-Identifier: MIT OR Apache-2.0
"""ctypes interface of libkumi.so. bindings/c/kumi_group.h documents the functions."""

import ctypes
import os
import shutil
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

#: Interface number that this package requires: KUMI_ABI of bindings/c/kumi_version.h.
ABI = 2
CARD_BYTES = 512
ERROR_BYTES = 1024

GATHER, SCATTER, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL = range(8)
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
ELEMENT_BYTES = (1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1)
REDUCTIONS = {"sum": 0, "product": 1, "min": 2, "max": 3, "and": 4, "or": 5, "xor": 6}


class _Sized(ctypes.Structure):
    """Struct that begins with its size."""

    def __init__(self, *members):
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


_SAY = [POINTER(c_char), c_size_t]
_FUNCTIONS = {
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
    "kumi_ticket_tell": (None, [c_void_p, c_void_p, c_uint64]),
    "kumi_queue_new": (c_void_p, []),
    "kumi_queue_next": (c_int, [c_void_p, c_int64, POINTER(c_uint64)]),
}

_loaded = None


def _places():
    named = os.environ.get("KUMI_COLL_LIBRARY")
    if named:
        return [named]
    places = [os.path.join(os.path.dirname(__file__), "libkumi.so")]
    command = shutil.which("kumi")
    if command:
        folder = os.path.dirname(os.path.realpath(command))
        places += [os.path.join(folder, "libkumi.so"), os.path.join(folder, "../lib/libkumi.so")]
    return places


def _check(loaded, place):
    """Raises ImportError if the library has another interface number."""
    abi = None
    if hasattr(loaded, "kumi_abi"):
        loaded.kumi_abi.restype, loaded.kumi_abi.argtypes = c_uint32, []
        abi = loaded.kumi_abi()
    if abi != ABI:
        raise ImportError(
            f"kumi: {place} has interface {'0' if abi is None else abi}: expected {ABI}; use the libkumi.so of this "
            "package (set KUMI_COLL_LIBRARY to its path)"
        )


def version():
    """Returns the library's release and a digest of the planner's sources, "0.1.0+5f1c9a7e"."""
    loaded = library()
    loaded.kumi_version.restype, loaded.kumi_version.argtypes = c_char_p, []
    return loaded.kumi_version().decode()


def library():
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
            raise ImportError(
                f"kumi: libkumi.so not found at {looked}; set KUMI_COLL_LIBRARY to its path"
            )
        loaded = ctypes.CDLL(place)
        _check(loaded, place)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        _loaded = loaded
    return _loaded
