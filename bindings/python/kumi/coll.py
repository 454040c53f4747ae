# SPDX-License-Identifier: MIT OR Apache-2.0
"""Planned collectives on NumPy arrays, without an MPI library.

    import numpy, kumi.coll

    with kumi.coll.Group() as group:         # MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE: as torchrun sets them
        sums = numpy.arange(1000.0) * group.rank
        group.all_reduce(sums)

All ranks call the same functions in the same order, with arrays alike. A thread of the library moves the bytes: with
``wait=False`` a function returns at once, what it does goes on while Python computes, and ``.wait()`` of what it
returned ends it.

A rank that dies, hangs or is cut off raises :class:`PeerLost` on all others within a second. They may call
:meth:`Group.shrink` and go on.
"""

from __future__ import annotations

import collections
import ctypes
import os
import time
import weakref
from typing import Any, Callable, List, Optional, Sequence

import numpy

from . import _library
from ._library import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    CARD_BYTES,
    DONE,
    ELEMENT_BYTES,
    ELEMENTS,
    ERROR_BYTES,
    GATHER,
    NOT_YET,
    REDUCE,
    REDUCE_SCATTER,
    REDUCTIONS,
    SCATTER,
)

__all__ = ["Disagreement", "Group", "GroupError", "PeerLost", "Pending", "Timeout"]

_NETWORK = "/etc/kumi/network.toml"
#: By number.
_NAMES = (
    "a gather",
    "a scatter",
    "a broadcast",
    "a reduce",
    "an all-gather",
    "a reduce-scatter",
    "an all-reduce",
    "an all-to-all",
)


class GroupError(RuntimeError):
    """A group cannot be begun, or does not do something."""


class PeerLost(GroupError):
    """A rank died, hangs or is cut off. ``ranks`` are those that are lost, by their ranks of now."""

    def __init__(self, text: str, ranks: Sequence[int] = ()):
        super().__init__(text)
        self.ranks = list(ranks)


class Disagreement(GroupError):
    """Ranks asked for different things. Nothing was done, and the group stands."""


class Timeout(GroupError, TimeoutError):
    """Something is not done within its limit. It goes on, and uses its arrays until it is done or the group is closed."""


