# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kumihimo as a backend of ``torch.distributed``, for tensors in the host's memory.

    import kumi.torch
    import torch.distributed as dist

    dist.init_process_group("kumi")                    # or "cpu:kumi,cuda:nccl" (2.15 can; 2.8 cannot)

Ranks find each other by the job's own store, as ``torchrun`` sets it up. What ``kumi.coll`` says of networks and of
ranks that are lost holds here: :class:`kumi.coll.PeerLost` is raised by ``wait``.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d
from torch.futures import Future

from . import _library, coll
from ._library import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    DONE,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)

__all__ = ["ProcessGroup"]

_ReduceOp = dist.ReduceOp
_OPERATIONS = {
    "SUM": "sum",
    "AVG": "sum",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "BAND": "and",
    "BOR": "or",
    "BXOR": "xor",
}
# The name differs between versions of PyTorch.
_Work = getattr(dist, "Work", None) or dist._Work
# What may be extended in Python: a backend, which stands in a process group beside others ("cpu:kumi,cuda:nccl"), or
# where PyTorch does not have that yet, only the process group itself.
_CAN_BE_BACKEND = hasattr(getattr(_c10d, "Backend", None), "all_gather_single")
_Base = _c10d.Backend if _CAN_BE_BACKEND else dist.ProcessGroup


def _operation(op: Any) -> str:
    """The name of a reduction: ``SUM`` of ``ReduceOp.SUM``."""
    for name in _OPERATIONS:
        if hasattr(_ReduceOp, name) and op == getattr(_ReduceOp, name):
            return name
    raise ValueError(f"kumi: {op} is no reduction that this backend has: {', '.join(_OPERATIONS)}")


