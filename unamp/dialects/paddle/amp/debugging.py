"""`paddle.amp.debugging`: how often each operation ran, by dtype. See `unamp.trace` for more."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import unamp
from unamp.adapter import OpRecord

__all__ = ["collect_operator_stats", "disable_operator_stats_collection", "enable_operator_stats_collection"]

_COLUMNS = ("float16", "bfloat16", "float32", "other")


class _ThreadState(threading.local):
    trace: unamp.Trace | None = None


_state = _ThreadState()


def enable_operator_stats_collection() -> None:
    """Count this thread's operations from here on, by the dtypes that they compute in; what was counted before is forgotten.

    Counted is what `unamp.trace` records: every operation that computes, under its canonical name, but no casts.
    """
    _stop()
    _state.trace = unamp.trace()
    _state.trace.__enter__()


def disable_operator_stats_collection() -> None:
    """Stop counting, and print the table. Do nothing where nothing is counted."""
    trace = _stop()
    if trace is not None:
        _print(trace.records)


@contextmanager
def collect_operator_stats() -> Iterator[None]:
    """Count inside, and print the table on the way out."""
    enable_operator_stats_collection()
    try:
        yield
    except BaseException:
        _stop()
        raise
    disable_operator_stats_collection()


def _stop() -> unamp.Trace | None:
    trace, _state.trace = _state.trace, None
    if trace is not None:
        trace.__exit__(None, None, None)
    return trace


def _print(records: Iterable[OpRecord]) -> None:
    """Print the table in Paddle's form."""
    counts: dict[str, Counter[str]] = {}
    for record in records:
        column = record.compute if record.compute in _COLUMNS else "other"
        counts.setdefault(record.op, Counter())[str(column)] += 1
    print("<{:-^120}>".format(" op list "))
    print(
        "<{:-^40}".format(" Op Name "),
        "{:-^17}".format(" FP16 Calls "),
        "{:-^17}".format(" BF16 Calls "),
        "{:-^17}".format(" FP32 Calls"),
        "{:-^17}>".format(" Other Calls "),
        sep=" | ",
    )
    for op, found in sorted(counts.items()):
        print(f"  {op:<40}|  " + "|  ".join(f"{found[column]:<17}" for column in _COLUMNS))
    print("<{:-^120}>\n".format(f" op count: {len(counts)} "))
