"""The work of an operation: the products that it multiplies, and the bytes that it moves.

Both are counted from a record's shapes and from the dtype that it computed in. A trace cannot tell
the time that a device takes: it does not know whether the device waits for products or for bytes,
nor how much faster a low dtype is.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from unamp.adapter.records import OpRecord, Shape
from unamp.dtypes import FLOAT32, PRECISIONS
from unamp.tracing.products import products

#: Operations that read only as much of their first input as they return.
_LOOKED_UP = frozenset(
    {
        "embedding",
        "embedding_bag",
        "gather",
        "gather_nd",
        "index",
        "index_select",
        "take",
        "take_along_dim",
    }
)


class Work(NamedTuple):
    """An amount of work.

    Attributes:
        products: the number of products of two numbers, each with its sum.
        bytes: the number of bytes that are read and written.
    """

    products: int = 0
    bytes: int = 0


def work_of(record: OpRecord) -> Work | None:
    """Return the work of an operation; None where a record lacks its shapes or a dimension."""
    multiplied, moved = products(record), _bytes(record)
    return None if multiplied is None or moved is None else Work(multiplied, moved)


def total_work(records: Iterable[OpRecord]) -> Work:
    """Return the work of operations together, without those whose work is not known."""
    return summed(work for record in records if (work := work_of(record)) is not None)


def summed(amounts: Iterable[Work]) -> Work:
    """Return the sum of amounts of work."""
    return Work(*map(sum, zip(Work(), *amounts, strict=True)))


def share(part: Work, whole: Work) -> float:
    """Return a part's share of the whole work: the mean of its shares of products and of bytes.

    Where nothing is multiplied, bytes alone count. The shares of all parts add up to 1.
    """
    shares = [a / b for a, b in zip(part, whole, strict=True) if b]
    return sum(shares) / len(shares) if shares else 0.0


def _bytes(record: OpRecord) -> int | None:
    """Return the bytes of an operation: inputs, in the dtype it computes in, and results."""
    written = 0
    if record.output is not None:
        if record.output_shape is None or (count := _count(record.output_shape)) is None:
            return None
        written = count * _size(record.output)
    if record.op in _LOOKED_UP:
        return 2 * written
    counts = [_count(shape) for shape in record.input_shapes]
    if len(counts) < len(record.inputs):
        return None
    read = 0
    for dtype, count in zip(record.inputs, counts, strict=False):
        if count is None:
            return None
        # float64 is never cast.
        read += count * _size(dtype if dtype == "float64" else record.compute or dtype)
    return read + written


def _count(shape: Shape) -> int | None:
    known = [size for size in shape if size is not None]
    return prod(known) if len(known) == len(shape) else None


def _size(dtype: str) -> int:
    return PRECISIONS.get(dtype, PRECISIONS[FLOAT32]).size
