"""`paddle.amp.debugging`'s counts of operations by dtype, printed as in Paddle, and as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import unamp
from unamp.adapter import OpRecord
from unamp.dialects.paddle.amp._watching import ThreadTrace

_COLUMNS = ("float16", "bfloat16", "float32", "other")

#: How often each operation computed in ``"float16"``, ``"bfloat16"``, ``"float32"`` and
#: ``"other"``, by its canonical name.
OperatorStats = dict[str, dict[str, int]]


_open = ThreadTrace[unamp.Trace]()


def enable_operator_stats_collection() -> None:
    """Start to count this thread's operations by the dtypes that they compute in.

    Earlier counts are forgotten. It counts what `unamp.trace` records: every operation that
    computes, under its canonical name, but no casts.
    """
    _open.close()
    _open.open(unamp.trace())


def disable_operator_stats_collection() -> OperatorStats:
    """Stop counting, print the table, and return it as data; Paddle's returns nothing.

    Where nothing is counted nothing is printed.

    Raises:
        RuntimeError: in another region than that in which it was enabled.
    """
    trace = _open.close()
    if trace is None:
        return {}
    stats = _counted(trace.records)
    _print(stats)
    return stats


@contextmanager
def collect_operator_stats() -> Iterator[OperatorStats]:
    """Count the operations inside and print the table at the end.

    After that, ``as stats`` holds the counts as data.
    """
    stats: OperatorStats = {}
    enable_operator_stats_collection()
    try:
        yield stats
    except BaseException:
        _open.close()
        raise
    stats.update(disable_operator_stats_collection())


def _counted(records: Iterable[OpRecord]) -> OperatorStats:
    stats: OperatorStats = {}
    for record in records:
        column = record.compute if record.compute in _COLUMNS else "other"
        counts = stats.setdefault(record.op, dict.fromkeys(_COLUMNS, 0))
        counts[str(column)] += 1
    return dict(sorted(stats.items()))


def _print(stats: OperatorStats) -> None:
    """Print the table in Paddle's form."""
    print("<{:-^120}>".format(" op list "))
    print(
        "<{:-^40}".format(" Op Name "),
        "{:-^17}".format(" FP16 Calls "),
        "{:-^17}".format(" BF16 Calls "),
        "{:-^17}".format(" FP32 Calls"),
        "{:-^17}>".format(" Other Calls "),
        sep=" | ",
    )
    for op, counts in stats.items():
        print(f"  {op:<40}|  " + "|  ".join(f"{counts[column]:<17}" for column in _COLUMNS))
    print("<{:-^120}>\n".format(f" op count: {len(stats)} "))
