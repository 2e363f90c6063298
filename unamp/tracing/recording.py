"""A record of which operation ran where, in which precision, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from unamp import amp_warnings
from unamp.adapter import registry
from unamp.adapter.keeping import LIMIT, Keeper
from unamp.adapter.observing import traced, traces
from unamp.adapter.records import Call, OpRecord, Shadow
from unamp.dtypes import LOW_DTYPES, low_dtype
from unamp.errors import shortened
from unamp.policy import Policy
from unamp.regions import current_policy
from unamp.tracing.shadows import ShadowLine, shadow_lines, shadow_table, worst
from unamp.tracing.tables import Line, summarised, summary_table
from unamp.tracing.work import Work, total_work
from unamp.vocabulary import vocabulary

__all__ = ["Trace", "ran_under", "trace"]


class Trace:
    """Everything that ran while it was open, in this thread, in every framework that was imported when it was opened.

    It may be opened again, and goes on. Traces nest: an outer one gets what an inner one does.

    Args:
        values: whether to keep statistics of every result (see `unamp.adapter.records.Values`): what finds the first infinity,
            and what traces are compared by. Without, no number is looked at, and no device is waited for.
        shadow: a low dtype, ``"float16"`` say: every operation that does not run low is computed a second time in it, from the
            same inputs, and its own error kept (see `unamp.adapter.records.Shadow`). The network's results, gradients, random
            numbers and statistics stay what they are. It takes about twice the time, and that of looking at every result.

        keep: a folder, which is made: what every operation was called with is written there, and what came out, so that each
            can run again alone (see `unamp.tracing.replay`). Write `to_json` into that folder, too.
        keep_limit: how many bytes of tensors are kept at most; what runs after that is recorded without.

    Attributes:
        records: one `OpRecord` for every operation of the vocabulary that ran, in order.
        frameworks: the frameworks that were watched, with their versions.
    """

    def __init__(
        self, *, values: bool = False, shadow: Any = None, keep: str | PathLike[str] | None = None, keep_limit: int = LIMIT
    ) -> None:
        if not isinstance(values, bool):
            raise TypeError(f"values must be True or False, not {type(values).__name__}")
        if keep is not None and not isinstance(keep, (str, PathLike)):
            raise TypeError(f"keep must be the path of a folder, not {type(keep).__name__}")
        if isinstance(keep_limit, bool) or not isinstance(keep_limit, int) or keep_limit < 1:
            raise ValueError(f"keep_limit must be a number of bytes, 1 or more, not {shortened(keep_limit)}")
        self.records: list[OpRecord] = []
        self.frameworks: dict[str, str] = {}
        self._values = values
        self._shadow = None if shadow is None else low_dtype(shadow)
        self._keeper = None if keep is None else Keeper(Path(keep), keep_limit)
        self._open: list[tuple[ExitStack, Trace | None]] = []
        self._ran_under: dict[Policy, set[str]] = {}
        self._never_ran: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Trace of {len(self.records)} operations>"

    def __enter__(self) -> Trace:
        outer: Trace | None = traces.innermost
        values = self._values or (outer is not None and outer._values)
        with ExitStack() as stack:
            stack.enter_context(_shadowing(self._shadow))
            stack.enter_context(_keeping(self._keeper))
            for adapter in registry.adapters_in_use():
                stack.enter_context(adapter.observe(self._take, values))
                self.frameworks[adapter.framework] = adapter.version()
            self._open.append((stack.pop_all(), outer))
        traces.innermost = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stack, traces.innermost = self._open.pop()
        stack.close()
        if kind is None and not self._open:
            for op in self.never_ran:
                amp_warnings.never_ran(op)

    def _take(self, record: OpRecord) -> None:
        if traces.pauses:
            return
        policy = current_policy()
        kept = record.values if self._values else None
        shadow = None
        if self._shadow is not None:
            shadow = record.shadow or Shadow(self._shadow, left_out=f"the adapter for {record.framework} computes no shadow")
        call = None
        if self._keeper is not None:
            call = record.call or Call("", left_out=f"the adapter for {record.framework} keeps no call of this kind")
        same = policy is record.policy and kept is record.values and shadow is record.shadow and call is record.call
        self.records.append(record if same else record._replace(policy=policy, values=kept, shadow=shadow, call=call))
        if policy is not None and policy.allow:
            self._ran_under.setdefault(policy, set()).add(record.op)
        outer = self._open[-1][1] if self._open else None
        if outer is not None and outer is not self:
            outer._take(record)

    @property
    def keeps_values(self) -> bool:
        """Return whether it has statistics of every result."""
        return self._values

    @property
    def shadow(self) -> str | None:
        """Return the low dtype in which operations were computed a second time; None where they were not."""
        return self._shadow

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

    def underflow(self, dtype: str) -> list[OpRecord]:
        """Return the records with numbers in their result that are too small for a low dtype, the largest share first.

        Raises:
            ValueError: where the trace kept no values, and for what is no low dtype.
        """
        if not self._values:
            raise ValueError("this trace kept no values; open it with unamp.trace(values=True)")
        low = low_dtype(dtype)
        found = [(record, record.values.underflow_in(low)) for record in self.records if record.values is not None]
        small = [(lost.subnormal + lost.flushed, record) for record, lost in found if lost is not None]
        return [record for share, record in sorted(small, key=lambda each: -each[0]) if share]

    @property
    def work(self) -> Work:
        """Return the work of everything that ran: products and bytes, of all records that tell their shapes."""
        return total_work(self.records)

    def summary(self) -> list[Line]:
        """Return the records with equal ones counted together, in the order in which each first ran."""
        return summarised(self.records)

    def shadow_summary(self) -> list[ShadowLine]:
        """Return the error of each operation of each layer in the low dtype of the shadow: the worst first.

        What overflows is worse than any error; what was left out stands at the end, with the reason.

        Raises:
            ValueError: where the trace was opened without a shadow.
        """
        if self._shadow is None:
            raise ValueError('this trace has no shadow; open it with unamp.trace(shadow="float16")')
        return shadow_lines(self.records)

    def shadow_table(self) -> str:
        """Return `shadow_summary` as plain text.

        Raises:
            ValueError: where the trace was opened without a shadow.
        """
        lines = self.shadow_summary()
        assert self._shadow is not None
        return shadow_table(self._shadow, lines)

    def table(self) -> str:
        """Return the summary as plain text, and below it what there is to say about the whole."""
        return "\n".join([summary_table(self.summary()), *self.remarks()])

    def remarks(self) -> list[str]:
        """Return sentences about the whole: what first was not finite, and what was allowed and never ran."""
        said = []
        if self._values and (found := self.nonfinite):
            first = found[0]
            where = f" in {first.layer}" if first.layer else ""
            said.append(f"first result that is not finite: {first.op}{where}, operation {self.records.index(first) + 1}")
        for low in sorted({r.compute for r in self.records if r.compute in LOW_DTYPES} if self._values else ()):
            for record in self.underflow(low)[:1]:
                said.append(_too_small(record, low))
        if self._shadow is not None and (lost := worst(self._shadow, self.shadow_summary())) is not None:
            said.append(lost)
        if self.never_ran:
            said.append(f"allowed, but never ran: {', '.join(self.never_ran)}")
        return said

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the trace as JSON; `from_json` reads it again. See docs/trace-json.md for the format."""
        from unamp.tracing import as_json  # it needs `json`, which is slow to import, and `import unamp` must stay cheap

        contents = as_json.Contents(self._values, self.frameworks, self.never_ran, self.records, self._shadow)
        return as_json.dump(contents, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Return the trace that `to_json` wrote.

        Raises:
            ValueError: where the text is none, or of a version that this unamp does not know.
        """
        from unamp.tracing import as_json

        contents = as_json.load(text)
        trace = cls(values=contents.values, shadow=contents.shadow)
        trace.frameworks, trace._never_ran, trace.records = contents.frameworks, contents.never_ran, contents.records
        return trace

    def to_html(self, *, title: str = "unamp trace") -> str:
        """Return the trace as one page that needs no other file: a picture of precision along the network, and the table.

        Raises:
            ModuleNotFoundError: where jinja2 is not installed.
        """
        from unamp.tracing import as_page

        return as_page.render(self, title)


def _too_small(record: OpRecord, low: str) -> str:
    lost = record.values.underflow_in(low) if record.values is not None else None
    assert lost is not None
    where = f" in {record.layer}" if record.layer else ""
    return f"most underflow in {low}: {record.op}{where}, {lost.subnormal:.1%} subnormal and {lost.flushed:.1%} zero in it"


@contextmanager
def _shadowing(dtype: str | None) -> Iterator[None]:
    """Ask this thread's adapters for a shadow in a low dtype; None leaves what a trace around asks for."""
    before = traces.shadow
    if dtype is not None and before is not None and dtype != before:
        raise ValueError(f"a trace around this one has shadow={before!r}; one thread computes no second shadow, in {dtype!r}")
    traces.shadow = dtype or before
    try:
        yield
    finally:
        traces.shadow = before


@contextmanager
def _keeping(keeper: Keeper | None) -> Iterator[None]:
    """Have this thread's adapters keep what operations are called with; None leaves what a trace around asks for."""
    before = traces.keeper
    if keeper is not None and before is not None and keeper is not before:
        raise ValueError("a trace around this one keeps calls already; one thread keeps each call once")
    traces.keeper = keeper or before
    try:
        yield
    finally:
        traces.keeper = before


def trace(
    *, values: bool = False, shadow: Any = None, keep: str | PathLike[str] | None = None, keep_limit: int = LIMIT
) -> Trace:
    """Return a context manager that records every operation that this thread runs inside it; see `Trace`."""
    return Trace(values=values, shadow=shadow, keep=keep, keep_limit=keep_limit)


def ran_under(trace: Trace, **stated: Any) -> dict[tuple[Policy, str], int]:
    """Return the counts of each operation of a trace under each policy, for `unamp.explaining.changes`.

    Args:
        trace: the trace. What ran outside of regions, or where mixed precision was off, counts as under the default policy.
        stated: arguments of `Policy.replace` that go before those of the policies that were in force.
    """
    ran: dict[tuple[Policy, str], int] = {}
    for record in trace.records:
        policy = record.policy if record.policy is not None and record.policy.active else Policy()
        key = policy.replace(**stated), record.op
        ran[key] = ran.get(key, 0) + 1
    return ran
