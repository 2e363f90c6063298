"""For adapters: what `unamp.trace` asks of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Protocol

from unamp.dtypes import FLOAT32
from unamp.policy import Rule
from unamp.records import OpRecord, Values
from unamp.vocabulary import vocabulary

__all__ = [
    "InUse",
    "Layers",
    "Observer",
    "Tensors",
    "casts",
    "follow_calls",
    "observe",
    "observing",
    "traced",
    "unobserved",
    "unreported",
]

#: Groups that are not reported: they move data or make it, in whatever dtype they are told.
_NOT_TRACED = frozenset({"shape", "creation", "random", "cast"})

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@cache
def traced(op: str | None) -> bool:
    """Whether an operation computes, so that it is reported."""
    return op is not None and vocabulary()[op].group not in _NOT_TRACED


def casts(
    rule: Rule, inputs: Iterable[tuple[str, int]], compute: str | None, results: Iterable[tuple[str, int]]
) -> tuple[int, int]:
    """How many casts a rule takes, and how many bytes those read and write.

    Args:
        rule: the rule in force.
        inputs: the tensors that went in, but for parameters whose casts were kept: for each its dtype and its size.
        compute: the dtype that was computed in.
        results: the tensors that came out, likewise. A float32 one of a low operation was cast back.
    """
    if rule not in (Rule.LOW, Rule.FP32, Rule.WIDEST) or compute not in _BYTES:
        return 0, 0
    cast = [(dtype, size) for dtype, size in inputs if dtype in _BYTES and dtype != compute]
    if rule is Rule.LOW and compute != FLOAT32:
        cast += [(dtype, size) for dtype, size in results if dtype == FLOAT32]
    return len(cast), sum(size * (_BYTES[dtype] + _BYTES[compute]) for dtype, size in cast)


@contextmanager
def unobserved(thread: Any) -> Iterator[None]:
    """No policy is in force in a thread, and nothing is reported, while a result's values are looked at."""
    plan, sink = thread.plan, thread.sink
    thread.plan = thread.sink = None
    try:
        yield
    finally:
        thread.plan, thread.sink = plan, sink


class Layers:
    """The layers that a thread is inside of, by the names that their network gives them.

    Nothing is kept once the outermost layer has returned.

    Args:
        named: the layers inside a network, with their names.
        own: a layer's name where its network does not name it; its class where not given.
    """

    def __init__(
        self, named: Callable[[Any], Iterable[tuple[str, Any]]], own: Callable[[Any], str] = lambda layer: type(layer).__name__
    ) -> None:
        self._named = named
        self._own = own
        self._names: dict[int, str] = {}
        self._open: list[str] = []

    @property
    def path(self) -> str | None:
        """Where the thread is: ``"Net.encoder.0"``; None outside of layers."""
        return self._open[-1] if self._open else None

    def enter(self, layer: Any) -> None:
        """A layer is called."""
        if not self._open:
            network = type(layer).__name__
            self._names = {id(inner): f"{network}.{name}" for name, inner in self._named(layer) if inner is not layer}
            self._open.append(network)
            return
        self._open.append(self._names.get(id(layer)) or f"{self._open[-1]}.{self._own(layer)}")

    def leave(self) -> None:
        """The innermost layer returned, or raised."""
        if self._open:
            self._open.pop()
        if not self._open:
            self._names = {}


class Observer:
    """What a thread reports its operations to.

    Attributes:
        layers: the layers that the thread is inside of.
    """

    def __init__(self, framework: str, sink: Callable[[OpRecord], None], values: bool, layers: Layers) -> None:
        self._framework = framework
        self._sink = sink
        self._values = values
        self.layers = layers

    def report(self, record: OpRecord, values: Callable[[], Values | None]) -> None:
        """Report one operation.

        Args:
            record: what ran.
            values: gives the statistics of what came out; it is asked only where they are wanted, and may wait for the device.
        """
        wanted = values() if self._values else None
        self._sink(record._replace(framework=self._framework, layer=self.layers.path, values=wanted))


