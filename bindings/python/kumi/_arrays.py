# SPDX-License-Identifier: MIT OR Apache-2.0
"""Operations of ``kumi.coll.Group`` on NumPy arrays, by its operations on addresses.

Each function starts the operation of the same name. ``kumi.coll`` documents the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from ._library import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    ELEMENTS,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .coll import Group, Pending

#: Type of an array's elements.
E = TypeVar("E", bound=numpy.generic)


def _address(array: object, name: str, *, writes: bool = False) -> int:
    if not isinstance(array, numpy.ndarray):
        raise TypeError(f"kumi: {name} is a {type(array).__name__}: expected a NumPy array")
    if not array.flags.c_contiguous:
        raise ValueError(f"kumi: {name} is not C-contiguous; numpy.ascontiguousarray returns a copy that is")
    if writes and not array.flags.writeable:
        raise ValueError(f"kumi: {name} is read-only: expected a writable array")
    return array.ctypes.data


def _element(array: NDArray[Any]) -> str:
    # Any type can be moved as bytes. The library rejects a reduction of bytes.
    name = array.dtype.name
    return name if name in ELEMENTS and array.dtype.isnative else "byte"


def _rows(group: Group, array: NDArray[Any], name: str) -> list[int]:
    """Returns the addresses of an array's rows along its first axis, one for each rank."""
    address = _address(array, name)
    size = group.size
    if array.ndim == 0 or array.shape[0] != size:
        raise ValueError(
            f"kumi: {name} has shape {array.shape}: "
            f"expected one row for each of {size} ranks in its first axis"
        )
    row = array.nbytes // size
    return [address + row * rank for rank in range(size)]


def _sizes(group: Group, array: NDArray[Any]) -> list[int]:
    return [array.nbytes] * group.size


def all_reduce(group: Group, array: NDArray[E], op: str) -> Pending[NDArray[E]]:
    at = _address(array, "array", writes=True)
    return group.start(ALL_REDUCE, 0, _element(array), op, [array.nbytes], [at], [at], array, array)


def reduce(group: Group, array: NDArray[E], root: int, op: str) -> Pending[NDArray[E] | None]:
    at = _address(array, "array")
    out = numpy.empty_like(array) if group.rank == root else None
    to = [] if out is None else [out.ctypes.data]
    element = _element(array)
    return group.start(REDUCE, root, element, op, [array.nbytes], [at], to, out, (array, out))


def broadcast(group: Group, array: NDArray[E], root: int) -> Pending[NDArray[E]]:
    at = _address(array, "array", writes=group.rank != root)
    return group.start(BROADCAST, root, "byte", "sum", [array.nbytes], [], [at], array, array)


def all_gather(group: Group, array: NDArray[E]) -> Pending[NDArray[E]]:
    at = _address(array, "array")
    out = numpy.empty((group.size, *array.shape), array.dtype)
    rows, sizes = _rows(group, out, "out"), _sizes(group, array)
    return group.start(ALL_GATHER, 0, "byte", "sum", sizes, [at], rows, out, (array, out))


def gather(group: Group, array: NDArray[E], root: int) -> Pending[NDArray[E] | None]:
    at = _address(array, "array")
    out = numpy.empty((group.size, *array.shape), array.dtype) if group.rank == root else None
    rows = [] if out is None else _rows(group, out, "out")
    sizes = _sizes(group, array)
    return group.start(GATHER, root, "byte", "sum", sizes, [at], rows, out, (array, out))


def scatter(group: Group, out: NDArray[E], array: NDArray[E] | None, root: int) -> Pending[NDArray[E]]:
    at = _address(out, "out", writes=True)
    rows: list[int] = []
    if group.rank == root:
        if array is None or array.nbytes != out.nbytes * group.size or array.dtype != out.dtype:
            raise ValueError(
                "kumi: invalid array on the root: expected one row for each rank, with out's size and dtype"
            )
        rows = _rows(group, array, "array")
    sizes = _sizes(group, out)
    return group.start(SCATTER, root, "byte", "sum", sizes, rows, [at], out, (array, out))


def reduce_scatter(group: Group, array: NDArray[E], op: str) -> Pending[NDArray[E]]:
    rows = _rows(group, array, "array")
    out = numpy.empty(array.shape[1:], array.dtype)
    to, sizes, element = [out.ctypes.data], _sizes(group, out), _element(array)
    return group.start(REDUCE_SCATTER, 0, element, op, sizes, rows, to, out, (array, out))


def all_to_all(group: Group, array: NDArray[E]) -> Pending[NDArray[E]]:
    rows = _rows(group, array, "array")
    out = numpy.empty_like(array)
    sizes = [array.nbytes // group.size] * (group.size * group.size)
    to = _rows(group, out, "out")
    return group.start(ALL_TO_ALL, 0, "byte", "sum", sizes, rows, to, out, (array, out))


# Arrays of different lengths. Ranks exchange the lengths first.


def _lengths(group: Group, arrays: Sequence[NDArray[Any]]) -> list[list[int]]:
    """Returns the lengths of each rank's arrays. All have one axis and one dtype."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1 or any(array.ndim != 1 for array in arrays):
        raise ValueError("kumi: arrays of different lengths must have one axis and the same dtype")
    mine = numpy.array([array.size for array in arrays], "int64")
    lengths: list[list[int]] = group.all_gather(mine).tolist()
    return lengths


def all_gather_v(group: Group, array: NDArray[E]) -> Pending[list[NDArray[E]]]:
    at = _address(array, "array")
    counts = _lengths(group, [array])
    out = [numpy.empty(count, array.dtype) for (count,) in counts]
    sizes = [one.nbytes for one in out]
    rows = [one.ctypes.data for one in out]
    return group.start(ALL_GATHER, 0, "byte", "sum", sizes, [at], rows, out, array)


def gather_v(group: Group, array: NDArray[E], root: int) -> Pending[list[NDArray[E]] | None]:
    at = _address(array, "array")
    counts = _lengths(group, [array])
    sizes = [count * array.itemsize for (count,) in counts]
    out = None
    if group.rank == root:
        out = [numpy.empty(count, array.dtype) for (count,) in counts]
    rows = [one.ctypes.data for one in out or []]
    return group.start(GATHER, root, "byte", "sum", sizes, [at], rows, out, array)


def all_to_all_v(group: Group, arrays: Sequence[NDArray[E]]) -> Pending[list[NDArray[E]]]:
    if len(arrays) != group.size:
        raise ValueError(f"kumi: {len(arrays)} arrays: expected one for each of {group.size} ranks")
    rows = [_address(array, f"arrays[{at}]") for at, array in enumerate(arrays)]
    counts = _lengths(group, arrays)
    dtype = arrays[0].dtype
    out = [numpy.empty(counts[rank][group.rank], dtype) for rank in range(group.size)]
    sizes = [count * dtype.itemsize for row in counts for count in row]
    places = [one.ctypes.data for one in out]
    return group.start(ALL_TO_ALL, 0, "byte", "sum", sizes, rows, places, out, list(arrays))


# Messages.


def send(group: Group, array: NDArray[Any], to: int, tag: int) -> Pending[None]:
    at = _address(array, "array")
    return group.start_send(to, tag, at, array.nbytes, array)


def receive(group: Group, array: NDArray[Any], from_: int | None, tag: int) -> Pending[int]:
    at = _address(array, "array", writes=True)
    source = -1 if from_ is None else from_
    pending: Pending[Any] = group.start_receive(source, tag, at, array.nbytes, array)
    pending._result = lambda: pending.source
    return pending