def _pointers(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


def _error() -> Any:
    return ctypes.create_string_buffer(ERROR_BYTES)


def _text(error: Any) -> str:
    return error.value.decode(errors="replace")


class Pending:
    """Something that was started. It keeps the arrays that it needs. Different threads may use it."""

    def __init__(self, group: "Group", ticket: int, what: str, result: Any, keep: Any):
        self._group, self._ticket, self._what = group, ticket, what
        self._result, self._keep = result, keep
        self._outcome: Optional[int] = None
        self._text = ""
        #: Of a message that was received: who sent it, and how many bytes it has.
        self.source: Optional[int] = None
        self.bytes: Optional[int] = None

    def _look(self, limit_ms: int) -> bool:
        # Threads that look at once see the same outcome. The ticket is freed with the last reference to it.
        if self._outcome is None:
            library, error, done = _library.library(), _error(), _library.Done()
            outcome = library.kumi_ticket_wait(
                self._ticket, limit_ms, ctypes.byref(done), error, ERROR_BYTES
            )
            if outcome == NOT_YET:
                return False
            self._text = _text(error)
            self.source, self.bytes = done.from_, done.bytes
            self._outcome = outcome
            self._keep = None
        return True

    def done(self) -> bool:
        """Whether :meth:`wait` would return, or raise, at once."""
        return self._look(0)

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits, at most so many seconds, and returns what the function would have with ``wait=True``."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 0.2 if until is None else until - time.monotonic()
            # In turns, so that Ctrl-C is heard.
            if self._look(int(min(max(left, 0.0), 0.2) * 1000)):
                break
            if until is not None and time.monotonic() >= until:
                raise self._late(timeout)
        if self._outcome != DONE:
            raise self._group._failure(self._outcome, self._text)
        return self._result() if callable(self._result) else self._result

    def _late(self, timeout: Optional[float]) -> Timeout:
        return Timeout(f"kumi: {self._what} is not done within {timeout:g} s")

    def __del__(self):
        if self._outcome is not None:
            _library.library().kumi_ticket_free(self._ticket)
        else:
            # The thread may still use the arrays.
            _orphans.append((self._ticket, self._keep))


#: Tickets that nobody waits for any more, and what they use.
_orphans: Any = collections.deque()


def _sweep() -> None:
    library = _library.library()
    for _ in range(len(_orphans)):
        try:
            ticket, keep = _orphans.popleft()
        except IndexError:  # another thread sweeps
            return
        if library.kumi_ticket_wait(ticket, 0, None, None, 0) == NOT_YET:
            _orphans.append((ticket, keep))
        else:
            library.kumi_ticket_free(ticket)


def _leave(handle: int, pid: int) -> None:
    # A child that was forked has the group's connections, but not its thread.
    if os.getpid() == pid:
        _library.library().kumi_group_free(handle)


class Group:
    """A rank's part in a group of processes.

    Without arguments it is begun as the environment says (``MASTER_ADDR``, ``MASTER_PORT``, ``RANK``,
    ``WORLD_SIZE``). With ``rank``, ``size`` and ``exchange``, a function that is given this rank's card and returns
    all ranks', it is begun by whatever the caller has: ``exchange=mpi4py.MPI.COMM_WORLD.allgather``.

    ``network`` is the file that ``kumi topo`` reads and writes; by default ``KUMI_TOPOLOGY``, or
    ``/etc/kumi/network.toml``. Without one all hosts are taken to be on one switch. ``interface`` is what
    ranks reach each other by, by default ``KUMI_INTERFACE`` or any. ``job`` is a group of all ranks of the job, where
    others of them may be at work beside this one: it takes its part of the links that they share. ``secret`` is what only
    the job's processes know, 16 bytes or more; by default ``KUMI_JOB_SECRET``, or what the launcher lets them know.
    """

    def __init__(
        self,
        rank: Optional[int] = None,
        size: Optional[int] = None,
        exchange: Optional[Callable[[bytes], Sequence[bytes]]] = None,
        *,
        network: Optional[str] = None,
        interface: Optional[str] = None,
        host: Optional[str] = None,
        job: Optional["Group"] = None,
        secret: Optional[bytes] = None,
        silence: float = 0.0,
        patience: float = 0.0,
    ):
        library = _library.library()
        if network is None:
            network = os.environ.get("KUMI_TOPOLOGY") or None
            if network is None and os.path.exists(_NETWORK):
                network = _NETWORK
        interface = interface or os.environ.get("KUMI_INTERFACE") or None
        encoded = [text and os.fsencode(text) for text in (host, interface, network)]
        around = None if job is None else job._group()
        times = [int(seconds * 1000) for seconds in (silence, patience)]
        config = _library.Config(*encoded, *times, around, secret)
        error = _error()
        if exchange is None:
            if rank is not None or size is not None:
                raise TypeError("kumi.coll.Group: rank and size go with exchange")
            handle = library.kumi_group_from_environment(ctypes.byref(config), error, ERROR_BYTES)
        else:
            if rank is None or size is None:
                raise TypeError("kumi.coll.Group: exchange goes with rank and size")
            card = ctypes.create_string_buffer(CARD_BYTES)
            listening = library.kumi_group_listen(ctypes.byref(config), card, error, ERROR_BYTES)
            if not listening:
                raise GroupError(f"kumi: {_text(error)}")
            cards = list(exchange(card.raw))
            if len(cards) != size or any(len(one) != CARD_BYTES for one in cards):
                raise GroupError(f"kumi: the exchange brought {len(cards)} cards, of {size}")
            handle = library.kumi_group_join(
                listening, rank, size, b"".join(cards), error, ERROR_BYTES
            )
        if not handle:
            raise GroupError(f"kumi: {_text(error)}")
        self._handle: Optional[int] = handle
        self._process = os.getpid()
        # Also when Python ends: the others are told.
        self._leave = weakref.finalize(self, _leave, handle, os.getpid())

    # Who is there.

    def _group(self) -> int:
        if self._handle is None:
            raise GroupError("kumi: the group is closed")
        if os.getpid() != self._process:
            raise GroupError(
                f"kumi: this process was forked from process {self._process}, which has the group; begin another group "
                "here, or start processes by the method `spawn`"
            )
        return self._handle

    @property
    def rank(self) -> int:
        """This rank, among the members of now."""
        return _library.library().kumi_group_rank(self._group())

    @property
    def size(self) -> int:
        """How many members there are now."""
        return _library.library().kumi_group_size(self._group())

    def _list(self, function: Any) -> List[int]:
        room = (ctypes.c_int32 * 4096)()
        return list(room[: function(self._group(), room, len(room))])

    @property
    def members(self) -> List[int]:
        """The members of now, by the ranks that they had at first."""
        return self._list(_library.library().kumi_group_members)

    @property
    def lost(self) -> List[int]:
        """Members of now that are lost, by their ranks of now."""
        return self._list(_library.library().kumi_group_lost)

    def shrink(self, timeout: Optional[float] = 60.0) -> None:
        """Goes on without those that are lost. All others must call it; ranks are numbered anew. :class:`Timeout` names a
        rank that has not within ``timeout`` seconds (``None``: without end)."""
        error = _error()
        limit_ms = -1 if timeout is None else int(timeout * 1000)
        outcome = _library.library().kumi_group_shrink(self._group(), limit_ms, error, ERROR_BYTES)
        if outcome == NOT_YET:
            raise Timeout(f"kumi: {_text(error)}")
        if outcome != DONE:
            raise self._failure(outcome, _text(error))

    def close(self) -> None:
        """Leaves the group."""
        self._handle = None
        self._leave()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _failure(self, outcome: Optional[int], text: str) -> GroupError:
        text = f"kumi: {text}"
        if outcome in (_library.LOST, _library.EXCLUDED):
            return PeerLost(text, self.lost if self._handle is not None else ())
        return Disagreement(text) if outcome == _library.DISAGREE else GroupError(text)

    # What is done, at the lowest: addresses.

    def start(
        self,
        operation: int,
        root: int,
        element: str,
        reduction: str,
        bytes: Sequence[int],
        from_: Sequence[int],
        to: Sequence[int],
        result: Any = None,
        keep: Any = None,
    ) -> Pending:
        """Starts a collective on addresses: bindings/c/kumi_group.h has what the tables are. ``keep`` is kept until
        it is over."""
        if element not in ELEMENTS:
            raise TypeError(f"kumi: elements of type {element}; known: {', '.join(ELEMENTS)}")
        if reduction not in REDUCTIONS:
            raise ValueError(f"kumi: no reduction `{reduction}`; known: {', '.join(REDUCTIONS)}")
        sizes = (ctypes.c_uint64 * max(len(bytes), 1))(*bytes)
        call = _library.Call(
            operation,
            root,
            ELEMENTS[element],
            REDUCTIONS[reduction],
            sizes,
            len(bytes),
            _pointers(from_),
            _pointers(to),
        )
        _sweep()
        error = _error()
        ticket = _library.library().kumi_group_start(
            self._group(), ctypes.byref(call), error, ERROR_BYTES
        )
        if not ticket:
            raise ValueError(f"kumi: {_text(error)}")
        what = f"{_NAMES[operation]} of {sum(bytes)} bytes"
        return Pending(self, ticket, what, result, keep)

    def start_send(self, to: int, tag: int, address: int, bytes: int, keep: Any = None) -> Pending:
        """Starts to send a message from an address."""
        return self._message("kumi_group_send", to, tag, address, bytes, keep)

    def start_receive(
        self, from_: int, tag: int, address: int, bytes: int, keep: Any = None
    ) -> Pending:
        """Starts to receive a message; from any rank if ``from_`` is negative."""
        return self._message("kumi_group_receive", from_, tag, address, bytes, keep)

    def _message(self, name, peer, tag, address, bytes, keep):
        error = _error()
        function = getattr(_library.library(), name)
        ticket = function(self._group(), peer, tag, address, bytes, error, ERROR_BYTES)
        if not ticket:
            raise ValueError(f"kumi: {_text(error)}")
        what = "a message from any rank" if peer < 0 else f"a message of rank {self.rank} and rank {peer}"
        return Pending(self, ticket, f"{what}, tag {tag},", None, keep)

    # What is done on arrays.

    @staticmethod
    def _address(array: Any, name: str, *, writes: bool = False) -> int:
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"kumi: {name} is a {type(array).__name__}; a NumPy array would be right")
        if not array.flags.c_contiguous:
            raise ValueError(f"kumi: {name} is not contiguous; numpy.ascontiguousarray makes it so")
        if writes and not array.flags.writeable:
            raise ValueError(f"kumi: {name} cannot be written to")
        return array.ctypes.data

    @staticmethod
    def _element(array: numpy.ndarray) -> str:
        # Bits of any type can be moved; whether they can be combined is found out where they are.
        name = array.dtype.name
        return name if name in ELEMENTS and array.dtype.isnative else "byte"

    def _rows(self, array: numpy.ndarray, name: str) -> List[int]:
        """Addresses of an array's parts along its first axis, one for each rank."""
        address = self._address(array, name)
        if array.ndim == 0 or array.shape[0] != self.size:
            shape = array.shape
            raise ValueError(f"kumi: {name} has shape {shape}; its first axis has one row for each of {self.size} ranks")
        row = array.nbytes // self.size
        return [address + row * rank for rank in range(self.size)]

    @staticmethod
    def _do(pending: Pending, wait: bool) -> Any:
        return pending.wait() if wait else pending

    def all_reduce(self, array: numpy.ndarray, op: str = "sum", wait: bool = True) -> Any:
        """Combines all ranks' arrays, in place on all."""
        at = self._address(array, "array", writes=True)
        element = self._element(array)
        pending = self.start(
            ALL_REDUCE, 0, element, op, [array.nbytes], [at], [at], array, array
        )
        return self._do(pending, wait)

    def reduce(
        self, array: numpy.ndarray, root: int = 0, op: str = "sum", wait: bool = True
    ) -> Any:
        """Combines all ranks' arrays to a new one on ``root``; elsewhere ``None``."""
        at = self._address(array, "array")
        out = numpy.empty_like(array) if self.rank == root else None
        to = [] if out is None else [out.ctypes.data]
        pending = self.start(
            REDUCE, root, self._element(array), op, [array.nbytes], [at], to, out, (array, out)
        )
        return self._do(pending, wait)

    def broadcast(self, array: numpy.ndarray, root: int = 0, wait: bool = True) -> Any:
        """Puts the root's array into everybody's."""
        at = self._address(array, "array", writes=self.rank != root)
        pending = self.start(BROADCAST, root, "byte", "sum", [array.nbytes], [], [at], array, array)
        return self._do(pending, wait)

    def _sizes(self, array: numpy.ndarray) -> List[int]:
        return [array.nbytes] * self.size

    def all_gather(self, array: numpy.ndarray, wait: bool = True) -> Any:
        """All ranks' arrays, which are alike, as a new one with one row for each rank."""
        at = self._address(array, "array")
        out = numpy.empty((self.size, *array.shape), array.dtype)
        rows = self._rows(out, "out")
        pending = self.start(
            ALL_GATHER, 0, "byte", "sum", self._sizes(array), [at], rows, out, (array, out)
        )
        return self._do(pending, wait)

    def gather(self, array: numpy.ndarray, root: int = 0, wait: bool = True) -> Any:
        """All ranks' arrays, which are alike, on ``root``: one row for each; elsewhere ``None``."""
        at = self._address(array, "array")
        out = numpy.empty((self.size, *array.shape), array.dtype) if self.rank == root else None
        rows = [] if out is None else self._rows(out, "out")
        pending = self.start(
            GATHER, root, "byte", "sum", self._sizes(array), [at], rows, out, (array, out)
        )
        return self._do(pending, wait)

    def scatter(
        self, out: numpy.ndarray, array: Optional[numpy.ndarray] = None, root: int = 0, wait: bool = True
    ) -> Any:
        """Puts row ``rank`` of the root's ``array`` into ``out``."""
        at = self._address(out, "out", writes=True)
        rows: List[int] = []
        if self.rank == root:
            if array is None or array.nbytes != out.nbytes * self.size or array.dtype != out.dtype:
                raise ValueError("kumi: the root's array is one row like out for each rank")
            rows = self._rows(array, "array")
        pending = self.start(
            SCATTER, root, "byte", "sum", self._sizes(out), rows, [at], out, (array, out)
        )
        return self._do(pending, wait)

    def reduce_scatter(self, array: numpy.ndarray, op: str = "sum", wait: bool = True) -> Any:
        """Combines all ranks' arrays, and returns this rank's row of what comes of it."""
        rows = self._rows(array, "array")
        out = numpy.empty(array.shape[1:], array.dtype)
        pending = self.start(
            REDUCE_SCATTER,
            0,
            self._element(array),
            op,
            self._sizes(out),
            rows,
            [out.ctypes.data],
            out,
            (array, out),
        )
        return self._do(pending, wait)

    def all_to_all(self, array: numpy.ndarray, wait: bool = True) -> Any:
        """Row ``to`` of each rank's array, as a new array with one row from each rank."""
        rows = self._rows(array, "array")
        out = numpy.empty_like(array)
        sizes = [array.nbytes // self.size] * (self.size * self.size)
        pending = self.start(
            ALL_TO_ALL, 0, "byte", "sum", sizes, rows, self._rows(out, "out"), out, (array, out)
        )
        return self._do(pending, wait)

    # What is not alike on all ranks is told first.

    def _shapes(self, arrays: Sequence[numpy.ndarray]) -> List[List[int]]:
        """How many elements each rank's arrays have; all of one type, one axis."""
        dtypes = {array.dtype for array in arrays}
        if len(dtypes) > 1 or any(array.ndim != 1 for array in arrays):
            raise ValueError("kumi: arrays of unlike lengths have one axis, and one type")
        mine = numpy.array([array.size for array in arrays], "int64")
        return self.all_gather(mine).tolist()

    def all_gather_v(self, array: numpy.ndarray) -> List[numpy.ndarray]:
        """All ranks' arrays, of any lengths."""
        at = self._address(array, "array")
        counts = self._shapes([array])
        out = [numpy.empty(count, array.dtype) for (count,) in counts]
        sizes = [one.nbytes for one in out]
        rows = [one.ctypes.data for one in out]
        return self.start(ALL_GATHER, 0, "byte", "sum", sizes, [at], rows, out, array).wait()

    def gather_v(self, array: numpy.ndarray, root: int = 0) -> Optional[List[numpy.ndarray]]:
        """All ranks' arrays, of any lengths, on ``root``; elsewhere ``None``."""
        at = self._address(array, "array")
        counts = self._shapes([array])
        sizes = [count * array.itemsize for (count,) in counts]
        out = None
        if self.rank == root:
            out = [numpy.empty(count, array.dtype) for (count,) in counts]
        rows = [one.ctypes.data for one in out or []]
        return self.start(GATHER, root, "byte", "sum", sizes, [at], rows, out, array).wait()

    def all_to_all_v(self, arrays: Sequence[numpy.ndarray]) -> List[numpy.ndarray]:
        """From each rank the array that it has for this one, of any lengths."""
        if len(arrays) != self.size:
            raise ValueError(f"kumi: {len(arrays)} arrays, for {self.size} ranks")
        rows = [self._address(array, f"arrays[{at}]") for at, array in enumerate(arrays)]
        counts = self._shapes(arrays)
        dtype = arrays[0].dtype
        out = [numpy.empty(counts[rank][self.rank], dtype) for rank in range(self.size)]
        sizes = [count * dtype.itemsize for row in counts for count in row]
        places = [one.ctypes.data for one in out]
        keep = list(arrays)
        return self.start(ALL_TO_ALL, 0, "byte", "sum", sizes, rows, places, out, keep).wait()

    def barrier(self) -> None:
        """Returns when all have called it."""
        self.all_reduce(numpy.zeros(1, "uint8"), "max")

    # Messages.

    def send(self, array: numpy.ndarray, to: int, tag: int = 0, wait: bool = True) -> Any:
        """Sends an array to one rank, which receives it. Returns when it may be changed again."""
        at = self._address(array, "array")
        return self._do(self.start_send(to, tag, at, array.nbytes, array), wait)

    def receive(
        self, array: numpy.ndarray, from_: Optional[int] = None, tag: int = 0, wait: bool = True
    ) -> Any:
        """Receives into an array, from any rank if none is named. With ``wait``, returns who sent it."""
        at = self._address(array, "array", writes=True)
        source = -1 if from_ is None else from_
        pending = self.start_receive(source, tag, at, array.nbytes, array)
        pending._result = lambda: pending.source
        return self._do(pending, wait)