class Tensors:
    """How a trace looks at a framework's tensors, for adapters that stand in for a framework's functions.

    Args:
        within: the tensors in a value, however deep.
        dtype: the name of a tensor's dtype.
        numbers: a tensor's values as one row of float64 numbers. Nothing that this runs may follow a policy or be reported.
    """

    def __init__(
        self, within: Callable[[Any], Iterable[Any]], dtype: Callable[[Any], str], numbers: Callable[[Any], Any]
    ) -> None:
        self._within = within
        self._dtype = dtype
        self._numbers = numbers

    def floating(self, value: Any) -> list[Any]:
        """The floating tensors in a value."""
        return [tensor for tensor in self._within(value) if "float" in self._dtype(tensor)]

    def dtypes(self, tensors: Iterable[Any]) -> tuple[str, ...]:
        """The names of tensors' dtypes."""
        return tuple(self._dtype(tensor) for tensor in tensors)

    def sizes(self, tensors: Iterable[Any]) -> list[tuple[str, int]]:
        """What `casts` asks of tensors: for each its dtype and its size."""
        return [(self._dtype(tensor), math.prod(tensor.shape)) for tensor in tensors]

    def report(
        self, observer: Observer, record: OpRecord, given: Iterable[tuple[str, int]], result: Any, *, first_only: bool
    ) -> None:
        """Report one operation with what came out of it.

        Args:
            observer: who takes the report.
            record: what ran, but for its output and its casts.
            given: dtypes and sizes of what went in, but for parameters whose casts were kept.
            result: what came out.
            first_only: whether the rule is about the first result only.
        """
        found = self.floating(result)
        results = self.sizes(found)
        count, moved = casts(record.rule, given, record.compute, results[:1] if first_only else results)
        output = results[0][0] if results else None
        observer.report(record._replace(output=output, casts=count, cast_bytes=moved), lambda: self._values(found))

    def _values(self, found: list[Any]) -> Values | None:
        return Values.of(found[0].shape, [self._numbers(tensor) for tensor in found]) if found else None


class _Thread(Protocol):
    sink: Any


@contextmanager
def unreported(thread: _Thread) -> Iterator[Observer]:
    """Nothing is reported inside: what an operation is made of is its own affair. Gives the observer, to report the whole."""
    observer, thread.sink = thread.sink, None
    try:
        yield observer
    finally:
        thread.sink = observer


@contextmanager
def observing(thread: _Thread, observer: Observer) -> Iterator[None]:
    """A thread's operations go to a new observer; an outer one waits, and hands on where in a network the thread is."""
    before = thread.sink
    if before is not None:
        observer.layers = before.layers
    thread.sink = observer
    try:
        yield
    finally:
        thread.sink = before


@contextmanager
def observe(thread: Any, observer: Observer, watched: Callable[[], Any], release: Callable[[], None]) -> Iterator[None]:
    """Report the operations of the calling thread, for adapters that stand in for a framework's functions.

    Args:
        thread: the adapter's state of this thread, with a ``sink`` and a ``plan``; a plan has a ``watched`` one of its own.
        observer: who takes the reports.
        watched: makes everything known that can be reported, and gives the plan for where no region is open.
        release: undoes that.
    """
    idle = watched()
    plan = thread.plan
    try:
        with observing(thread, observer):
            thread.plan = idle if plan is None else plan.watched
            yield
    finally:
        thread.plan = plan
        release()


class InUse:
    """Something that is put in while anybody needs it, and taken out after the last.

    Args:
        put_in, take_out: do it.
    """

    def __init__(self, put_in: Callable[[], None], take_out: Callable[[], None]) -> None:
        self._put_in = put_in
        self._take_out = take_out
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """In while the context is open."""
        with self._lock:
            if self._users == 0:
                self._put_in()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._take_out()


def follow_calls(thread: _Thread) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes a replacement for a layer class's ``__call__`` that tells the thread's observer where it is."""

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            observer = thread.sink
            if observer is None:
                return original(layer, *args, **kwargs)
            observer.layers.enter(layer)
            try:
                return original(layer, *args, **kwargs)
            finally:
                observer.layers.leave()

        return call

    return replacement
