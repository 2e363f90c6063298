"""A record of which operation ran where, in which precision, and at what cost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

from unamp import advice, registry
from unamp.observing import traced
from unamp.policy import Policy, Rule
from unamp.records import OpRecord
from unamp.regions import current_policy
from unamp.vocabulary import vocabulary

__all__ = ["Line", "OpRecord", "Trace", "dtypes", "size", "text_table", "trace"]


class Line(NamedTuple):
    """Records that agree in all that a table shows.

    Attributes:
        layer, op, rule, inputs, compute, output, emulated: as in `OpRecord`.
        times: how many they are.
        casts, cast_bytes: of all of them together.
        nonfinite: how many of them had an infinity or NaN in their result; 0 where the trace kept no values.
    """

    layer: str | None
    op: str
    rule: Rule
    inputs: tuple[str, ...]
    compute: str | None
    output: str | None
    emulated: bool
    times: int = 0
    casts: int = 0
    cast_bytes: int = 0
    nonfinite: int = 0


class _Thread(threading.local):
    innermost: Trace | None = None


_thread = _Thread()


class Trace:
    """What ran while it was open, in this thread, in every framework that was imported when it was opened.

    It may be opened again, and goes on. Traces nest: an outer one gets what an inner one does.

    Args:
        values: whether to keep statistics of every result (see `unamp.records.Values`): what finds the first infinity, and what
            traces are compared by. Without, no number is looked at, and no device is waited for.

    Attributes:
        records: one `OpRecord` for every operation of the vocabulary that ran, in order.
        frameworks: the frameworks that were watched, with their versions.
    """

    def __init__(self, *, values: bool = False) -> None:
        if not isinstance(values, bool):
            raise TypeError(f"values must be True or False, not {type(values).__name__}")
        self.records: list[OpRecord] = []
        self.frameworks: dict[str, str] = {}
        self._values = values
        self._open: list[tuple[ExitStack, Trace | None]] = []
        self._ran_under: dict[Policy, set[str]] = {}
        self._never_ran: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Trace of {len(self.records)} operations>"

    def __enter__(self) -> Trace:
        outer = _thread.innermost
        values = self._values or (outer is not None and outer._values)
        with ExitStack() as stack:
            for adapter in registry.adapters_in_use():
                stack.enter_context(adapter.observe(self._take, values))
                self.frameworks[adapter.framework] = adapter.version()
            self._open.append((stack.pop_all(), outer))
        _thread.innermost = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stack, _thread.innermost = self._open.pop()
        stack.close()
        if kind is None and not self._open:
            for op in self.never_ran:
                advice.never_ran(op)

    def _take(self, record: OpRecord) -> None:
        self.records.append(record if self._values else record._replace(values=None))
        policy = current_policy()
        if policy is not None and policy.allow:
            self._ran_under.setdefault(policy, set()).add(record.op)
        outer = self._open[-1][1] if self._open else None
        if outer is not None and outer is not self:
            outer._take(record)

    @property
    def keeps_values(self) -> bool:
        """Whether it has statistics of every result."""
        return self._values

    @property
    def never_ran(self) -> tuple[str, ...]:
        """The operations that a policy in force allowed by name and that nothing under such a policy ran."""
        missing = set(self._never_ran)
        for policy, ran in self._ran_under.items():
            collective = {member for op in policy.allow for member in vocabulary()[op].members}
            for op in policy.allow:
                if traced(op) and op not in collective and ran.isdisjoint((op, *vocabulary()[op].members)):
                    missing.add(op)
        return tuple(sorted(missing))

    @property
    def nonfinite(self) -> list[OpRecord]:
        """The records with an infinity or NaN in their result, in order; the first is where it began.

        Raises:
            ValueError: where the trace kept no values.
        """
        if not self._values:
            raise ValueError("this trace kept no values; open it with unamp.trace(values=True)")
        return [record for record in self.records if record.values is not None and record.values.nonfinite]

    def summary(self) -> list[Line]:
        """The records with equal ones counted together, in the order in which each first ran."""
        lines: dict[Line, list[OpRecord]] = {}
        for r in self.records:
            lines.setdefault(Line(r.layer, r.op, r.rule, r.inputs, r.compute, r.output, r.emulated), []).append(r)
        return [
            line._replace(
                times=len(records),
                casts=sum(r.casts for r in records),
                cast_bytes=sum(r.cast_bytes for r in records),
                nonfinite=sum(1 for r in records if r.values is not None and r.values.nonfinite),
            )
            for line, records in lines.items()
        ]

    def table(self) -> str:
        """The summary as plain text, and below it what there is to say about the whole."""
        head = ("layer", "operation", "rule", "inputs", "computed in", "result", "casts", "moved", "count")
        lines = self.summary()
        rows = [
            (
                line.layer or "-", line.op, line.rule.value, dtypes(line.inputs),
                f"{line.compute or '-'}{' (emulated)' if line.emulated else ''}", line.output or "-",
                str(line.casts or "-"), size(line.cast_bytes) if line.casts else "-", str(line.times),
            )
            for line in lines
        ]  # fmt: skip
        return "\n".join([text_table(head, rows), *self.remarks()])

    def remarks(self) -> list[str]:
        """Sentences about the whole: what first was not finite, and what was allowed and never ran."""
        said = []
        if self._values and (found := self.nonfinite):
            first = found[0]
            where = f" in {first.layer}" if first.layer else ""
            said.append(f"first result that is not finite: {first.op}{where}, operation {self.records.index(first) + 1}")
        if self.never_ran:
            said.append(f"allowed, but never ran: {', '.join(self.never_ran)}")
        return said

    def to_json(self, *, indent: int | None = None) -> str:
        """The trace as JSON; `from_json` reads it again. See docs/trace.md for the format."""
        from unamp import _trace_format  # it needs `json`, which is slow to import, and `import unamp` must stay cheap

        return _trace_format.dump(self, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """The trace that `to_json` wrote.

        Raises:
            ValueError: where the text is none, or of a version that this unamp does not know.
        """
        from unamp import _trace_format

        return _trace_format.load(text)

    def to_html(self, *, title: str = "unamp trace") -> str:
        """The trace as one page without references to other files: a picture of precision along the network, and the table.

        Raises:
            ModuleNotFoundError: where jinja2 is not installed.
        """
        from unamp import _trace_page

        return _trace_page.render(self, title)


def trace(*, values: bool = False) -> Trace:
    """A context manager that records every operation that this thread runs inside it; see `Trace`."""
    return Trace(values=values)


def text_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of plain text."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def dtypes(inputs: tuple[str, ...]) -> str:
    """Input dtypes for people: a long row of equal ones is counted."""
    if len(inputs) > 3 and len(set(inputs)) == 1:
        return f"{len(inputs)} x {inputs[0]}"
    return " ".join(inputs) or "-"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
