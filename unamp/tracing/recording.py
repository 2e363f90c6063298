"""A record of which operation ran where, in which precision, and at what cost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from unamp import amp_warnings
from unamp.adapter import registry
from unamp.adapter.gradient_hooks import Arrivals, GradientHook
from unamp.adapter.kept_calls import LIMIT, Keeper
from unamp.adapter.observing import traced
from unamp.adapter.open_traces import traces
from unamp.adapter.records import Call, Gradient, OpRecord, Shadow
from unamp.dtypes import LOW_DTYPES, low_dtype, shadow_dtype
from unamp.errors import shortened
from unamp.policy import Policy
from unamp.regions import current_policy
from unamp.tracing.gradients import (
    GradientLine,
    gradient_lines,
    gradient_remarks,
    gradient_table,
    low_of,
)
from unamp.tracing.ranks import current_rank
from unamp.tracing.shadows import ShadowLine, left_out, shadow_lines, shadow_table, worst
from unamp.tracing.tables import Line, Table, place, summarised, summary_table
from unamp.tracing.work import Work, total_work
from unamp.vocabulary import vocabulary

if TYPE_CHECKING:
    from unamp.tracing.as_json import Contents


class Trace:
    """A record of all operations that run in this thread while it is open, in every framework.

    A trace covers the frameworks that are imported when it is opened. It may be opened again, and
    then goes on. Traces nest: an outer one also records what an inner one does. They close in
    reverse order.

    Args:
        values: whether to keep statistics of every result (see `unamp.adapter.records.Values`): the
            first infinity is found and traces are compared by them. Without them, no number is
            looked at, and no device is waited for.
        shadow: a low dtype, such as ``"float16"``. Every operation that does not run low is
            computed a second time in it, from the same inputs, and its own error is kept (see
            `unamp.adapter.records.Shadow`). The network's results, gradients, random numbers and
            statistics stay the same. The run takes about twice the time, and the time to look at
            every result. With ``"float8_e4m3"`` and ``"float8_e5m2"``, only products of two
            matrices are computed again, from factors that are scaled and rounded to float8; with
            ``_rows`` behind the name, each row has a scale of its own.
        gradients: whether to keep statistics of the gradient of every result and of every
            parameter, from backward passes that run while the trace is open (see
            `unamp.adapter.records.Gradient`). A gradient that comes later is not recorded.
        steps: the steps to record, such as ``range(10, 20)``; all where not given. `step` ends a
            step; the first is 0.
        ranks: the numbers of the processes that record, of those that share work; all where not
            given. The others record nothing.
        keep: a folder, which is created. The inputs and the result of every operation are written
            to it, so that each can run again alone (see `unamp.tracing.replay`). Write `to_json`
            to that folder, too.
        keep_limit: the most bytes of tensors to keep; later operations are recorded without them.

    Attributes:
        records: one `OpRecord` for every operation of the vocabulary that ran, in order.
        gradients: one `Gradient` for each gradient of a recorded result and of a parameter, in the
            order in which they were computed.
        frameworks: the frameworks that were watched, with their versions.
        rank: the number of this process among those that share work; None where `ranks` was not
            given.
    """

    def __init__(
        self,
        *,
        values: bool = False,
        shadow: Any = None,
        gradients: bool = False,
        steps: Iterable[int] | None = None,
        ranks: Iterable[int] | None = None,
        keep: str | PathLike[str] | None = None,
        keep_limit: int = LIMIT,
    ) -> None:
        for name, flag in (("values", values), ("gradients", gradients)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {type(flag).__name__}")
        if keep is not None and not isinstance(keep, (str, PathLike)):
            raise TypeError(f"keep must be the path of a folder, not {type(keep).__name__}")
        if isinstance(keep_limit, bool) or not isinstance(keep_limit, int) or keep_limit < 1:
            raise ValueError(
                f"keep_limit must be a number of bytes, 1 or more, not {shortened(keep_limit)}"
            )
        self.records: list[OpRecord] = []
        self.gradients: list[Gradient] = []
        self.rank: int | None = None
        self.frameworks: dict[str, str] = {}
        self._values = values
        self._shadow = None if shadow is None else shadow_dtype(shadow)
        self._gradients = gradients
        self._steps = _numbers("steps", steps)
        self._ranks = _numbers("ranks", ranks)
        self._step = 0
        self._scale: float | None = None
        self._arrivals = self._new_arrivals()
        self._keeper = None if keep is None else Keeper(Path(keep), keep_limit)
        self._open: list[ExitStack] = []
        self._nest: tuple[Trace, ...] = (self,)  # this trace and those around it, each once
        self._thread = 0
        self._ran_under: dict[Policy, set[str]] = {}
        self._never_ran: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Trace of {len(self.records)} operations>"

    def __enter__(self) -> Trace:
        if self._open and self._thread != threading.get_ident():
            raise RuntimeError(
                "this trace is open in another thread, whose operations it records; "
                "make one for each thread"
            )
        self._thread = threading.get_ident()
        outer: Trace | None = traces.innermost
        if self._ranks is not None:
            self.rank = current_rank()
        if not self._open:
            self._arrivals = self._new_arrivals()
        with ExitStack() as stack:
            stack.callback(setattr, self, "_nest", self._nest)
            self._nest = (
                self,
                *(each for each in (outer._nest if outer is not None else ()) if each is not self),
            )
            values = any(each._values for each in self._nest)
            stack.enter_context(_asking("shadow", self._shadow, _ONE_SHADOW))
            stack.enter_context(_asking("keeper", self._keeper, _ONE_KEEPER))
            for adapter in registry.adapters_in_use():
                stack.enter_context(adapter.observe(self._take, values))
                self.frameworks[adapter.framework] = adapter.version()
            stack.callback(setattr, traces, "innermost", outer)
            self._open.append(stack.pop_all())
        traces.innermost = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._open or traces.innermost is not self:
            raise RuntimeError(
                f"{self!r} is not the innermost open trace of this thread; "
                "traces close in reverse order"
            )
        self._open.pop().close()
        if not self._open:
            self._arrivals.close()
            self._scale = None
        if kind is None and not self._open:
            for op in self.never_ran:
                amp_warnings.never_ran(op)
            if self._steps is not None and self._chosen_rank and not self.records:
                amp_warnings.no_step(self._step)

    def step(self) -> None:
        """End a step: operations from here on belong to the next one.

        Call it last in the loop, after the optimizer's step.

        Raises:
            RuntimeError: where the trace is not open.
        """
        if not self._open:
            raise RuntimeError(
                "step() ends a step of an open trace; call it inside of "
                "`with unamp.trace(...) as trace:`"
            )
        self._step += 1

    @property
    def recording(self) -> bool:
        """Return whether this trace or an outer one records now: its step and rank are chosen."""
        return any(each._chosen for each in self._nest)

    @property
    def following(self) -> bool:
        """Return whether this trace or an outer one records the gradients of the next result."""
        return any(each._gradients and each._chosen for each in self._nest)

    @property
    def _chosen_rank(self) -> bool:
        return self._ranks is None or self.rank in self._ranks

    @property
    def _chosen(self) -> bool:
        return (self._steps is None or self._step in self._steps) and self._chosen_rank

    def scaled_by(self, scale: float) -> None:
        """Note that a loss was multiplied by a loss scale; the next gradients are scaled by it."""
        for trace in self._nest:
            trace._scale = scale

    def parameter_hook(self, name: str, parameter: object = None) -> GradientHook | None:
        """Return the hook for a parameter's gradients in this trace and the outer ones.

        None where no trace wants them.

        Args:
            name: the parameter's layer and its name there.
            parameter: the parameter, where the hook stays on it while the trace is open; a trace
                gets one only once. None where the hook is for one backward pass.
        """
        places: list[tuple[Arrivals, int | None]] = []
        for trace in self._nest:
            arrivals = trace._arrivals
            if trace._gradients and trace._chosen and id(parameter) not in arrivals.followed:
                places.append((arrivals, None))
                if parameter is not None:
                    # the parameter is kept, so that no other object can get its id meanwhile
                    arrivals.followed[id(parameter)] = parameter
        return GradientHook(places, name) if places else None

    def _new_arrivals(self) -> Arrivals:
        return Arrivals(self._arrive, lambda: self._chosen)

    def _arrive(self, gradient: Gradient) -> None:
        self.gradients.append(gradient._replace(scale=self._scale, step=self._step))

    def _take(self, record: OpRecord) -> GradientHook | None:
        if traces.pauses:  # loss scaling and optimizer steps are no part of a network
            return None
        places: list[tuple[Arrivals, int | None]] = []
        for trace in self._nest:
            if trace._chosen:
                if trace._gradients:
                    places.append((trace._arrivals, len(trace.records)))
                trace._keep(record)
        return GradientHook(places) if places else None

    def _keep(self, record: OpRecord) -> None:
        policy = current_policy()
        # another open trace may have asked for values that this one does not want
        kept = record.values if self._values else None
        shadow = None
        if self._shadow is not None:
            shadow = record.shadow or Shadow(
                self._shadow, left_out=f"the adapter for {record.framework} computes no shadow"
            )
        call = None
        if self._keeper is not None:
            call = record.call or Call(
                "", left_out=f"the adapter for {record.framework} keeps no call of this kind"
            )
        self.records.append(
            record._replace(policy=policy, values=kept, shadow=shadow, call=call, step=self._step)
        )
        if policy is not None and policy.allow:
            self._ran_under.setdefault(policy, set()).add(record.op)

    @property
    def keeps_values(self) -> bool:
        """Return whether the trace has statistics of every result."""
        return self._values

    @property
    def shadow(self) -> str | None:
        """Return the low dtype in which operations were computed a second time, or None."""
        return self._shadow

    @property
    def keeps_gradients(self) -> bool:
        """Return whether the trace has statistics of gradients."""
        return self._gradients

    @property
    def never_ran(self) -> tuple[str, ...]:
        """The operations that a policy allows by name and that never ran under that policy."""
        missing, known = set(self._never_ran), vocabulary()
        for policy, ran in self._ran_under.items():
            # an operation that is registered no more has no members, and did not run
            members = {op: known[op].members if op in known else () for op in policy.allow}
            collective = {member for of in members.values() for member in of}
            for op in policy.allow:
                if (
                    (op not in known or traced(op))
                    and op not in collective
                    and ran.isdisjoint((op, *members[op]))
                ):
                    missing.add(op)
        return tuple(sorted(missing))

    @property
    def nonfinite(self) -> list[OpRecord]:
        """The records whose result has an infinity or NaN, in order; the first is the origin.

        Raises:
            ValueError: where the trace kept no values.
        """
        self._need_values()
        return [
            record
            for record in self.records
            if record.values is not None and record.values.nonfinite
        ]

    def underflow(self, dtype: str) -> list[OpRecord]:
        """Return the records whose results underflow in a low dtype, the largest share first.

        Raises:
            ValueError: where the trace kept no values, or `dtype` is no low dtype.
        """
        self._need_values()
        low = low_dtype(dtype)
        found = [
            (record, record.values.underflow_in(low))
            for record in self.records
            if record.values is not None
        ]
        small = [
            (lost.subnormal + lost.flushed, record) for record, lost in found if lost is not None
        ]
        return [record for share, record in sorted(small, key=lambda each: -each[0]) if share]

    @property
    def nonfinite_gradients(self) -> list[Gradient]:
        """The gradients with an infinity or NaN, in the order of the backward passes.

        The first one was made by the backward pass of an operation that used its result or
        parameter.

        Raises:
            ValueError: where the trace kept no gradients.
        """
        self._need_gradients()
        return [
            each for each in self.gradients if each.values is not None and each.values.nonfinite
        ]

    def gradient_summary(self, dtype: str | None = None) -> list[GradientLine]:
        """Return the gradients of each operation's results in each layer, and of each parameter.

        Gradients that are not finite come first, then the most underflow.

        Args:
            dtype: the low dtype whose underflow is counted. None: the dtype of most low gradients,
                or float16 where none is low.

        Raises:
            ValueError: where the trace kept no gradients, or `dtype` is no low dtype.
        """
        self._need_gradients()
        return gradient_lines(self.records, self.gradients, low_of(self.gradients, dtype))

    def gradient_table(self, dtype: str | None = None) -> str:
        """Return `gradient_summary` as plain text.

        Raises:
            ValueError: where the trace kept no gradients, or `dtype` is no low dtype.
        """
        lines = self.gradient_summary(dtype)
        table = gradient_table(low_of(self.gradients, dtype), lines)
        return _with_left_out(table, "gradients that are not known:", left_out(lines))

    def _need_values(self) -> None:
        if not self._values:
            raise ValueError("this trace kept no values; open it with unamp.trace(values=True)")

    def _need_gradients(self) -> None:
        if not self._gradients:
            raise ValueError(
                "this trace kept no gradients; open it with unamp.trace(gradients=True)"
            )

    @property
    def work(self) -> Work:
        """Return the work, products and bytes, of all records that have their shapes."""
        return total_work(self.records)

    def summary(self) -> list[Line]:
        """Return the records in the order of their first run, with equal ones counted together."""
        return summarised(self.records)

    def shadow_summary(self) -> list[ShadowLine]:
        """Return each operation's error in the shadow's low dtype, by layer, the worst first.

        An overflow is worse than any error. Operations that were left out come last, with the
        reason.

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
        return _with_left_out(
            shadow_table(self._shadow, lines), "not computed a second time:", left_out(lines)
        )

    def table(self) -> str:
        """Return the summary as plain text, with remarks on the whole trace below it."""
        return "\n".join([str(summary_table(self.summary())), *self.remarks()])

    def remarks(self) -> list[str]:
        """Return sentences on the trace: results not finite, underflow, what never ran."""
        said = []
        if self._values and (found := self.nonfinite):
            first = found[0]
            number = self.records.index(first) + 1
            said.append(
                f"first result that is not finite: {place(first.op, first.layer)}, "
                f"operation {number}"
            )
        for low in sorted(
            {r.compute for r in self.records if r.compute in LOW_DTYPES} if self._values else ()
        ):
            for record in self.underflow(low)[:1]:
                said.append(_too_small(record, low))
        if (
            self._shadow is not None
            and (lost := worst(self._shadow, self.shadow_summary())) is not None
        ):
            said.append(lost)
        if self._gradients:
            said += gradient_remarks(self.records, self.gradients, low_of(self.gradients, None))
        if self.rank is not None and not self._chosen_rank:
            said.append(f"this is rank {self.rank}, which was not asked to record")
        if self.never_ran:
            said.append(f"allowed, but never ran: {', '.join(self.never_ran)}")
        return said

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the trace as JSON for `from_json`; docs/trace-json.md is the format."""
        # imported late: `json` is slow to import, and `import unamp` must stay cheap
        from unamp.tracing import as_json

        return as_json.dump(self._contents(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Return the trace that `to_json` wrote.

        Raises:
            ValueError: where the text is no trace, or has a version that this unamp cannot read.
        """
        from unamp.tracing import as_json

        contents = as_json.load(text)
        trace = cls(
            values=contents.values, shadow=contents.shadow, gradients=contents.gradients is not None
        )
        trace.frameworks, trace.rank = contents.frameworks, contents.rank
        trace.records, trace.gradients = contents.records, contents.gradients or []
        trace._never_ran = contents.never_ran
        return trace

    def to_html(self, *, title: str = "unamp trace") -> str:
        """Return the trace as one self-contained HTML page, with its precisions and its table.

        Raises:
            ModuleNotFoundError: where jinja2 is not installed.
        """
        from unamp.tracing import as_page

        return as_page.render(self._contents(), title)

    def _contents(self) -> Contents:
        from unamp.tracing.as_json import Contents

        gradients = self.gradients if self._gradients else None
        return Contents(
            self._values,
            self.frameworks,
            self.never_ran,
            self.records,
            self._shadow,
            gradients,
            self.rank,
        )


