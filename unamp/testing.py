"""Assertions for tests: the dtypes in which operations ran are those that were promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from unamp.adapter.records import OpRecord
from unamp.dtypes import PRECISIONS, dtype_name
from unamp.errors import unknown
from unamp.vocabulary import vocabulary

__all__ = ["assert_computed"]


class _Traced(Protocol):
    @property
    def records(self) -> Sequence[OpRecord]: ...


def assert_computed(
    trace: _Traced, promised: Mapping[str, object] | None = None, /, **more: object
) -> None:
    """Assert that operations were computed in the promised dtypes, each time that they ran.

    ``assert_computed(trace, softmax="float32", linear="bfloat16")``. An emulated operation counts
    as computed in the low dtype. Operations that are not named are not looked at.

    Args:
        trace: a `Trace`.
        promised: a dtype for every operation, in any spelling
            (``{"torch.nn.functional.linear": "bf16"}``).
        more: the same, as keyword arguments.

    Raises:
        AssertionError: with a line for each operation that did not run or ran in another dtype.
        TypeError, ValueError: for a value that is no trace, for an unknown operation or dtype, and
            where nothing is promised.
    """
    __tracebackhide__ = True  # of pytest: the line that failed is the caller's
    records = getattr(trace, "records", None)
    if records is None:
        raise TypeError(
            "the first argument must be a trace, as unamp.trace() gives one; "
            f"got {type(trace).__name__}"
        )
    wanted = {
        vocabulary().resolve(op): _dtype(dtype)
        for op, dtype in {**(promised or {}), **more}.items()
    }
    if not wanted:
        raise ValueError(
            "nothing is promised; name operations and dtypes: "
            'assert_computed(trace, softmax="float32")'
        )
    found: dict[str, Counter[str]] = {op: Counter() for op in wanted}
    for record in records:
        if record.op in found:
            found[record.op][record.computed_in or "no floating dtype"] += 1
    wrong = [
        (op, dtype, _told(found[op])) for op, dtype in wanted.items() if set(found[op]) != {dtype}
    ]
    if wrong:
        raise AssertionError(
            _difference(wrong, sorted({record.op for record in records} - set(wanted)))
        )


def _dtype(value: object) -> str:
    name = dtype_name(value)
    if name is None:
        raise TypeError(f"a dtype must be a string or a dtype object, not {type(value).__name__}")
    if name not in PRECISIONS:
        raise ValueError(unknown("dtype", name, PRECISIONS))
    return name


def _told(ran: Counter[str]) -> str:
    return ", ".join(f"{dtype} {times}x" for dtype, times in ran.most_common()) or "did not run"


def _difference(wrong: Sequence[tuple[str, str, str]], others: Sequence[str]) -> str:
    rows = [("operation", "promised", "ran"), *wrong]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    also = (
        f"\nother operations in the trace: {', '.join(others[:20])}{', ...' * (len(others) > 20)}"
        if others
        else ""
    )
    return (
        "\n".join([f"{len(wrong)} operation{'s' * (len(wrong) > 1)} not as promised", *lines])
        + also
    )
