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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, overload

import numpy

from . import _arrays, _library
from ._arrays import E
from ._library import CARD_BYTES, DONE, ERROR_BYTES, NOT_YET

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Disagreement", "Group", "GroupError", "PeerLost", "Pending", "Timeout"]

_NETWORK = "/etc/kumi/network.toml"

#: Type of an operation's result.
T = TypeVar("T")


class GroupError(RuntimeError):
    """A group cannot be created, or an operation failed."""


class PeerLost(GroupError):
    """A rank died, hangs or is cut off. ``ranks`` are the current ranks of the lost members."""

    def __init__(self, text: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.ranks = list(ranks)


class Disagreement(GroupError):
    """Ranks made different requests. No request was executed, and the group remains usable."""


class Timeout(GroupError, TimeoutError):
    """An operation did not complete in time. It continues, and uses its arrays until it ends."""


class Pending(Generic[T]):
    """Operation that was started. It keeps references to its arrays. Several threads may use it."""

    def __init__(self, group: Group, ticket: int, what: str, result: Any, keep: Any) -> None:
        self._group, self._ticket, self._what = group, ticket, what
        self._result, self._keep = result, keep
        self._outcome: int | None = None
        self._text = ""
        #: Sender's rank and length in bytes of a received message. ``None`` before completion.
        self.source: int | None = None
        self.bytes: int | None = None

    def _look(self, limit_ms: int) -> bool:
        # Concurrent threads see the same outcome. The ticket is freed with its last reference.
        if self._outcome is None:
            library, error, done = _library.library(), _library.error_buffer(), _library.Done()
            outcome = library.kumi_ticket_wait(self._ticket, limit_ms, ctypes.byref(done), error, ERROR_BYTES)
            if outcome == NOT_YET:
                return False
            self._text = _library.error_text(error)
            self.source, self.bytes = done.from_, done.bytes
            self._outcome = outcome
            self._keep = None
        return True

    def done(self) -> bool:
        """Returns True if :meth:`wait` would return or raise at once."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> T:
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
        result: T = self._result() if callable(self._result) else self._result
        return result

    def _late(self, timeout: float | None) -> Timeout:
        return Timeout(f"kumi: {self._what} did not complete within {timeout:g} s")

    def __del__(self) -> None:
        if self._outcome is not None:
            _library.library().kumi_ticket_free(self._ticket)
        else:
            # The thread may still use the arrays.
            _orphans.append((self._ticket, self._keep))


#: What a method returns: the operation's result, or with ``wait=False`` the operation.
_Result = Union[T, Pending[T]]
#: Tickets without a `Pending`, and the arrays that their operations use.
_orphans: collections.deque[tuple[int, Any]] = collections.deque()


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
        rank: int | None = None,
        size: int | None = None,
        exchange: Callable[[bytes], Sequence[bytes]] | None = None,
        *,
        network: str | None = None,
        interface: str | None = None,
        host: str | None = None,
        job: Group | None = None,
        secret: bytes | None = None,
        silence: float = 0.0,
        patience: float = 0.0,
    ) -> None:
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
        error = _library.error_buffer()
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
                raise GroupError(f"kumi: {_library.error_text(error)}")
            cards = list(exchange(card.raw))
            if len(cards) != size or any(len(one) != CARD_BYTES for one in cards):
                raise GroupError(
                    f"kumi: exchange returned {len(cards)} cards: expected {size}, each of {CARD_BYTES} bytes"
                )
            handle = library.kumi_group_join(listening, rank, size, b"".join(cards), error, ERROR_BYTES)
        if not handle:
            raise GroupError(f"kumi: {_library.error_text(error)}")
        self._handle: int | None = handle
        self._process = os.getpid()
        # Also called at Python's exit, so that the other ranks are notified.
        self._leave = weakref.finalize(self, _leave, handle, os.getpid())

    # Members.

    def _group(self) -> int:
        if self._handle is None:
            raise GroupError("kumi: the group is closed")
        if os.getpid() != self._process:
            raise GroupError(
                f"kumi: this process was forked from process {self._process}, which owns the group; "
                "create a new group here, or start processes with the method `spawn`"
            )
        return self._handle

    @property
    def rank(self) -> int:
        """Current rank of this process."""
        rank: int = _library.library().kumi_group_rank(self._group())
        return rank

    @property
    def size(self) -> int:
        """Number of current members."""
        size: int = _library.library().kumi_group_size(self._group())
        return size

    def _list(self, function: Any) -> list[int]:
        room = (ctypes.c_int32 * 4096)()
        return list(room[: function(self._group(), room, len(room))])

    @property
    def members(self) -> list[int]:
        """Initial ranks of the current members."""
        return self._list(_library.library().kumi_group_members)

    @property
    def lost(self) -> list[int]:
        """Current ranks of the members that are lost."""
        return self._list(_library.library().kumi_group_lost)

    def shrink(self, timeout: float | None = 60.0) -> None:
        """Continues without the lost ranks, and renumbers the others, which must all call it.

        Args:
            timeout: Limit in seconds; ``None`` for no limit.

        Raises:
            Timeout: A rank, which the message names, did not call it. The call may be repeated.
        """
        error = _library.error_buffer()
        limit_ms = -1 if timeout is None else int(timeout * 1000)
        outcome = _library.library().kumi_group_shrink(self._group(), limit_ms, error, ERROR_BYTES)
        if outcome == NOT_YET:
            raise Timeout(f"kumi: {_library.error_text(error)}")
        if outcome != DONE:
            raise self._failure(outcome, _library.error_text(error))

    def close(self) -> None:
        """Leaves the group. Operations that are not complete fail."""
        self._handle = None
        self._leave()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _failure(self, outcome: int | None, text: str) -> GroupError:
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
    ) -> Pending[Any]:
        """Starts a collective on memory addresses.

        ``struct kumi_group_call`` of kumi_group.h defines ``bytes``, ``from_`` and ``to``.
        The group refers to ``keep`` until the operation is complete.
        """
        call = _library.call(operation, root, element, reduction, bytes, from_, to)
        _sweep()
        error = _library.error_buffer()
        ticket = _library.library().kumi_group_start(self._group(), ctypes.byref(call), error, ERROR_BYTES)
        if not ticket:
            raise ValueError(f"kumi: {_library.error_text(error)}")
        what = f"{_library.OPERATION_NAMES[operation]} of {sum(bytes)} bytes"
        return Pending(self, ticket, what, result, keep)

    def start_send(self, to: int, tag: int, address: int, bytes: int, keep: Any = None) -> Pending[None]:
        """Starts to send a message of ``bytes`` bytes at an address."""
        return self._message("kumi_group_send", to, tag, address, bytes, keep)

    def start_receive(
        self, from_: int, tag: int, address: int, bytes: int, keep: Any = None
    ) -> Pending[None]:
        """Starts to receive at most ``bytes`` bytes, from any rank if ``from_`` is negative."""
        return self._message("kumi_group_receive", from_, tag, address, bytes, keep)

    def _message(self, name: str, peer: int, tag: int, address: int, bytes: int, keep: Any) -> Pending[Any]:
        error = _library.error_buffer()
        function = getattr(_library.library(), name)
        ticket = function(self._group(), peer, tag, address, bytes, error, ERROR_BYTES)
        if not ticket:
            raise ValueError(f"kumi: {_library.error_text(error)}")
        peers = "from any rank" if peer < 0 else f"between rank {self.rank} and rank {peer}"
        return Pending(self, ticket, f"a message {peers}, tag {tag},", None, keep)

    # Operations on arrays.

    @staticmethod
    def _do(pending: Pending[T], wait: bool) -> _Result[T]:
        return pending.wait() if wait else pending

    @overload
    def all_reduce(self, array: NDArray[E], op: str = ..., wait: Literal[True] = ...) -> NDArray[E]: ...
    @overload
    def all_reduce(
        self, array: NDArray[E], op: str = ..., *, wait: Literal[False]
    ) -> Pending[NDArray[E]]: ...
    @overload
    def all_reduce(self, array: NDArray[E], op: str = ..., wait: bool = ...) -> _Result[NDArray[E]]: ...

    def all_reduce(self, array: NDArray[E], op: str = "sum", wait: bool = True) -> _Result[NDArray[E]]:
        """Combines all ranks' arrays of one shape, in place on all ranks. Returns ``array``."""
        return self._do(_arrays.all_reduce(self, array, op), wait)

    @overload
    def reduce(
        self, array: NDArray[E], root: int = ..., op: str = ..., wait: Literal[True] = ...
    ) -> NDArray[E] | None: ...
    @overload
    def reduce(
        self, array: NDArray[E], root: int = ..., op: str = ..., *, wait: Literal[False]
    ) -> Pending[NDArray[E] | None]: ...
    @overload
    def reduce(
        self, array: NDArray[E], root: int = ..., op: str = ..., wait: bool = ...
    ) -> _Result[NDArray[E] | None]: ...

    def reduce(
        self, array: NDArray[E], root: int = 0, op: str = "sum", wait: bool = True
    ) -> _Result[NDArray[E] | None]:
        """Combines all ranks' arrays of one shape. Returns a new one on ``root``, else ``None``."""
        return self._do(_arrays.reduce(self, array, root, op), wait)

    @overload
    def broadcast(self, array: NDArray[E], root: int = ..., wait: Literal[True] = ...) -> NDArray[E]: ...
    @overload
    def broadcast(
        self, array: NDArray[E], root: int = ..., *, wait: Literal[False]
    ) -> Pending[NDArray[E]]: ...
    @overload
    def broadcast(self, array: NDArray[E], root: int = ..., wait: bool = ...) -> _Result[NDArray[E]]: ...

    def broadcast(self, array: NDArray[E], root: int = 0, wait: bool = True) -> _Result[NDArray[E]]:
        """Copies the root's array to all ranks' arrays of the same size. Returns ``array``."""
        return self._do(_arrays.broadcast(self, array, root), wait)

    @overload
    def all_gather(self, array: NDArray[E], wait: Literal[True] = ...) -> NDArray[E]: ...
    @overload
    def all_gather(self, array: NDArray[E], wait: Literal[False]) -> Pending[NDArray[E]]: ...
    @overload
    def all_gather(self, array: NDArray[E], wait: bool = ...) -> _Result[NDArray[E]]: ...

    def all_gather(self, array: NDArray[E], wait: bool = True) -> _Result[NDArray[E]]:
        """Gathers all ranks' arrays of one shape on all ranks.

        Returns:
            A new array of shape ``(size, *array.shape)``, whose row ``r`` is rank ``r``'s array.
        """
        return self._do(_arrays.all_gather(self, array), wait)

    @overload
    def gather(self, array: NDArray[E], root: int = ..., wait: Literal[True] = ...) -> NDArray[E] | None: ...
    @overload
    def gather(
        self, array: NDArray[E], root: int = ..., *, wait: Literal[False]
    ) -> Pending[NDArray[E] | None]: ...
    @overload
    def gather(self, array: NDArray[E], root: int = ..., wait: bool = ...) -> _Result[NDArray[E] | None]: ...

    def gather(self, array: NDArray[E], root: int = 0, wait: bool = True) -> _Result[NDArray[E] | None]:
        """Same as :meth:`all_gather` on ``root``. Returns ``None`` on other ranks."""
        return self._do(_arrays.gather(self, array, root), wait)

    @overload
    def scatter(
        self, out: NDArray[E], array: NDArray[E] | None = ..., root: int = ..., wait: Literal[True] = ...
    ) -> NDArray[E]: ...
    @overload
    def scatter(
        self, out: NDArray[E], array: NDArray[E] | None = ..., root: int = ..., *, wait: Literal[False]
    ) -> Pending[NDArray[E]]: ...
    @overload
    def scatter(
        self, out: NDArray[E], array: NDArray[E] | None = ..., root: int = ..., wait: bool = ...
    ) -> _Result[NDArray[E]]: ...

    def scatter(
        self, out: NDArray[E], array: NDArray[E] | None = None, root: int = 0, wait: bool = True
    ) -> _Result[NDArray[E]]:
        """Copies row ``r`` of the root's ``array`` to rank ``r``'s ``out``. Returns ``out``.

        Args:
            out: Array of any shape, the same on all ranks.
            array: On the root, an array of shape ``(size, *out.shape)`` and of ``out``'s dtype.
        """
        return self._do(_arrays.scatter(self, out, array, root), wait)

    @overload
    def reduce_scatter(self, array: NDArray[E], op: str = ..., wait: Literal[True] = ...) -> NDArray[E]: ...
    @overload
    def reduce_scatter(
        self, array: NDArray[E], op: str = ..., *, wait: Literal[False]
    ) -> Pending[NDArray[E]]: ...
    @overload
    def reduce_scatter(self, array: NDArray[E], op: str = ..., wait: bool = ...) -> _Result[NDArray[E]]: ...

    def reduce_scatter(self, array: NDArray[E], op: str = "sum", wait: bool = True) -> _Result[NDArray[E]]:
        """Combines all ranks' arrays of shape ``(size, ...)``.

        Returns:
            This rank's row of the result, a new array of shape ``array.shape[1:]``.
        """
        return self._do(_arrays.reduce_scatter(self, array, op), wait)

    @overload
    def all_to_all(self, array: NDArray[E], wait: Literal[True] = ...) -> NDArray[E]: ...
    @overload
    def all_to_all(self, array: NDArray[E], wait: Literal[False]) -> Pending[NDArray[E]]: ...
    @overload
    def all_to_all(self, array: NDArray[E], wait: bool = ...) -> _Result[NDArray[E]]: ...

    def all_to_all(self, array: NDArray[E], wait: bool = True) -> _Result[NDArray[E]]:
        """Sends row ``r`` of each rank's array, of shape ``(size, ...)``, to rank ``r``.

        Returns:
            A new array of ``array``'s shape, whose row ``r`` comes from rank ``r``.
        """
        return self._do(_arrays.all_to_all(self, array), wait)

    # Operations on arrays of different lengths. Ranks exchange the lengths first.

    def all_gather_v(self, array: NDArray[E]) -> list[NDArray[E]]:
        """Gathers all ranks' arrays, vectors of any length. Returns a list by rank."""
        return _arrays.all_gather_v(self, array).wait()

    def gather_v(self, array: NDArray[E], root: int = 0) -> list[NDArray[E]] | None:
        """Same as :meth:`all_gather_v` on ``root``. Returns ``None`` on other ranks."""
        return _arrays.gather_v(self, array, root).wait()

    def all_to_all_v(self, arrays: Sequence[NDArray[E]]) -> list[NDArray[E]]:
        """Sends ``arrays[r]``, a vector of any length, to rank ``r``. Returns a list by sender."""
        return _arrays.all_to_all_v(self, arrays).wait()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self.all_reduce(numpy.zeros(1, "uint8"), "max")

    # Messages.

    @overload
    def send(self, array: NDArray[Any], to: int, tag: int = ..., wait: Literal[True] = ...) -> None: ...
    @overload
    def send(
        self, array: NDArray[Any], to: int, tag: int = ..., *, wait: Literal[False]
    ) -> Pending[None]: ...
    @overload
    def send(self, array: NDArray[Any], to: int, tag: int = ..., wait: bool = ...) -> _Result[None]: ...

    def send(self, array: NDArray[Any], to: int, tag: int = 0, wait: bool = True) -> _Result[None]:
        """Sends an array to rank ``to``. Returns when ``array`` may be changed again."""
        return self._do(_arrays.send(self, array, to, tag), wait)

    @overload
    def receive(
        self, array: NDArray[Any], from_: int | None = ..., tag: int = ..., wait: Literal[True] = ...
    ) -> int: ...
    @overload
    def receive(
        self, array: NDArray[Any], from_: int | None = ..., tag: int = ..., *, wait: Literal[False]
    ) -> Pending[int]: ...
    @overload
    def receive(
        self, array: NDArray[Any], from_: int | None = ..., tag: int = ..., wait: bool = ...
    ) -> _Result[int]: ...

    def receive(
        self, array: NDArray[Any], from_: int | None = None, tag: int = 0, wait: bool = True
    ) -> _Result[int]:
        """Receives at most ``array.nbytes`` bytes, by default from any rank. Returns the sender."""
        return self._do(_arrays.receive(self, array, from_, tag), wait)
