"""Measure a client: the same steps in float32, under unamp, and in native mixed precision.

A script calls `measure` once. The last line of output is the result, as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

import unamp
from unamp.tracing.work import work_of

#: One training step. It returns its loss, or loss and outputs, as numbers.
Step = Callable[[], Any]
Region = Callable[[], AbstractContextManager[Any]]

DTYPE = "bfloat16"
_TIMED = int(os.environ.get("CLIENT_STEPS", "5"))  # steps after the first
_LOW = ("bfloat16", "float16")


def measure(
    build: Callable[[Region], Step],
    native: Callable[[], Step] | None = None,
    eager: Region = nullcontext,
) -> None:
    """Print the results of a client.

    Args:
        build: makes the network, always with the same numbers, and returns a step that computes in
            the given region.
        native: makes the same step with the framework's mixed precision; None where it has none.
        eager: a region in which graphs run eagerly, for the trace, which sees nothing in a graph.
    """

    def region() -> AbstractContextManager[Any]:
        return unamp.autocast(dtype=DTYPE)

    found = {"float32": _run(lambda: build(nullcontext)), "unamp": _run(lambda: build(region))}
    if native is not None:
        found["native"] = _run(native)
    exact = found["float32"].pop("first", None)
    for mode in found.values():
        first = mode.pop("first", None)
        if first is not None and exact is not None:
            mode["difference"] = _difference(first, exact)
    print(json.dumps({**found, "decisions": _decisions(lambda: build(region), eager)}))


def _run(make: Callable[[], Step]) -> dict[str, Any]:
    """Return the first step's numbers, the last loss and the median step time; or the error."""
    try:
        step = make()
        first = _numbers(step())
        times, last = [], first
        for _ in range(_TIMED):
            start = time.perf_counter()
            last = _numbers(step())
            times.append(time.perf_counter() - start)
        return {"first": first, "last": float(last[0]), "seconds": statistics.median(times)}
    except Exception as error:
        traceback.print_exc()
        return {"error": _first_line(error)}


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {said}"[:300]


def _decisions(make: Callable[[], Step], eager: Region) -> dict[str, Any]:
    """Return the numbers of operations and products of a step, and the share of low products."""
    try:
        with eager(), unamp.trace() as trace:
            make()()
    except Exception as error:
        return {"error": _first_line(error)}
    works = [
        (record, work)
        for record in trace.records
        if (work := work_of(record)) is not None and work.products
    ]
    low = sum(work.products for record, work in works if record.compute in _LOW)
    whole = sum(work.products for _, work in works)
    return {
        "operations": len(trace.records),
        "products": whole,
        "low": low / whole if whole else None,
    }


def _numbers(result: Any) -> np.ndarray:
    parts: Sequence[Any] = result if isinstance(result, (tuple, list)) else (result,)
    return np.concatenate([np.asarray(part, np.float64).reshape(-1) for part in parts])


def _difference(numbers: np.ndarray, exact: np.ndarray) -> float | None:
    """Return the largest difference, relative to the largest exact number.

    None where a number is not finite.
    """
    away = float(np.max(np.abs(numbers - exact)) / np.max(np.abs(exact)))
    return away if np.isfinite(away) else None
