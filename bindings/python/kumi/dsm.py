# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory that the processes of a job share, on different machines.

    import kumi.dsm

    with kumi.dsm.join() as dsm:  # MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set
        table = dsm.array((1000, 1000), "float64")
        table[dsm.node] = ...
        dsm.barrier()
        print(table.sum())
        with dsm.lock(7):
            table[0, 0] += 1
        dsm.barrier()

What one process has written, another one sees after both have synchronised: at a barrier, or by a
lock that passes from one to the other. All processes make the same calls of ``array``, ``alloc``
and ``barrier`` in the same order, on one thread. A forked process must not use its parent's memory.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _library

__all__ = ["CallsDiffer", "Dsm", "DsmError", "JobEnded", "NodeLost", "Recovery", "join"]

_LOST, _MISMATCH, _ARGUMENT, _ENDED = 1, 2, 3, 5
_BLOCKS, _CYCLIC, _ON = range(3)


class DsmError(RuntimeError):
    """The memory cannot be shared, or the system refused something."""


class NodeLost(DsmError):
    """A node ended, was cut off, or does not answer."""


class JobEnded(DsmError):
    """So many nodes are lost that the others cannot go on."""


class CallsDiffer(DsmError):
    """The nodes made different calls."""


class _Recovery(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("barriers", c_uint64), ("left", c_int), ("place", c_int)]


@dataclass(frozen=True)
class Recovery:
    """What a recovery has led to."""

    #: Barriers that count as passed. The memory is as it was at the last one.
    barriers: int
    #: Numbers of the nodes that are left, in order.
    left: tuple[int, ...]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kumi_dsm_from_environment": (c_void_p, [c_void_p, *_library._SAY]),
    "kumi_dsm_free": (None, [c_void_p]),
    "kumi_dsm_node": (c_int, [c_void_p]),
    "kumi_dsm_nodes": (c_int, [c_void_p]),
    "kumi_dsm_alloc": (c_void_p, [c_void_p, c_size_t, c_int, c_uint32, *_library._SAY]),
    "kumi_dsm_alloc_updated": (c_void_p, [c_void_p, c_size_t, *_library._SAY]),
    "kumi_dsm_barrier": (c_int, [c_void_p, *_library._SAY]),
    "kumi_dsm_lock": (c_int, [c_void_p, c_uint32, *_library._SAY]),
    "kumi_dsm_unlock": (c_int, [c_void_p, c_uint32, *_library._SAY]),
    "kumi_dsm_keep_replicas": (c_int, [c_void_p, *_library._SAY]),
    "kumi_dsm_recover": (c_int, [c_void_p, ctypes.POINTER(_Recovery), *_library._SAY]),
    "kumi_dsm_is_left": (c_int, [c_void_p, c_int]),
    "kumi_dsm_pin": (c_int, [c_void_p, c_void_p, c_size_t, *_library._SAY]),
    "kumi_dsm_unpin": (c_int, [c_void_p, c_void_p, c_size_t, *_library._SAY]),
    "kumi_dsm_prefetch": (c_int, [c_void_p, c_void_p, c_size_t, *_library._SAY]),
}


def _load() -> ctypes.CDLL:
    library = _library.library()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def join(
    *,
    interface: str | None = None,
    secret: str | None = None,
    patience: float | None = None,
    replicas: int = 0,
) -> Dsm:
    """Joins the processes that the variables of the environment name.

    ``interface`` is the one on which the others reach this host (default: ``KUMI_INTERFACE``, or
    any), ``secret`` the job's, 16 characters or more, and ``patience`` the time for the nodes to find
    each other, in seconds.
    """
    interface = interface or os.environ.get("KUMI_INTERFACE") or None
    settings = _library.Config(
        None,
        interface.encode() if interface is not None else None,
        None,
        0,
        round(patience * 1000) if patience is not None else 0,
        None,
        secret.encode() if secret is not None else None,
    )
    library = _load()
    text = ctypes.create_string_buffer(_library.ERROR_BYTES)
    handle = library.kumi_dsm_from_environment(ctypes.byref(settings), text, len(text))
    if not handle:
        raise DsmError(text.value.decode(errors="replace"))
    dsm = Dsm(library, handle)
    if replicas:
        dsm._call("kumi_dsm_keep_replicas")
    return dsm


def _place(memory: Any) -> tuple[int, int]:
    """Returns the address and the length of an array's bytes."""
    view = memoryview(memory).cast("B")
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view)), view.nbytes