def _too_small(record: OpRecord, low: str) -> str:
    lost = record.values.underflow_in(low) if record.values is not None else None
    assert lost is not None
    where = place(record.op, record.layer)
    return (
        f"most underflow in {low}: {where}, "
        f"{lost.subnormal:.1%} subnormal and {lost.flushed:.1%} zero in it"
    )


def _with_left_out(table: Table, head: str, said: list[str]) -> str:
    return "\n".join([str(table), head, *said] if said else [str(table)])


@contextmanager
def _asking(what: str, wanted: object, refusal: str) -> Iterator[None]:
    """Set an attribute of `traces` for this thread's adapters; None keeps the outer trace's."""
    before = getattr(traces, what)
    if wanted is not None and before is not None and wanted != before:
        raise ValueError(refusal.format(before=before, wanted=wanted))
    setattr(traces, what, wanted or before)
    try:
        yield
    finally:
        setattr(traces, what, before)


_ONE_SHADOW = (
    "a trace around this one has shadow={before!r}; "
    "one thread computes no second shadow, in {wanted!r}"
)
_ONE_KEEPER = "a trace around this one keeps calls already; one thread keeps each call once"


def _numbers(name: str, given: Iterable[int] | None) -> Collection[int] | None:
    """Return the steps or ranks that were chosen; None where none were given.

    Raises:
        TypeError: for anything but whole numbers.
        ValueError: for a negative number, or an empty choice.
    """
    if given is None or (isinstance(given, range) and given and min(given[0], given[-1]) >= 0):
        return given if given is None else range(given.start, given.stop, given.step)
    example = "range(10, 20)" if name == "steps" else "[0]"
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"{name} must be several whole numbers, as in {name}={example}; not {given!r:.40}"
        )
    numbers = list(given)
    if other := next((n for n in numbers if type(n) is not int), None):
        raise TypeError(
            f"{name} must be whole numbers, as in {name}={example}; {other!r:.40} is none"
        )
    if not numbers or min(numbers) < 0:
        raise ValueError(
            f"{name} must be at least one whole number, each 0 or more, "
            f"as in {name}={example}; not {given!r:.40}"
        )
    return frozenset(numbers)


def trace(
    *,
    values: bool = False,
    shadow: Any = None,
    gradients: bool = False,
    steps: Iterable[int] | None = None,
    ranks: Iterable[int] | None = None,
    keep: str | PathLike[str] | None = None,
    keep_limit: int = LIMIT,
) -> Trace:
    """Return a context manager that records this thread's operations inside it; see `Trace`."""
    return Trace(
        values=values,
        shadow=shadow,
        gradients=gradients,
        steps=steps,
        ranks=ranks,
        keep=keep,
        keep_limit=keep_limit,
    )


def ran_under(trace: Trace, **stated: Any) -> dict[tuple[Policy, str], int]:
    """Return the counts of a trace's operations under each policy, for `unamp.explaining.changes`.

    Args:
        trace: the trace. Operations outside of regions, or where mixed precision was off, count
            under the default policy.
        stated: arguments of `Policy.replace`, which override the policies in force.
    """
    under = (
        (record.policy if record.policy and record.policy.active else Policy(), record.op)
        for record in trace.records
    )
    return Counter((policy.replace(**stated), op) for policy, op in under)
