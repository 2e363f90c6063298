"""A record of which operation ran in which precision."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from unamp import adapter as _adapters
from unamp.adapter import OpRecord

__all__ = ["OpRecord", "Trace", "trace"]


class Trace:
    """What ran while it was open, in this thread, in every framework that was imported when it was opened.

    Attributes:
        records: one `OpRecord` for every operation of the vocabulary that ran, in order.
    """

    def __init__(self) -> None:
        self.records: list[OpRecord] = []
        self._open: list[ExitStack] = []

    def __enter__(self) -> Trace:
        with ExitStack() as stack:
            for adapter in _adapters.adapters_in_use():
                stack.enter_context(adapter.observe(self.records.append))
            self._open.append(stack.pop_all())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.pop().close()

    def table(self) -> str:
        """The record as plain text, a line for each distinct case with how often it ran."""
        rows: dict[tuple[str, ...], int] = {}
        for r in self.records:
            compute = f"{r.compute or '-'}{' (emulated)' if r.emulated else ''}"
            row = (r.op, r.rule.value, " ".join(r.inputs) or "-", compute, r.output or "-")
            rows[row] = rows.get(row, 0) + 1
        head = ("operation", "rule", "inputs", "computed in", "result", "count")
        lines = [head, *((*row, str(count)) for row, count in rows.items())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def to_json(self, *, indent: int | None = None) -> str:
        """The record as JSON: a list of objects with `OpRecord`'s fields."""
        import json  # slow to import, and `import unamp` must stay cheap

        return json.dumps(
            [{**r._asdict(), "rule": r.rule.value, "inputs": list(r.inputs)} for r in self.records], indent=indent
        )


def trace() -> Trace:
    """A context manager that records every operation that this thread runs inside it; see `Trace`."""
    return Trace()