def _element(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _check(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu":
            call = 'init_process_group("cpu:kumi,cuda:nccl")' if _CAN_BE_BACKEND else 'new_group(backend="nccl")'
            raise ValueError(
                f"kumi: a tensor on {tensor.device}; this backend moves the host's memory ({call} has another for the rest)"
            )
        if tensor.is_sparse:
            raise ValueError("kumi: a sparse tensor; to_dense() makes one that can be moved")


#: Works that nobody has waited for, oldest first. PyTorch's C++ calls back into the Python part of a work, which ends
#: with its last reference in Python: without it a wait from C++ would never return.
_kept: "Dict[int, _Done]" = {}
_KEPT_MAX = 256
_keeping = threading.Lock()


def _keep(work: "_Done") -> None:
    with _keeping:
        _kept[id(work)] = work
        while len(_kept) > _KEPT_MAX:
            del _kept[next(iter(_kept))]


def _forget(work: "_Done") -> None:
    with _keeping:
        _kept.pop(id(work), None)


def _seconds(timeout: Any) -> Optional[float]:
    """What PyTorch calls a timeout; ``None`` if it was not set."""
    seconds = timeout.total_seconds() if timeout is not None else 0
    return seconds if seconds > 0 else None


class _Done(_Work):  # type: ignore[misc, valid-type]
    """What the caller waits for. Whatever is left to do with the result is done by whoever sees first that it came."""

    def __init__(
        self,
        pending: coll.Pending,
        result: Any,
        finish: Optional[Callable[[], None]],
        limit: Optional[float],
    ):
        super().__init__()
        self._pending, self._value, self._finish = pending, result, finish
        #: Seconds that a wait may take that names no limit.
        self._limit = limit
        self._guard = threading.Lock()
        self._future: Optional[Future] = None
        _keep(self)

    def _end(self, timeout: Optional[float]) -> None:
        self._pending.wait(timeout)
        with self._guard:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def wait(self, timeout: Any = None) -> bool:
        try:
            self._end(_seconds(timeout) or self._limit)
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

    def get_future(self) -> Future:
        with self._guard:
            if self._future is not None:
                return self._future
            self._future = Future()
        self._settle_later(self._future)
        return self._future

    def _settle_later(self, future: Future) -> None:
        _Watcher.get().watch(self, future)


def _settle(work: _Done, future: Future, timeout: Optional[float]) -> None:
    try:
        work._end(timeout)
        value = work._value
    except Exception as error:  # noqa: BLE001: it is the waiter's to handle
        future.set_exception(error)
    else:
        future.set_result(value)
    _forget(work)


#: Threads that run what programs have futures call. More calls than these wait for one another.
_WORKERS_MAX = 64
#: Seconds between two looks at the limits of works that are watched.
_TICK = 0.2


class _Watcher:
    """Sets futures when their works are done, of whatever groups, in the order in which they are done.

    What a program has a future call may wait for another future, so each call has a thread that nothing else waits for."""

    _one: "Optional[_Watcher]" = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._process = os.getpid()
        self._queue = _library.library().kumi_queue_new()
        self._names = itertools.count(1)
        self._watched: Dict[int, Any] = {}
        self._lock = threading.Lock()
        self._jobs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        #: Workers that have nothing to do and are promised nothing.
        self._idle = 0
        self._workers = 0
        threading.Thread(target=self._look, name="kumi-futures", daemon=True).start()

    @classmethod
    def get(cls) -> "_Watcher":
        with cls._making:
            # A forked child has not the thread.
            if cls._one is None or cls._one._process != os.getpid():
                cls._one = cls()
            return cls._one

    def watch(self, work: _Done, future: Future) -> None:
        name = next(self._names)
        until = None if work._limit is None else time.monotonic() + work._limit
        with self._lock:
            self._watched[name] = (work, future, until)
        _library.library().kumi_ticket_tell(work._pending._ticket, self._queue, name)

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
            except Exception as error:  # noqa: BLE001: a future that is settled twice, or a call of the program's
                print(f"kumi: a future's callback failed: {error}", file=sys.stderr)
            del function, arguments
            with self._lock:
                self._idle += 1


class _Contiguous:
    """Tensors as runs of memory: what is not one is copied, and copied back if it is written."""

    def __init__(self, tensors: Sequence[torch.Tensor], writes: bool = False):
        _check(tensors)
        self._tensors = [tensor.detach() for tensor in tensors]
        self.runs = [tensor.contiguous() for tensor in self._tensors]
        self._writes = writes

    @property
    def addresses(self) -> List[int]:
        return [run.data_ptr() for run in self.runs]

    @property
    def bytes(self) -> List[int]:
        return [_bytes(run) for run in self.runs]

    def write_back(self) -> None:
        for tensor, run in zip(self._tensors, self.runs):
            if self._writes and run.data_ptr() != tensor.data_ptr():
                tensor.copy_(run)


#: The group of all ranks, if it is one of these.
_world: List[coll.Group] = []


class ProcessGroup(_Base):  # type: ignore[misc, valid-type]
    """What ``torch.distributed`` calls. Methods have its names and arguments, old ones and new."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None):
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._names: Dict[str, str] = {}
        #: Seconds that a wait may take that names no limit.
        self._limit = _seconds(timeout)

        def exchange(card: bytes) -> List[bytes]:
            store.set(f"kumi/{rank}", card.rstrip(b"\0").decode())
            return [store.get(f"kumi/{peer}").ljust(len(card), b"\0") for peer in range(size)]

        patience = self._limit or 0.0
        # Groups of some ranks may be at work side by side: each takes its part of the links that they share.
        job = _world[0] if _world and dist.is_initialized() else None
        self._group = coll.Group(rank, size, exchange, job=job, patience=min(patience, 600.0))
        if not dist.is_initialized():
            _world[:] = [self._group]

    def getBackendName(self) -> str:  # noqa: N802
        return "kumi"

    def name(self) -> str:
        return "kumi"

    # What a backend may have and this one has not: PyTorch's own answer would ask Python again.
    supports_abort_hooks = supports_coalescing = supports_completion_hooks = supports_reconfigure = False
    supports_shrinking = supports_splitting = supports_window = _supports_time_estimate = False

    # Where this is the process group itself, nobody else keeps its name and what it is for.
    def getGroupName(self) -> str:  # noqa: N802
        return self._names.get("name", "")

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._names["name"] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names.get("description", "")

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._names["description"] = description

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device("cpu")]

    def _set_default_timeout(self, timeout: Any) -> None:
        self._limit = _seconds(timeout)

    def _limit_of(self, opts: Any) -> Optional[float]:
        return _seconds(getattr(opts, "timeout", None)) or self._limit

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def _start(
        self,
        operation: int,
        sizes: List[int],
        from_: Optional[_Contiguous],
        to: Optional[_Contiguous],
        value: Any,
        *,
        root: int = 0,
        element: str = "byte",
        op: Any = None,
        finish: Optional[Callable[[], None]] = None,
        opts: Any = None,
    ) -> _Done:
        name = "SUM" if op is None else _operation(op)
        divided = to.runs if name == "AVG" and to is not None else []

        def end() -> None:
            for run in divided:
                run.div_(self._size) if run.is_floating_point() else run.floor_divide_(self._size)
            if to is not None:
                to.write_back()
            if finish is not None:
                finish()

        pending = self._group.start(
            operation,
            root,
            element,
            _OPERATIONS[name],
            sizes,
            from_.addresses if from_ else [],
            to.addresses if to else [],
            keep=(from_, to),
        )
        return _Done(pending, value, end, self._limit_of(opts))

    @staticmethod
    def _one(tensors: Sequence[torch.Tensor], what: str) -> torch.Tensor:
        if len(tensors) != 1:
            raise ValueError(f"kumi: {what} of {len(tensors)} tensors at once; one would be right")
        return tensors[0]

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> _Done:
        tensor = self._one(tensors, "broadcast")
        to = _Contiguous([tensor], writes=True)
        root = opts.rootRank if opts is not None else 0
        return self._start(BROADCAST, to.bytes, None, to, tensors, root=root, opts=opts)

    def allreduce(self, tensors: Any, opts: Any = None, **_: Any) -> _Done:
        tensor = self._one(tensors, "allreduce")
        to = _Contiguous([tensor], writes=True)
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        return self._start(
            ALL_REDUCE, to.bytes, to, to, tensors, element=_element(tensor), op=op, opts=opts
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> _Done:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        to = _Contiguous([flat])
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM

        def finish() -> None:
            for tensor, part in zip(tensors, flat.split([one.numel() for one in tensors])):
                tensor.detach().copy_(part.view_as(tensor))

        element = _element(flat)
        return self._start(
            ALL_REDUCE, to.bytes, to, to, tensors, element=element, op=op, finish=finish, opts=opts
        )

    def reduce(self, tensors: Any, opts: Any = None) -> _Done:
        tensor = self._one(tensors, "reduce")
        root = opts.rootRank if opts is not None else 0
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        to = _Contiguous([tensor], writes=True)
        element = _element(tensor)
        out = to if root == self._rank else None
        return self._start(
            REDUCE, to.bytes, to, out, tensors, root=root, element=element, op=op, opts=opts
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        from_ = _Contiguous([self._one(inputs, "allgather")])
        to = _Contiguous(outputs[0], writes=True)
        return self._start(ALL_GATHER, self._alike(from_, to), from_, to, outputs, opts=opts)

    def _alike(self, one: _Contiguous, many: _Contiguous) -> List[int]:
        sizes = many.bytes
        if len(sizes) != self._size or sizes[self._rank] != one.bytes[0]:
            raise ValueError(
                f"kumi: {len(sizes)} tensors of {sizes} bytes; one for each of {self._size} ranks, and this rank's "
                f"of {one.bytes[0]}, would be right"
            )
        return sizes

    def _parts(self, tensor: torch.Tensor, writes: bool = False) -> _Contiguous:
        _check([tensor])
        if not tensor.is_contiguous() or tensor.numel() % self._size:
            shape = tuple(tensor.shape)
            raise ValueError(f"kumi: a tensor of shape {shape}; a contiguous one of {self._size} parts would be right")
        return _Contiguous(tensor.detach().view(-1).chunk(self._size) if tensor.numel() else [tensor] * self._size, writes)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> _Done:
        from_, to = _Contiguous([input]), self._parts(output, writes=True)
        return self._start(ALL_GATHER, self._alike(from_, to), from_, to, output, opts=opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        works = [self._allgather_base(out, one) for out, one in zip(outputs, inputs)]
        return _All(works, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> _Done:
        # By rank, and in each by tensor.
        works = []
        for at, one in enumerate(inputs):
            works.append(self.allgather([[outputs[at] for outputs in output_lists]], [one]))
        return _All(works, output_lists)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        root = opts.rootRank if opts is not None else 0
        from_ = _Contiguous([self._one(inputs, "gather")])
        to = _Contiguous(outputs[0], writes=True) if self._rank == root else None
        sizes = self._alike(from_, to) if to else from_.bytes * self._size
        return self._start(GATHER, sizes, from_, to, outputs, root=root, opts=opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        root = opts.rootRank if opts is not None else 0
        to = _Contiguous([self._one(outputs, "scatter")], writes=True)
        from_ = _Contiguous(inputs[0]) if self._rank == root else None
        sizes = self._alike(to, from_) if from_ else to.bytes * self._size
        return self._start(SCATTER, sizes, from_, to, outputs, root=root, opts=opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        output = self._one(outputs, "reduce_scatter")
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        to, from_ = _Contiguous([output], writes=True), _Contiguous(inputs[0])
        element = _element(output)
        sizes = self._alike(to, from_)
        return self._start(
            REDUCE_SCATTER, sizes, from_, to, outputs, element=element, op=op, opts=opts
        )

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> _Done:
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        to, from_ = _Contiguous([output], writes=True), self._parts(input)
        element = _element(output)
        sizes = self._alike(to, from_)
        return self._start(
            REDUCE_SCATTER, sizes, from_, to, output, element=element, op=op, opts=opts
        )

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        works = [self._reduce_scatter_base(out, one, opts) for out, one in zip(outputs, inputs)]
        return _All(works, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        from_, to = _Contiguous(inputs), _Contiguous(outputs, writes=True)
        return self._all_to_all(from_, to, outputs, opts)

    def alltoall_base(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
    ) -> _Done:
        def split(tensor: torch.Tensor, sizes: Any, writes: bool) -> _Contiguous:
            if not sizes:
                return self._parts(tensor, writes)
            return _Contiguous(tensor.detach().split(list(sizes)), writes)

        from_ = split(input, input_split_sizes, False)
        to = split(output, output_split_sizes, True)
        return self._all_to_all(from_, to, output, opts)

    all_to_all_single = alltoall_base

    def _all_to_all(self, from_: _Contiguous, to: _Contiguous, value: Any, opts: Any) -> _Done:
        # What goes between two others, only they know.
        mine = torch.tensor(from_.bytes, dtype=torch.int64)
        table = torch.empty(self._size * self._size, dtype=torch.int64)
        self._allgather_base(table, mine, opts).wait()
        sizes = table.tolist()
        comes = sizes[self._rank :: self._size]
        if comes != to.bytes:
            raise ValueError(f"kumi: blocks of {comes} bytes come, and there is room for {to.bytes}")
        return self._start(ALL_TO_ALL, sizes, from_, to, value, opts=opts)

    def barrier(self, opts: Any = None) -> _Done:
        nothing = _Contiguous([torch.zeros(1, dtype=torch.uint8)])
        return self._start(ALL_REDUCE, [1], nothing, nothing, None, element="uint8", opts=opts)

    def send(self, tensors: Any, to: int, tag: int = 0) -> _Done:
        from_ = _Contiguous([self._one(tensors, "send")])
        pending = self._group.start_send(to, tag, from_.addresses[0], from_.bytes[0], from_)
        return _Done(pending, tensors, None, self._limit)

    def recv(self, tensors: Any, from_: int, tag: int = 0) -> _Done:
        to = _Contiguous([self._one(tensors, "recv")], writes=True)
        pending = self._group.start_receive(from_, tag, to.addresses[0], to.bytes[0], to)
        return _Done(pending, tensors, to.write_back, self._limit)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> _Done:
        return self.recv(tensors, -1, tag)

    def close(self) -> None:
        """Leaves the group."""
        if self._group in _world:
            _world.remove(self._group)
        self._group.close()

    shutdown = abort = close


class _All(_Done):
    """Several works as one."""

    def __init__(self, works: Sequence[_Done], value: Any):
        _Work.__init__(self)
        self._works, self._value = list(works), value
        self._limit = self._works[0]._limit if self._works else None
        self._guard = threading.Lock()
        self._future = None
        _keep(self)

    def _end(self, timeout: Optional[float]) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work._end(None if until is None else max(0.0, until - time.monotonic()))

    def _settle_later(self, future: Future) -> None:
        _Watcher.get().run(_settle, self, future, self._limit)

    def result(self) -> Any:
        self._end(self._limit)
        return self._value

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)


def _create(store: Any, rank: int, size: int, timeout: Any = None) -> ProcessGroup:
    return ProcessGroup(store, rank, size, timeout)


def _register() -> None:
    try:
        # Of the host's memory only, where PyTorch asks (2.0 and later).
        dist.Backend.register_backend("kumi", _create, devices=["cpu"])
    except TypeError:
        dist.Backend.register_backend("kumi", _create)


_register()
