# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kumihimo as a backend of ``torch.distributed``, for tensors in the host's memory.

    import kumi.torch
    import torch.distributed as dist

    dist.init_process_group("kumi")  # or "cpu:kumi,cuda:nccl" with PyTorch 2.15, not with 2.8

Ranks find each other through the job's store, which ``torchrun`` sets up. The network file and the
job's secret are as in :class:`kumi.coll.Group`. If a rank is lost, ``wait`` raises
:class:`kumi.coll.PeerLost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from . import coll
from ._library import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from ._works import All, Done, seconds_of

__all__ = ["ProcessGroup"]

_Tensors = Sequence[torch.Tensor]
_TensorLists = Sequence[Sequence[torch.Tensor]]
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
# In PyTorch 2.15 a backend can be written in Python, and a process group can have several backends
# ("cpu:kumi,cuda:nccl"). In PyTorch 2.8 only the process group itself can be written in Python.
_CAN_BE_BACKEND = hasattr(getattr(_c10d, "Backend", None), "all_gather_single")
_Base = _c10d.Backend if _CAN_BE_BACKEND else dist.ProcessGroup


def _operation(op: Any) -> str:
    """Returns the name of a reduction: "SUM" for ``ReduceOp.SUM``."""
    for name in _OPERATIONS:
        if hasattr(_ReduceOp, name) and op == getattr(_ReduceOp, name):
            return name
    raise ValueError(f"kumi: unsupported reduction {op}: expected one of {', '.join(_OPERATIONS)}")


def _element(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")


def _bytes(tensor: torch.Tensor) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size


def _check(tensors: _Tensors) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu":
            call = (
                'init_process_group("cpu:kumi,cuda:nccl")' if _CAN_BE_BACKEND else 'new_group(backend="nccl")'
            )
            raise ValueError(
                f"kumi: unsupported tensor on {tensor.device}: expected one in host memory; "
                f"{call} uses another backend"
            )
        if tensor.is_sparse:
            raise ValueError("kumi: unsupported sparse tensor; to_dense() converts it")


class _Contiguous:
    """Tensors as contiguous memory. Others are copied, and copied back if they are written."""

    def __init__(self, tensors: _Tensors, writes: bool = False) -> None:
        _check(tensors)
        self._tensors = [tensor.detach() for tensor in tensors]
        self.runs = [tensor.contiguous() for tensor in self._tensors]
        self._writes = writes

    @property
    def addresses(self) -> list[int]:
        return [run.data_ptr() for run in self.runs]

    @property
    def bytes(self) -> list[int]:
        return [_bytes(run) for run in self.runs]

    def write_back(self) -> None:
        for tensor, run in zip(self._tensors, self.runs):
            if self._writes and run.data_ptr() != tensor.data_ptr():
                tensor.copy_(run)


#: The group of all ranks, if this backend serves it; else empty.
_world: list[coll.Group] = []


class ProcessGroup(_Base):  # type: ignore[misc, valid-type]
    """Backend that ``torch.distributed`` calls.

    Methods have the names and arguments of PyTorch, of older and of newer versions. Tensors are in
    host memory and have any dtype and strides. A tensor that is divided into equal parts must be
    contiguous. Reductions support the dtypes of :class:`kumi.coll.Group`. ``AVG`` is the sum
    divided by the number of ranks, rounded down for integers.

    Each operation returns a work at once, whose ``wait`` raises the exceptions of ``kumi.coll``. An
    operation raises ValueError for tensors of a wrong number, size, device or layout, and TypeError
    for a dtype that cannot be combined.

    Args:
        store: Store of the job, through which the ranks exchange their cards.
        rank: This rank.
        size: Number of ranks.
        timeout: Default limit of each wait, as a ``datetime.timedelta``. It also limits the time
            for the ranks to find each other: at most 600 s, or 60 s without a timeout.

    Raises:
        kumi.coll.GroupError: The group cannot be created.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta | None = None) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._names: dict[str, str] = {}
        #: Default limit of a wait, in seconds; ``None`` for no limit.
        self._limit = seconds_of(timeout)

        def exchange(card: bytes) -> list[bytes]:
            store.set(f"kumi/{rank}", card.rstrip(b"\0").decode())
            return [store.get(f"kumi/{peer}").ljust(len(card), b"\0") for peer in range(size)]

        patience = self._limit or 0.0
        # Groups of some of the ranks may communicate at the same time. Each gets its share of the
        # links that it has in common with other groups.
        job = _world[0] if _world and dist.is_initialized() else None
        self._group = coll.Group(rank, size, exchange, job=job, patience=min(patience, 600.0))
        if not dist.is_initialized():
            _world[:] = [self._group]

    def getBackendName(self) -> str:  # noqa: N802
        return "kumi"

    def name(self) -> str:
        return "kumi"

    # Optional features, which this backend lacks. PyTorch's defaults would call Python again.
    supports_abort_hooks = supports_coalescing = supports_completion_hooks = supports_reconfigure = False
    supports_shrinking = supports_splitting = supports_window = _supports_time_estimate = False

    # If this is the process group itself, no other object keeps its name and description.
    def getGroupName(self) -> str:  # noqa: N802
        return self._names.get("name", "")

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._names["name"] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names.get("description", "")

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._names["description"] = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._limit = seconds_of(timeout)

    def _limit_of(self, opts: Any) -> float | None:
        return seconds_of(getattr(opts, "timeout", None)) or self._limit

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def _start(
        self,
        operation: int,
        sizes: list[int],
        from_: _Contiguous | None,
        to: _Contiguous | None,
        value: Any,
        *,
        root: int = 0,
        element: str = "byte",
        op: Any = None,
        finish: Callable[[], None] | None = None,
        opts: Any = None,
    ) -> Done:
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
        return Done(pending, value, end, self._limit_of(opts))

    @staticmethod
    def _one(tensors: _Tensors, what: str) -> torch.Tensor:
        if len(tensors) != 1:
            raise ValueError(f"kumi: {what} of {len(tensors)} tensors: expected one tensor")
        return tensors[0]

    def broadcast(self, tensors: _Tensors, opts: Any = None, **_: Any) -> Done:
        tensor = self._one(tensors, "broadcast")
        to = _Contiguous([tensor], writes=True)
        root = opts.rootRank if opts is not None else 0
        return self._start(BROADCAST, to.bytes, None, to, tensors, root=root, opts=opts)

    def allreduce(self, tensors: _Tensors, opts: Any = None, **_: Any) -> Done:
        tensor = self._one(tensors, "allreduce")
        to = _Contiguous([tensor], writes=True)
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        return self._start(ALL_REDUCE, to.bytes, to, to, tensors, element=_element(tensor), op=op, opts=opts)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Done:
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

    def reduce(self, tensors: _Tensors, opts: Any = None) -> Done:
        tensor = self._one(tensors, "reduce")
        root = opts.rootRank if opts is not None else 0
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        to = _Contiguous([tensor], writes=True)
        element = _element(tensor)
        out = to if root == self._rank else None
        return self._start(REDUCE, to.bytes, to, out, tensors, root=root, element=element, op=op, opts=opts)

    def allgather(self, outputs: _TensorLists, inputs: _Tensors, opts: Any = None) -> Done:
        from_ = _Contiguous([self._one(inputs, "allgather")])
        to = _Contiguous(outputs[0], writes=True)
        return self._start(ALL_GATHER, self._alike(from_, to), from_, to, outputs, opts=opts)

    def _alike(self, one: _Contiguous, many: _Contiguous) -> list[int]:
        sizes = many.bytes
        if len(sizes) != self._size or sizes[self._rank] != one.bytes[0]:
            raise ValueError(
                f"kumi: {len(sizes)} tensors of {sizes} bytes: expected one for each of {self._size} ranks, "
                f"with {one.bytes[0]} bytes for this rank"
            )
        return sizes

    def _parts(self, tensor: torch.Tensor, writes: bool = False) -> _Contiguous:
        _check([tensor])
        if not tensor.is_contiguous() or tensor.numel() % self._size:
            shape = tuple(tensor.shape)
            raise ValueError(
                f"kumi: tensor of shape {shape}: expected a contiguous one of {self._size} equal parts"
            )
        return _Contiguous(
            tensor.detach().view(-1).chunk(self._size) if tensor.numel() else [tensor] * self._size, writes
        )

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Done:
        from_, to = _Contiguous([input]), self._parts(output, writes=True)
        return self._start(ALL_GATHER, self._alike(from_, to), from_, to, output, opts=opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Done:
        works = [self._allgather_base(out, one) for out, one in zip(outputs, inputs)]
        return All(works, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, output_lists: _TensorLists, inputs: _Tensors, opts: Any = None) -> Done:
        # The lists are indexed by rank, then by tensor.
        works = []
        for at, one in enumerate(inputs):
            works.append(self.allgather([[outputs[at] for outputs in output_lists]], [one]))
        return All(works, output_lists)

    def gather(self, outputs: _TensorLists, inputs: _Tensors, opts: Any = None) -> Done:
        root = opts.rootRank if opts is not None else 0
        from_ = _Contiguous([self._one(inputs, "gather")])
        to = _Contiguous(outputs[0], writes=True) if self._rank == root else None
        sizes = self._alike(from_, to) if to else from_.bytes * self._size
        return self._start(GATHER, sizes, from_, to, outputs, root=root, opts=opts)

    def scatter(self, outputs: _Tensors, inputs: _TensorLists, opts: Any = None) -> Done:
        root = opts.rootRank if opts is not None else 0
        to = _Contiguous([self._one(outputs, "scatter")], writes=True)
        from_ = _Contiguous(inputs[0]) if self._rank == root else None
        sizes = self._alike(to, from_) if from_ else to.bytes * self._size
        return self._start(SCATTER, sizes, from_, to, outputs, root=root, opts=opts)

    def reduce_scatter(self, outputs: _Tensors, inputs: _TensorLists, opts: Any = None) -> Done:
        output = self._one(outputs, "reduce_scatter")
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        to, from_ = _Contiguous([output], writes=True), _Contiguous(inputs[0])
        element = _element(output)
        sizes = self._alike(to, from_)
        return self._start(REDUCE_SCATTER, sizes, from_, to, outputs, element=element, op=op, opts=opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Done:
        op = opts.reduceOp if opts is not None else _ReduceOp.SUM
        to, from_ = _Contiguous([output], writes=True), self._parts(input)
        element = _element(output)
        sizes = self._alike(to, from_)
        return self._start(REDUCE_SCATTER, sizes, from_, to, output, element=element, op=op, opts=opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Done:
        works = [self._reduce_scatter_base(out, one, opts) for out, one in zip(outputs, inputs)]
        return All(works, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> Done:
        from_, to = _Contiguous(inputs), _Contiguous(outputs, writes=True)
        return self._all_to_all(from_, to, outputs, opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Done:
        def split(tensor: torch.Tensor, sizes: Sequence[int], writes: bool) -> _Contiguous:
            if not sizes:
                return self._parts(tensor, writes)
            return _Contiguous(tensor.detach().split(list(sizes)), writes)

        from_ = split(input, input_split_sizes, False)
        to = split(output, output_split_sizes, True)
        return self._all_to_all(from_, to, output, opts)

    all_to_all_single = alltoall_base

    def _all_to_all(self, from_: _Contiguous, to: _Contiguous, value: Any, opts: Any) -> Done:
        # A rank does not know the lengths of blocks between two others, so all ranks gather them.
        mine = torch.tensor(from_.bytes, dtype=torch.int64)
        table = torch.empty(self._size * self._size, dtype=torch.int64)
        self._allgather_base(table, mine, opts).wait()
        sizes = table.tolist()
        comes = sizes[self._rank :: self._size]
        if comes != to.bytes:
            raise ValueError(
                f"kumi: the ranks send blocks of {comes} bytes, but the outputs have {to.bytes} bytes"
            )
        return self._start(ALL_TO_ALL, sizes, from_, to, value, opts=opts)

    def barrier(self, opts: Any = None) -> Done:
        nothing = _Contiguous([torch.zeros(1, dtype=torch.uint8)])
        return self._start(ALL_REDUCE, [1], nothing, nothing, None, element="uint8", opts=opts)

    def send(self, tensors: _Tensors, to: int, tag: int = 0) -> Done:
        from_ = _Contiguous([self._one(tensors, "send")])
        pending = self._group.start_send(to, tag, from_.addresses[0], from_.bytes[0], from_)
        return Done(pending, tensors, None, self._limit)

    def recv(self, tensors: _Tensors, from_: int, tag: int = 0) -> Done:
        to = _Contiguous([self._one(tensors, "recv")], writes=True)
        pending = self._group.start_receive(from_, tag, to.addresses[0], to.bytes[0], to)
        return Done(pending, tensors, to.write_back, self._limit)

    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> Done:
        return self.recv(tensors, -1, tag)

    def close(self) -> None:
        """Leaves the group."""
        if self._group in _world:
            _world.remove(self._group)
        self._group.close()

    shutdown = abort = close


def _create(store: Any, rank: int, size: int, timeout: timedelta | None = None) -> ProcessGroup:
    return ProcessGroup(store, rank, size, timeout)


def _register() -> None:
    try:
        # PyTorch 2.0 and later have `devices`. This backend supports host memory only.
        dist.Backend.register_backend("kumi", _create, devices=["cpu"])
    except TypeError:
        dist.Backend.register_backend("kumi", _create)


_register()
