# SPDX-License-Identifier: MIT OR Apache-2.0
"""Planned collectives on NumPy arrays, without an MPI library.

    import numpy, kumi.coll

    with kumi.coll.Group() as group:  # MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE by torchrun
        sums = numpy.arange(1000.0) * group.rank
        group.all_reduce(sums)

All ranks call the same collectives in the same order, with arrays of the same shape and dtype. A
thread of the library moves the bytes. With ``wait=False`` a method returns a :class:`Pending` at
once. The operation continues while Python computes, and :meth:`Pending.wait` returns its result.

If a rank dies, hangs or is cut off, operations on all other ranks raise :class:`PeerLost` within a
second. The others may call :meth:`Group.shrink` and continue.
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
#: Names of the operations, by number.
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
    """A group cannot be created, or an operation failed."""


class PeerLost(GroupError):
    """A rank died, hangs or is cut off. ``ranks`` are the current ranks of the lost members."""

    def __init__(self, text: str, ranks: Sequence[int] = ()):
        super().__init__(text)
        self.ranks = list(ranks)


class Disagreement(GroupError):
    """Ranks made different requests. No request was executed, and the group remains usable."""


class Timeout(GroupError, TimeoutError):
    """An operation did not complete in time. It continues, and uses its arrays until it ends."""


def _pointers(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


def _error() -> Any:
    return ctypes.create_string_buffer(ERROR_BYTES)


def _text(error: Any) -> str:
    return error.value.decode(errors="replace")


class Pending:
    """Operation that was started. It keeps references to its arrays. Several threads may use it."""

    def __init__(self, group: "Group", ticket: int, what: str, result: Any, keep: Any):
        self._group, self._ticket, self._what = group, ticket, what
        self._result, self._keep = result, keep
        self._outcome: Optional[int] = None
        self._text = ""
        #: Sender's rank and length in bytes of a received message. ``None`` before completion.
        self.source: Optional[int] = None
        self.bytes: Optional[int] = None

    def _look(self, limit_ms: int) -> bool:
        # Concurrent threads see the same outcome. The ticket is freed with its last reference.
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
        """Returns True if :meth:`wait` would return or raise at once."""
        return self._look(0)

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits until the operation is complete.

        Args:
            timeout: Limit in seconds; ``None`` for no limit.

        Returns:
            The result that the method would have returned with ``wait=True``.

        Raises:
            Timeout: The limit has passed. ``wait`` may be called again.
            PeerLost, Disagreement, GroupError: The operation failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 0.2 if until is None else until - time.monotonic()
            # Waits at most 0.2 s at a time, so that Python handles Ctrl-C.
            if self._look(int(min(max(left, 0.0), 0.2) * 1000)):
                break
            if until is not None and time.monotonic() >= until:
                raise self._late(timeout)
        if self._outcome != DONE:
            raise self._group._failure(self._outcome, self._text)
        return self._result() if callable(self._result) else self._result

    def _late(self, timeout: Optional[float]) -> Timeout:
        return Timeout(f"kumi: {self._what} did not complete within {timeout:g} s")

    def __del__(self):
        if self._outcome is not None:
            _library.library().kumi_ticket_free(self._ticket)
        else:
            # The thread may still use the arrays.
            _orphans.append((self._ticket, self._keep))


#: Tickets without a `Pending`, and the arrays that their operations use.
_orphans: Any = collections.deque()


def _sweep() -> None:
    library = _library.library()
    for _ in range(len(_orphans)):
        try:
            ticket, keep = _orphans.popleft()
        except IndexError:  # another thread has removed it
            return
        if library.kumi_ticket_wait(ticket, 0, None, None, 0) == NOT_YET:
            _orphans.append((ticket, keep))
        else:
            library.kumi_ticket_free(ticket)


def _leave(handle: int, pid: int) -> None:
    # Only the group's own process may free it. A forked child does not have the group's thread.
    if os.getpid() == pid:
        _library.library().kumi_group_free(handle)


class Group:
    """One rank's handle of a group of processes.

    Without arguments the group is created from the environment: ``MASTER_ADDR``, ``MASTER_PORT``,
    ``RANK`` and ``WORLD_SIZE``. With ``rank``, ``size`` and ``exchange`` the caller provides the
    exchange of cards, for example ``exchange=mpi4py.MPI.COMM_WORLD.allgather``.

    Arrays are C-contiguous NumPy arrays, of any dtype if they are only moved. Reductions support
    bool, integers of 8 to 64 bits and floats of 16 to 64 bits. ``op`` is "sum", "product", "min" or
    "max", or, except for floats, "and", "or" or "xor". Integers wrap. For bool "sum" is "or".

    For an invalid argument methods raise TypeError or ValueError, else as :meth:`Pending.wait`.

    Args:
        rank, size: This rank and the number of ranks, with ``exchange``.
        exchange: Function that takes this rank's card (bytes) and returns all cards, by rank.
        network: Network file, the same on all ranks. Default: ``KUMI_TOPOLOGY``, else
            ``/etc/kumi/network.toml`` if it exists, else one switch with links of 1 Gb/s.
        interface: Interface by which others reach this rank. Default: ``KUMI_INTERFACE``, or any.
        host: Name of this host in the network file. Default: the kernel's host name.
        job: Group of all ranks of the job, if others of them may communicate at the same time. This
            group then uses its share of common links.
        secret: Secret of the job, at least 16 bytes, the same on all ranks. Default:
            ``KUMI_JOB_SECRET``, ``KUMI_JOB_SECRET_FILE`` or a value of the launcher (SECURITY.md).
        silence: Time without a sign of life after which a rank is lost, in seconds; 0 for 0.7 s.
        patience: Limit of the time for ranks to find each other, in seconds; 0 for 60 s.
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
                raise TypeError("kumi.coll.Group: rank and size require exchange")
            handle = library.kumi_group_from_environment(ctypes.byref(config), error, ERROR_BYTES)
        else:
            if rank is None or size is None:
                raise TypeError("kumi.coll.Group: exchange requires rank and size")
            card = ctypes.create_string_buffer(CARD_BYTES)
            listening = library.kumi_group_listen(ctypes.byref(config), card, error, ERROR_BYTES)
            if not listening:
                raise GroupError(f"kumi: {_text(error)}")
            cards = list(exchange(card.raw))
            if len(cards) != size or any(len(one) != CARD_BYTES for one in cards):
                raise GroupError(f"kumi: exchange returned {len(cards)} cards: expected {size}, each of {CARD_BYTES} bytes")
            handle = library.kumi_group_join(
                listening, rank, size, b"".join(cards), error, ERROR_BYTES
            )
        if not handle:
            raise GroupError(f"kumi: {_text(error)}")
        self._handle: Optional[int] = handle
        self._process = os.getpid()
        # Also called at Python's exit, so that the other ranks are notified.
        self._leave = weakref.finalize(self, _leave, handle, os.getpid())

    # Members.

    def _group(self) -> int:
        if self._handle is None:
            raise GroupError("kumi: the group is closed")
        if os.getpid() != self._process:
            raise GroupError(
                f"kumi: this process was forked from process {self._process}, which owns the group; create a new group "
                "here, or start processes with the method `spawn`"
            )
        return self._handle

    @property
    def rank(self) -> int:
        """Current rank of this process."""
        return _library.library().kumi_group_rank(self._group())

    @property
    def size(self) -> int:
        """Number of current members."""
        return _library.library().kumi_group_size(self._group())

    def _list(self, function: Any) -> List[int]:
        room = (ctypes.c_int32 * 4096)()
        return list(room[: function(self._group(), room, len(room))])

    @property
    def members(self) -> List[int]:
        """Initial ranks of the current members."""
        return self._list(_library.library().kumi_group_members)

    @property
    def lost(self) -> List[int]:
        """Current ranks of the members that are lost."""
        return self._list(_library.library().kumi_group_lost)

    def shrink(self, timeout: Optional[float] = 60.0) -> None:
        """Continues without the lost ranks, and renumbers the others, which must all call it.

        Args:
            timeout: Limit in seconds; ``None`` for no limit.

        Raises:
            Timeout: A rank, which the message names, did not call it. The call may be repeated.
        """
        error = _error()
        limit_ms = -1 if timeout is None else int(timeout * 1000)
        outcome = _library.library().kumi_group_shrink(self._group(), limit_ms, error, ERROR_BYTES)
        if outcome == NOT_YET:
            raise Timeout(f"kumi: {_text(error)}")
        if outcome != DONE:
            raise self._failure(outcome, _text(error))

    def close(self) -> None:
        """Leaves the group. Operations that are not complete fail."""
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

    # Operations on addresses.

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
        """Starts a collective on memory addresses.

        ``struct kumi_group_call`` of kumi_group.h defines ``bytes``, ``from_`` and ``to``.
        The group refers to ``keep`` until the operation is complete.
        """
        if element not in ELEMENTS:
            raise TypeError(f"kumi: unsupported element type {element}: expected one of {', '.join(ELEMENTS)}")
        if reduction not in REDUCTIONS:
            raise ValueError(f"kumi: unknown reduction `{reduction}`: expected one of {', '.join(REDUCTIONS)}")
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
        """Starts to send a message of ``bytes`` bytes at an address."""
        return self._message("kumi_group_send", to, tag, address, bytes, keep)

    def start_receive(
        self, from_: int, tag: int, address: int, bytes: int, keep: Any = None
    ) -> Pending:
        """Starts to receive at most ``bytes`` bytes, from any rank if ``from_`` is negative."""
        return self._message("kumi_group_receive", from_, tag, address, bytes, keep)

    def _message(self, name, peer, tag, address, bytes, keep):
        error = _error()
        function = getattr(_library.library(), name)
        ticket = function(self._group(), peer, tag, address, bytes, error, ERROR_BYTES)
        if not ticket:
            raise ValueError(f"kumi: {_text(error)}")
        what = "a message from any rank" if peer < 0 else f"a message between rank {self.rank} and rank {peer}"
        return Pending(self, ticket, f"{what}, tag {tag},", None, keep)

    # Operations on arrays.

    @staticmethod
    def _address(array: Any, name: str, *, writes: bool = False) -> int:
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"kumi: {name} is a {type(array).__name__}: expected a NumPy array")
        if not array.flags.c_contiguous:
            raise ValueError(f"kumi: {name} is not C-contiguous; numpy.ascontiguousarray returns a copy that is")
        if writes and not array.flags.writeable:
            raise ValueError(f"kumi: {name} is read-only: expected a writable array")
        return array.ctypes.data

    @staticmethod
    def _element(array: numpy.ndarray) -> str:
        # Any type can be moved as bytes. The library rejects a reduction of bytes.
        name = array.dtype.name
        return name if name in ELEMENTS and array.dtype.isnative else "byte"

    def _rows(self, array: numpy.ndarray, name: str) -> List[int]:
        """Returns the addresses of an array's rows along its first axis, one for each rank."""
        address = self._address(array, name)
        if array.ndim == 0 or array.shape[0] != self.size:
            shape = array.shape
            raise ValueError(f"kumi: {name} has shape {shape}: expected one row for each of {self.size} ranks in its first axis")
        row = array.nbytes // self.size
        return [address + row * rank for rank in range(self.size)]

    @staticmethod
    def _do(pending: Pending, wait: bool) -> Any:
        return pending.wait() if wait else pending

    def all_reduce(self, array: numpy.ndarray, op: str = "sum", wait: bool = True) -> Any:
        """Combines all ranks' arrays of one shape, in place on all ranks. Returns ``array``."""
        at = self._address(array, "array", writes=True)
        element = self._element(array)
        pending = self.start(
            ALL_REDUCE, 0, element, op, [array.nbytes], [at], [at], array, array
        )
        return self._do(pending, wait)

    def reduce(
        self, array: numpy.ndarray, root: int = 0, op: str = "sum", wait: bool = True
    ) -> Any:
        """Combines all ranks' arrays of one shape. Returns a new one on ``root``, else ``None``."""
        at = self._address(array, "array")
        out = numpy.empty_like(array) if self.rank == root else None
        to = [] if out is None else [out.ctypes.data]
        pending = self.start(
            REDUCE, root, self._element(array), op, [array.nbytes], [at], to, out, (array, out)
        )
        return self._do(pending, wait)

    def broadcast(self, array: numpy.ndarray, root: int = 0, wait: bool = True) -> Any:
        """Copies the root's array to all ranks' arrays of the same size. Returns ``array``."""
        at = self._address(array, "array", writes=self.rank != root)
        pending = self.start(BROADCAST, root, "byte", "sum", [array.nbytes], [], [at], array, array)
        return self._do(pending, wait)

    def _sizes(self, array: numpy.ndarray) -> List[int]:
        return [array.nbytes] * self.size

    def all_gather(self, array: numpy.ndarray, wait: bool = True) -> Any:
        """Gathers all ranks' arrays of one shape on all ranks.

        Returns:
            A new array of shape ``(size, *array.shape)``, whose row ``r`` is rank ``r``'s array.
        """
        at = self._address(array, "array")
        out = numpy.empty((self.size, *array.shape), array.dtype)
        rows = self._rows(out, "out")
        pending = self.start(
            ALL_GATHER, 0, "byte", "sum", self._sizes(array), [at], rows, out, (array, out)
        )
        return self._do(pending, wait)

    def gather(self, array: numpy.ndarray, root: int = 0, wait: bool = True) -> Any:
        """Same as :meth:`all_gather` on ``root``. Returns ``None`` on other ranks."""
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
        """Copies row ``r`` of the root's ``array`` to rank ``r``'s ``out``. Returns ``out``.

        Args:
            out: Array of any shape, the same on all ranks.
            array: On the root, an array of shape ``(size, *out.shape)`` and of ``out``'s dtype.
        """
        at = self._address(out, "out", writes=True)
        rows: List[int] = []
        if self.rank == root:
            if array is None or array.nbytes != out.nbytes * self.size or array.dtype != out.dtype:
                raise ValueError("kumi: invalid array on the root: expected one row for each rank, with out's size and dtype")
            rows = self._rows(array, "array")
        pending = self.start(
            SCATTER, root, "byte", "sum", self._sizes(out), rows, [at], out, (array, out)
        )
        return self._do(pending, wait)

    def reduce_scatter(self, array: numpy.ndarray, op: str = "sum", wait: bool = True) -> Any:
        """Combines all ranks' arrays of shape ``(size, ...)``.

        Returns:
            This rank's row of the result, a new array of shape ``array.shape[1:]``.
        """
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
        """Sends row ``r`` of each rank's array, of shape ``(size, ...)``, to rank ``r``.

        Returns:
            A new array of ``array``'s shape, whose row ``r`` comes from rank ``r``.
        """
        rows = self._rows(array, "array")
        out = numpy.empty_like(array)
        sizes = [array.nbytes // self.size] * (self.size * self.size)
        pending = self.start(
            ALL_TO_ALL, 0, "byte", "sum", sizes, rows, self._rows(out, "out"), out, (array, out)
        )
        return self._do(pending, wait)

    # Operations on arrays of different lengths. Ranks exchange the lengths first.

    def _shapes(self, arrays: Sequence[numpy.ndarray]) -> List[List[int]]:
        """Returns the lengths of each rank's arrays. All have one axis and one dtype."""
        dtypes = {array.dtype for array in arrays}
        if len(dtypes) > 1 or any(array.ndim != 1 for array in arrays):
            raise ValueError("kumi: arrays of different lengths must have one axis and the same dtype")
        mine = numpy.array([array.size for array in arrays], "int64")
        return self.all_gather(mine).tolist()

    def all_gather_v(self, array: numpy.ndarray) -> List[numpy.ndarray]:
        """Gathers all ranks' arrays, vectors of any length. Returns a list by rank."""
        at = self._address(array, "array")
        counts = self._shapes([array])
        out = [numpy.empty(count, array.dtype) for (count,) in counts]
        sizes = [one.nbytes for one in out]
        rows = [one.ctypes.data for one in out]
        return self.start(ALL_GATHER, 0, "byte", "sum", sizes, [at], rows, out, array).wait()

    def gather_v(self, array: numpy.ndarray, root: int = 0) -> Optional[List[numpy.ndarray]]:
        """Same as :meth:`all_gather_v` on ``root``. Returns ``None`` on other ranks."""
        at = self._address(array, "array")
        counts = self._shapes([array])
        sizes = [count * array.itemsize for (count,) in counts]
        out = None
        if self.rank == root:
            out = [numpy.empty(count, array.dtype) for (count,) in counts]
        rows = [one.ctypes.data for one in out or []]
        return self.start(GATHER, root, "byte", "sum", sizes, [at], rows, out, array).wait()

    def all_to_all_v(self, arrays: Sequence[numpy.ndarray]) -> List[numpy.ndarray]:
        """Sends ``arrays[r]``, a vector of any length, to rank ``r``. Returns a list by sender."""
        if len(arrays) != self.size:
            raise ValueError(f"kumi: {len(arrays)} arrays: expected one for each of {self.size} ranks")
        rows = [self._address(array, f"arrays[{at}]") for at, array in enumerate(arrays)]
        counts = self._shapes(arrays)
        dtype = arrays[0].dtype
        out = [numpy.empty(counts[rank][self.rank], dtype) for rank in range(self.size)]
        sizes = [count * dtype.itemsize for row in counts for count in row]
        places = [one.ctypes.data for one in out]
        keep = list(arrays)
        return self.start(ALL_TO_ALL, 0, "byte", "sum", sizes, rows, places, out, keep).wait()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self.all_reduce(numpy.zeros(1, "uint8"), "max")

    # Messages.

    def send(self, array: numpy.ndarray, to: int, tag: int = 0, wait: bool = True) -> Any:
        """Sends an array to rank ``to``. Returns when ``array`` may be changed again."""
        at = self._address(array, "array")
        return self._do(self.start_send(to, tag, at, array.nbytes, array), wait)

    def receive(
        self, array: numpy.ndarray, from_: Optional[int] = None, tag: int = 0, wait: bool = True
    ) -> Any:
        """Receives at most ``array.nbytes`` bytes, by default from any rank. Returns the sender."""
        at = self._address(array, "array", writes=True)
        source = -1 if from_ is None else from_
        pending = self.start_receive(source, tag, at, array.nbytes, array)
        pending._result = lambda: pending.source
        return self._do(pending, wait)