class Dsm:
    """This process's part of the shared memory. It ends with :meth:`close`."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._handle: int | None = handle

    @property
    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the shared memory is closed")
        return self._handle

    def _call(self, name: str, *arguments: Any) -> None:
        text = ctypes.create_string_buffer(_library.ERROR_BYTES)
        outcome = getattr(self._library, name)(self._open, *arguments, text, len(text))
        if outcome == 0:
            return
        message = text.value.decode(errors="replace")
        if outcome == _ARGUMENT:
            raise ValueError(message)
        kinds = {_LOST: NodeLost, _MISMATCH: CallsDiffer, _ENDED: JobEnded}
        raise kinds.get(outcome, DsmError)(message)

    @property
    def node(self) -> int:
        """Number of this node."""
        return int(self._library.kumi_dsm_node(self._open))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self._library.kumi_dsm_nodes(self._open))

    def alloc(
        self, length: int, *, home: int | None = None, cyclic: int | None = None, updated: bool = False
    ) -> memoryview:
        """Allocates ``length`` bytes of zeros. The homes of the pages are a block for each node.

        With ``home``, they are all on that node; with ``cyclic``, on each node in turn, that many
        pages of 4 KiB. With ``updated``, each node has all pages, and sends what it has written to all
        others at a barrier; locks have no effect on it. The memory must not be used after
        :meth:`close`.
        """
        if (home is not None) + (cyclic is not None) + updated > 1:
            raise ValueError("home, cyclic and updated: expected at most one of them")
        placement, parameter = _BLOCKS, 0
        if home is not None:
            placement, parameter = _ON, home
        elif cyclic is not None:
            placement, parameter = _CYCLIC, cyclic
        if length <= 0 or not 0 <= parameter < 2**32:
            raise ValueError(f"length {length}, home {home}, cyclic {cyclic}: expected positive numbers")
        text = ctypes.create_string_buffer(_library.ERROR_BYTES)
        if updated:
            at = self._library.kumi_dsm_alloc_updated(self._open, length, text, len(text))
        else:
            at = self._library.kumi_dsm_alloc(self._open, length, placement, parameter, text, len(text))
        if not at:
            raise DsmError(text.value.decode(errors="replace"))
        return memoryview((ctypes.c_ubyte * length).from_address(at)).cast("B")

    def array(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float64",
        *,
        home: int | None = None,
        cyclic: int | None = None,
        updated: bool = False,
    ) -> Any:
        """Allocates a NumPy array of zeros. The other arguments are those of :meth:`alloc`."""
        import numpy

        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        length = math.prod(dims) * numpy.dtype(dtype).itemsize
        memory = self.alloc(length, home=home, cyclic=cyclic, updated=updated)
        return numpy.frombuffer(memory, dtype).reshape(dims)

    def barrier(self) -> None:
        """Returns when all nodes have called it."""
        self._call("kumi_dsm_barrier")

    @contextmanager
    def lock(self, number: int) -> Iterator[None]:
        """Holds a lock: any number from 0 to 2³² - 1 is one."""
        if not 0 <= number < 2**32:
            raise ValueError(f"lock {number}: expected 0 to {2**32 - 1}")
        self._call("kumi_dsm_lock", number)
        try:
            yield
        finally:
            self._call("kumi_dsm_unlock", number)

    @property
    def left(self) -> tuple[int, ...]:
        """Numbers of the nodes that are left: all, until a recovery."""
        is_left = self._library.kumi_dsm_is_left
        return tuple(node for node in range(self.nodes) if is_left(self._open, node))

    def recover(self) -> Recovery:
        """Goes on without lost nodes, after a call raised :class:`NodeLost`.

        All nodes that are left call it. The memory goes back to the last barrier, all locks are free,
        and arrays that were allocated since then must be allocated again.
        """
        recovery = _Recovery(size=ctypes.sizeof(_Recovery))
        self._call("kumi_dsm_recover", ctypes.byref(recovery))
        return Recovery(recovery.barriers, self.left)

    def prefetch(self, memory: Any) -> None:
        """Gets the pages of an array or a memoryview together.

        System calls may use them until the next lock or barrier.
        """
        self._call("kumi_dsm_prefetch", *_place(memory))

    @contextmanager
    def pinned(self, memory: Any) -> Iterator[None]:
        """Keeps the pages of an array or a memoryview for system calls.

        They are got again at each lock and barrier that closes them.
        """
        place = _place(memory)
        self._call("kumi_dsm_pin", *place)
        try:
            yield
        finally:
            self._call("kumi_dsm_unpin", *place)

    def close(self) -> None:
        """Leaves the job and unmaps the memory. The others must not need this node's pages."""
        if self._handle is not None:
            self._library.kumi_dsm_free(self._handle)
            self._handle = None

    def __enter__(self) -> Dsm:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
