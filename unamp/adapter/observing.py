"""Tools for an adapter to report what runs, for `unamp.trace`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from unamp._compiler_marks import not_converted, once_per_trace
from unamp._function_types import Args, Function
from unamp.adapter import shadowing
from unamp.adapter.framework_types import Dtype, Row, Tensor
from unamp.adapter.gradient_hooks import GradientHook
from unamp.adapter.kept_calls import Calls, Kept
from unamp.adapter.open_traces import Observer, traces
from unamp.adapter.patching import Patches
from unamp.adapter.records import OpRecord, Shadow, Shape, Values
from unamp.adapter.replacing import Replacement, as_replacement
from unamp.adapter.state import Plan, PlanT, ThreadState, in_force, suspended
from unamp.dtypes import ELIGIBLE, FLOAT32, PRECISIONS
from unamp.policy import Rule
from unamp.vocabulary import vocabulary

#: Groups that are not reported: they move data or make it, in whatever dtype they are told.
_NOT_TRACED = frozenset({"shape", "creation", "random", "cast"})

ResultT = TypeVar("ResultT")

_BYTES = {dtype: PRECISIONS[dtype].size for dtype in ELIGIBLE}


@cache
def traced(op: str | None) -> bool:
    """Return whether an operation computes, so that it is reported."""
    return op is not None and vocabulary()[op].group not in _NOT_TRACED


def casts(
    rule: Rule,
    inputs: Iterable[tuple[str, int]],
    compute: str | None,
    results: Iterable[tuple[str, int]],
) -> tuple[int, int]:
    """Return the number of casts that a rule takes, and of the bytes that they read and write.

    Args:
        rule: the rule in force.
        inputs: the dtype and the size of each input, without parameters whose casts were kept.
        compute: the dtype in which the operation computed.
        results: the dtype and the size of each result. A float32 one of a low operation was cast
            back.
    """
    if rule in (Rule.UNTOUCHED, Rule.BANNED) or compute not in _BYTES:
        return 0, 0
    cast = [(dtype, size) for dtype, size in inputs if dtype in _BYTES and dtype != compute]
    if rule is Rule.LOW and compute != FLOAT32:
        cast += [(dtype, size) for dtype, size in results if dtype == FLOAT32]
    return len(cast), sum(size * (_BYTES[dtype] + _BYTES[compute]) for dtype, size in cast)


def equation(
    op: str, args: Sequence[object], kwargs: Mapping[str, object] = MappingProxyType({})
) -> str | None:
    """Return the equation of a call of einsum, without spaces; None for every other operation."""
    if op != "einsum":
        return None
    texts = (
        "".join(value.split()) for value in (*args, *kwargs.values()) if isinstance(value, str)
    )
    return next((text for text in texts if _EQUATION.fullmatch(text)), None)


#: Letters with a comma or an arrow between them: a text without either is an attribute.
_EQUATION = re.compile(r"[A-Za-z.]*(,[A-Za-z.]*)*[,>-]+[A-Za-z.]*")


def keep_call(
    calls: Calls,
    op: str,
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    layer: bool = False,
) -> Kept | None:
    """Return the arguments of a call, copied before it runs; None where no trace keeps them.

    Args:
        calls: writes the adapter's calls.
        op: the operation.
        name: the framework's name of the function or layer.
        args, kwargs: the call.
        layer: whether the first argument is a layer.
    """
    if traces.keeper is None or traces.waiting:
        return None
    return traces.keeper.before(
        op, lambda: calls.canonical(op, name, args, kwargs, layer=layer), calls.array
    )


class Reporter:
    """Reports operations with their results.

    Args:
        thread: the adapter's state of the calling thread.
        within: returns the tensors in a value, at any depth.
        dtype: returns the name of a tensor's dtype.
        numbers: returns a tensor's values as one row of float64 numbers. Its own operations follow
            no policy and are not reported.
        follow: takes a floating result, a hook, and the result's number. It has the hook told of
            the gradient, and returns the tensor to go on with; see `taking`. None where the adapter
            cannot.
        running: returns whether operations run now; where they become nodes of a graph there is
            nothing to report.
    """

    def __init__(
        self,
        thread: ThreadState[Any],
        within: Callable[[object], Iterable[Tensor]],
        dtype: Callable[[Tensor], str],
        numbers: Callable[[Tensor], Row],
        follow: Callable[[Tensor, GradientHook, int], Tensor] | None = None,
        running: Callable[[], bool] = lambda: True,
    ) -> None:
        self._thread = thread
        self._within = within
        self._dtype = dtype
        self._numbers = numbers
        self._follow = follow
        self._running = running

    def floating(self, value: object) -> list[Tensor]:
        """Return the floating tensors in a value."""
        return [tensor for tensor in self._within(value) if "float" in self._dtype(tensor)]

    def dtypes(self, tensors: Iterable[Tensor]) -> tuple[str, ...]:
        """Return the names of tensors' dtypes."""
        return tuple(self._dtype(tensor) for tensor in tensors)

    def shapes(self, tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
        """Return the shapes of tensors; None for a dimension that is not known."""
        return tuple(tuple(tensor.shape) for tensor in tensors)

    def sizes(self, tensors: Sequence[Tensor]) -> list[tuple[str, int]]:
        """Return the dtype and the number of elements of each tensor, as `casts` takes them.

        A dimension that is not known counts as 1.
        """
        return [
            (self._dtype(tensor), math.prod([1 if n is None else n for n in tensor.shape]))
            for tensor in tensors
        ]

    def report(
        self,
        observer: Observer,
        record: OpRecord,
        given: Iterable[tuple[str, int]],
        result: object,
        *,
        first_only: bool,
        low: Callable[[str], object] | None = None,
        kept: Kept | None = None,
    ) -> list[Tensor]:
        """Report one operation.

        Args:
            observer: takes the report.
            record: the operation, without its results and casts.
            given: the dtypes and sizes of the inputs, without parameters whose casts were kept.
            result: the result.
            first_only: whether the rule is about the first result only.
            low: computes the operation a second time in a low dtype, as `unamp.adapter.shadowing`
                says, with no policy in force and unreported; None where the adapter cannot. It is
                called only where a trace wants a shadow.
            kept: the arguments of the call, where a trace keeps those.

        Returns:
            The floating results to go on with: other tensors, where gradients are followed by
            replacing them.
        """
        found = self.floating(result)
        results = self.sizes(found)
        count, moved = casts(
            record.rule, given, record.compute, results[:1] if first_only else results
        )
        record = record._replace(
            output=results[0][0] if found else None,
            output_shape=next(iter(self.shapes(found)), None),
            casts=count, cast_bytes=moved,
            call=None if kept is None else kept.after(found[0] if found else None),
        )  # fmt: skip
        if low is not None and (dtype := traces.shadow) is not None and not traces.waiting:
            record = record._replace(shadow=self._shadow(dtype, record, found, low))
        return self.send(observer, record, found)

    def send(self, observer: Observer, record: OpRecord, found: list[Tensor]) -> list[Tensor]:
        """Hand a record to its observer, and return the floating results to go on with."""
        going_on, put = list(found), self._follow

        def follow(hook: GradientHook) -> None:
            if put is not None:
                going_on[:] = [put(tensor, hook, n) for n, tensor in enumerate(found)]

        observer.report(record, lambda: self.values(found), None if put is None else follow)
        return going_on

    def values(self, found: Sequence[Tensor]) -> Values | None:
        """Return the statistics of floating results; None where there are none."""
        return Values.of(found[0].shape, self.rows(found)) if found else None

    def rows(self, tensors: Iterable[Tensor]) -> list[Row]:
        """Return the values of each tensor as one row of float64 numbers."""
        with unobserved(self._thread):
            return [self._numbers(tensor) for tensor in tensors]

    def report_call(
        self,
        op: str,
        operator: Any,
        rule: Rule,
        run: Callable[[], tuple[ResultT, Dtype, bool]],
        args: Args,
        kwargs: Mapping[str, object],
        low: Callable[[str], object],
        kept: Kept | None,
        names: Mapping[Dtype, str],
    ) -> ResultT:
        """Run one operation, report what it computed in, and return its result.

        Args:
            op: the operation.
            operator: the operator that is called; see `unamp.adapter.performing.Operator`.
            rule: the rule in force.
            run: calls the operator, and returns an `unamp.adapter.performing.Outcome`.
            args, kwargs: the call.
            low, kept: as `report` takes them.
            names: the names of dtypes.
        """
        given = self.floating([args, kwargs, operator.parameters(args)])
        if operator.activation_only:
            given = given[:1]
        sizes = self.sizes(given)
        with unreported(self._thread) as observer:
            result, computed, emulated = run()
        if self._running():
            compute = None if computed is None or not given else names[computed]
            record = OpRecord(
                op, operator.name, rule, self.dtypes(given), compute, None, emulated,
                input_shapes=self.shapes(given), equation=equation(op, args, kwargs),
            )  # fmt: skip
            self.report(
                observer,
                record,
                sizes,
                result,
                first_only=operator.activation_only,
                low=low,
                kept=kept,
            )
        return result

    def taking(self, hook: GradientHook, result: int) -> Callable[[Tensor | None], None]:
        """Return the function that tells a hook of a gradient, a tensor; None tells nothing."""

        def take(gradient: Tensor | None) -> None:
            if gradient is not None and hook.wanted:
                hook.arrived(
                    self._dtype(gradient), tuple(gradient.shape), self.rows([gradient])[0], result
                )

        return take

    def report_registered(
        self,
        observer: Observer,
        record: OpRecord,
        tensors: Sequence[Tensor],
        results: Sequence[Tensor],
        low: Callable[[str], object] | None,
    ) -> Sequence[Tensor]:
        """Report a call of a registered operation; see `unamp.adapter.registered`."""
        if not self._running():
            return results
        record = record._replace(input_shapes=self.shapes(tensors))
        return self.report(
            observer, record, self.sizes(tensors), results, first_only=False, low=low
        )

    def _shadow(
        self, dtype: str, record: OpRecord, found: list[Tensor], low: Callable[[str], object]
    ) -> Shadow:
        if record.op in shadowing.DRAWING:
            return Shadow(dtype, left_out=shadowing.DRAWS)

        def second() -> list[Row]:
            with unobserved(self._thread):
                return self.rows(self.floating(low(dtype)))

        return shadowing.shadow(dtype, record, lambda: self.rows(found), second)


@contextmanager
def unreported(thread: ThreadState[PlanT]) -> Iterator[Observer]:
    """Report nothing inside, while an operation calls others.

    Yield the observer, to report the whole operation.
    """
    observer = thread.sink
    assert observer is not None
    with reporting_to(thread, None):
        yield observer


@not_converted
@once_per_trace
def any_trace() -> bool:
    """Return whether a trace is open in this thread."""
    return traces.innermost is not None


@contextmanager
def untraced() -> Iterator[None]:
    """Keep this thread's operations out of every trace.

    For loss scaling and optimizers' steps, which are no part of a network.
    """
    traces.pauses += 1
    try:
        yield
    finally:
        traces.pauses -= 1


@contextmanager
def unobserved(thread: ThreadState[PlanT]) -> Iterator[None]:
    """Have no policy in force and report nothing, while a result's values are looked at."""
    with suspended(thread), reporting_to(thread, None):
        yield


@contextmanager
def reporting_to(thread: ThreadState[PlanT], observer: Observer | None) -> Iterator[None]:
    """Report a thread's operations to a new observer, or to none.

    An outer observer waits; the new one takes over the layers that the thread is in.
    """
    around, thread.sink = thread.sink, observer
    if around is not None and observer is not None:
        observer.layers = around.layers
    try:
        yield
    finally:
        thread.sink = around


class ObservedPlan(Plan, Protocol):
    """A plan that has another one for threads whose operations are reported."""

    @property
    def observed(self) -> Plan:
        """The same plan, with every operation reported."""


@contextmanager
def observe(
    thread: ThreadState[Any],
    observer: Observer,
    layers: Patches | None,
    patched: AbstractContextManager[None],
    without_region: ObservedPlan,
) -> Iterator[None]:
    """Report the operations of the calling thread, for adapters that stand in for functions.

    Args:
        thread: the adapter's state of this thread.
        observer: takes the reports.
        layers: the patches that tell the observer which layer is called (see `follow_calls`); None
            where there are no layers.
        patched: the context in which all functions that can be reported are replaced.
        without_region: the plan for where no region is open.
    """
    plan = without_region if thread.plan is None else thread.plan.observed
    with (
        patched,
        layers.patched() if layers is not None else nullcontext(),
        reporting_to(thread, observer),
        in_force(thread, plan),
    ):
        yield


def follow_calls(thread: ThreadState[PlanT]) -> Replacement:
    """Return the decorator of a layer class's ``__call__``.

    It tells the thread's observer which layer the thread is in.
    """

    @as_replacement
    def call(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        observer = thread.sink
        if observer is None:
            return original(*args, **kwargs)
        observer.layers.enter(args[0])
        try:
            return original(*args, **kwargs)
        finally:
            observer.layers.leave()

    return call
