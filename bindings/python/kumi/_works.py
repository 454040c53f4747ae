# SPDX-License-Identifier: MIT OR Apache-2.0
"""Works of ``kumi.torch`` and their futures. A work is PyTorch's handle of a pending operation."""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable

import torch.distributed as dist
from torch.futures import Future

from . import _library, coll
from ._library import DONE

# The name differs between versions of PyTorch.
_Work = getattr(dist, "Work", None) or dist._Work

#: Works for which no wait has ended yet, by ID, oldest first. PyTorch's C++ code calls the Python
#: part of a work, which is destroyed with its last reference in Python. Without this reference a
#: wait from C++ would never return.
_kept: dict[int, Done] = {}
_KEPT_MAX = 256
_keeping = threading.Lock()


def _keep(work: Done) -> None:
    with _keeping:
        _kept[id(work)] = work
        while len(_kept) > _KEPT_MAX:
            del _kept[next(iter(_kept))]


def _forget(work: Done) -> None:
    with _keeping:
        _kept.pop(id(work), None)


def seconds_of(timeout: timedelta | None) -> float | None:
    """Converts PyTorch's timeout to seconds. Returns ``None`` if it was not set."""
    seconds = timeout.total_seconds() if timeout is not None else 0
    return seconds if seconds > 0 else None


class Done(_Work):  # type: ignore[misc, valid-type]
    """Work of one operation.

    The first thread that finds the operation complete finishes its result, for example copies it
    to the caller's tensors.
    """

    def __init__(
        self,
        pending: coll.Pending[Any],
        result: Any,
        finish: Callable[[], None] | None,
        limit: float | None,
    ) -> None:
        super().__init__()
        self._pending, self._value, self._finish = pending, result, finish
        #: Default limit of a wait, in seconds; ``None`` for no limit.
        self._limit = limit
        self._guard = threading.Lock()
        self._future: Future[Any] | None = None
        _keep(self)

    def _end(self, timeout: float | None) -> None:
        self._pending.wait(timeout)
        with self._guard:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the operation is complete.

        Args:
            timeout: Limit as a ``datetime.timedelta``; by default the process group's.

        Returns:
            True.

        Raises:
            kumi.coll.Timeout: The limit has passed. The operation continues.
            kumi.coll.PeerLost: A rank is lost.
            kumi.coll.GroupError: The operation failed for another reason.
        """
        try:
            self._end(seconds_of(timeout) or self._limit)
        finally:
            _forget(self)
        return True

    def is_completed(self) -> bool:
        if not self._pending.done():
            return False
        if self._pending._outcome == DONE:
            self._end(None)
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._pending._outcome == DONE

    def source_rank(self) -> int:
        self._end(self._limit)
        return self._pending.source or 0

    _source_rank = source_rank

    def result(self) -> Any:
        self._end(self._limit)
        return self._value

    def get_future(self) -> Future[Any]:
        with self._guard:
            if self._future is not None:
                return self._future
            self._future = Future()
        self._settle_later(self._future)
        return self._future

    def _settle_later(self, future: Future[Any]) -> None:
        _Watcher.get().watch(self, future)


def _settle(work: Done, future: Future[Any], timeout: float | None) -> None:
    try:
        work._end(timeout)
        value = work._value
    except Exception as error:  # The waiter handles it.
        future.set_exception(error)
    else:
        future.set_result(value)
    _forget(work)


#: Maximum number of threads that run callbacks of futures. Further callbacks wait for a thread.
_WORKERS_MAX = 64
#: Interval of the checks for works that are past their limit, in seconds.
_TICK = 0.2


class _Watcher:
    """Sets futures of all groups when their works complete, in the order of completion.

    A callback of a future may wait for another future. So each callback runs in a thread of its
    own, with up to ``_WORKERS_MAX`` threads.
    """

    _one: _Watcher | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._process = os.getpid()
        self._queue = _library.library().kumi_queue_new()
        self._names = itertools.count(1)
        self._watched: dict[int, tuple[Done, Future[Any], float | None]] = {}
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Number of idle workers to which no job is assigned.
        self._idle = 0
        self._workers = 0
        threading.Thread(target=self._look, name="kumi-futures", daemon=True).start()

    @classmethod
    def get(cls) -> _Watcher:
        with cls._making:
            # A forked child does not have the thread.
            if cls._one is None or cls._one._process != os.getpid():
                cls._one = cls()
            return cls._one

    def watch(self, work: Done, future: Future[Any]) -> None:
        name = next(self._names)
        until = None if work._limit is None else time.monotonic() + work._limit
        with self._lock:
            self._watched[name] = (work, future, until)
        _library.library().kumi_ticket_notify(work._pending._ticket, self._queue, name)

    def _look(self) -> None:
        name = ctypes.c_uint64()
        looked_at = time.monotonic()
        while True:
            tick_ms = int(_TICK * 1000)
            outcome = _library.library().kumi_queue_next(self._queue, tick_ms, ctypes.byref(name))
            if outcome == DONE:
                with self._lock:
                    done = self._watched.pop(name.value, None)
                if done is not None:
                    self.run(_settle, done[0], done[1], None)
                done = None
            now = time.monotonic()
            if now - looked_at > _TICK:
                looked_at = now
                self._give_up(now)

    def _give_up(self, now: float) -> None:
        with self._lock:
            late = [one for one in self._watched.items() if one[1][2] is not None and one[1][2] < now]
            for name, _ in late:
                del self._watched[name]
        for _, (work, future, _) in late:
            error = work._pending._late(work._limit)
            self.run(future.set_exception, error)
            _forget(work)

    def run(self, *job: Any) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._workers < _WORKERS_MAX:
                self._workers += 1
                threading.Thread(target=self._work, name="kumi-callbacks", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            function, *arguments = self._jobs.get()
            try:
                function(*arguments)
            except Exception as error:  # Set twice, or the callback's error.
                print(f"kumi: a future's callback failed: {error}", file=sys.stderr)
            del function, arguments
            with self._lock:
                self._idle += 1


class All(Done):
    """Work that is complete when each of several works is complete."""

    def __init__(self, works: Sequence[Done], value: Any) -> None:
        _Work.__init__(self)
        self._works, self._value = list(works), value
        self._limit = self._works[0]._limit if self._works else None
        self._guard = threading.Lock()
        self._future = None
        _keep(self)

    def _end(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work._end(None if until is None else max(0.0, until - time.monotonic()))

    def _settle_later(self, future: Future[Any]) -> None:
        _Watcher.get().run(_settle, self, future, self._limit)

    def result(self) -> Any:
        self._end(self._limit)
        return self._value

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)
