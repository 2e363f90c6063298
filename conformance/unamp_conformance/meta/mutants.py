"""Adapters with one defect in one operation, of many kinds.

The suite must notice them, whatever the framework.

A mutant is a `MutableSubject` with a `Defect`: a framework whose operations are the adapter's own,
but for one of them, which goes wrong while a policy is in force. Where it computes in another
precision it gives its result the right dtype, so that only the numbers tell. Outside of regions a
mutant is the adapter as it is: what a probe has found out there holds for all mutants.

`KINDS` has all kinds. A kind concerns the policies that give the operation one of the kind's rules,
at one of the kind's levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np

import unamp
from unamp.adapter import Operations
from unamp.dtypes import ELIGIBLE, LOW_DTYPES
from unamp.policy import LEVELS, Policy, Rule
from unamp.regions import Region
from unamp.vocabulary import vocabulary
from unamp_conformance.check.cases import Case, cases
from unamp_conformance.check.opchecks import expected_precision
from unamp_conformance.check.probes import FEEDS
from unamp_conformance.subjects import Subject

__all__ = ["KINDS", "AlteredPolicy", "Defect", "Kind", "MutableSubject"]


class AlteredPolicy(Policy):
    """A policy that leaves one operation alone, and decides about the others as before."""

    _whole: Policy
    _op: str
    _left: tuple[str, ...]

    def __init__(self, policy: Policy, op: str) -> None:
        left = (op, *vocabulary()[op].members)  # a collective name is its members
        allow, deny = (
            tuple(name for name in names if name not in left)
            for names in (policy.allow, policy.deny)
        )
        values = (*policy._values, "but for", op)
        own = {"_whole": policy, "_op": op, "_left": left, "_values": values, "_hash": hash(values)}
        vars(self).update(vars(policy), allow=allow, deny=deny, **own)

    def replace(self, **changes: Any) -> Policy:
        """Return the same policy but for some arguments; it leaves the operation alone, too."""
        return AlteredPolicy(self._whole.replace(**changes), self._op)

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The rules, without those of the operation."""
        return MappingProxyType({**super().rules, **dict.fromkeys(self._left, Rule.UNTOUCHED)})


@dataclass
class Call:
    """One call of the defective operation under a policy.

    Attributes:
        defect: what is wrong.
        function: the framework's function.
        args, kw: the call's arguments.
        policy: the policy in force.
        rule: its rule for the operation.
        feed: one of `FEEDS`, by the dtypes of the inputs that a policy casts.
    """

    defect: Defect
    function: Callable[..., Any]
    args: Sequence[Any]
    kw: Mapping[str, Any]
    policy: Policy
    rule: Rule
    feed: str

    @property
    def expected(self) -> str | None:
        """Return the precision that the policy says; None where the framework decides."""
        return expected_precision(self.rule, self.feed, self.policy.dtype)

    def rightly(self, *args: Any) -> Any:
        """Call the operation as the adapter does, on other arguments where some are given."""
        return self.function(*(args or self.args), **self.kw)

    def wrongly(self) -> Any:
        """Compute in the other precision, but label the result as the right one.

        It gets the right dtype where its numbers tell the precisions apart.
        """
        subject, low = self.defect.subject, self.policy.dtype
        if self.expected is None:
            return self.rightly()
        if self.expected == "float32":
            with subject.region(Policy("O1", low, allow=(self.defect.op,))):
                result = self.rightly()
            return result if self.defect.case.insensitive else subject.to(result, "float32")
        with subject.region(self.policy.replace(enabled=False)):
            result = self.rightly(*subject.to(self.args, "float32"))
        # From low inputs, a float32 result rounded to low would be right: it stays float32.
        return (
            result
            if self.defect.case.insensitive or self.feed == "low"
            else subject.to(result, low)
        )

    def forgotten(self) -> Any:
        """Leave the operation alone."""
        with Region(
            AlteredPolicy(self.policy, self.defect.op), framework=self.defect.subject.framework
        ):
            return self.rightly()


Manner = Callable[[Call], Any]


def _later_wrongly(call: Call) -> Any:
    """Compute rightly once, and wrongly in every later call with the same shapes."""
    shapes = tuple(tuple(tensor.shape) for tensor in _flat(call.args) if hasattr(tensor, "shape"))
    key = call.policy, call.feed, shapes
    if key in call.defect.memory:
        return call.wrongly()
    call.defect.memory[key] = True
    return call.rightly()


def _with_stale_inputs(call: Call) -> Any:
    """Compute with the numbers that a tensor had when it was first seen."""
    subject, memory = call.defect.subject, call.defect.memory

    def stale(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [stale(part) for part in value]
        if not subject.eligible(value) or subject.adapter.dtype_of(value) != "float32":
            return value
        if id(value) not in memory:
            # the tensor is kept: its id stays its own
            memory[id(value)] = value, np.array(subject.operations.numpy(value))
            return value
        return subject.operations.tensor(memory[id(value)][1], device=subject.device)

    return call.rightly(*stale(call.args))


def _not_widened(call: Call) -> Any:
    """Compute rightly, and give the result the dtype of the low inputs."""
    result = call.rightly()
    return (
        call.defect.subject.to(result, call.policy.dtype)
        if call.expected == "float32" and call.feed != "float32"
        else result
    )


@dataclass(frozen=True)
class Kind:
    """A kind of defect.

    Attributes:
        name: a few words.
        manner: carries a call out wrongly.
        rules: the rules under which it shows.
        levels: the levels at which it shows.
        feeds: the feeds that it is about; others are carried out rightly.
        backward: whether only the gradients are wrong.
        in_place: whether it shows only where tensors change in place.
    """

    name: str
    manner: Manner
    rules: frozenset[Rule]
    levels: tuple[str, ...] = tuple(LEVELS)
    feeds: tuple[str, ...] = FEEDS
    backward: bool = False
    in_place: bool = False

    def concerns(self, policy: Policy, rule: Rule | None) -> bool:
        """Return whether the defect can show under a policy that gives an operation a rule."""
        return rule in self.rules and policy.level in self.levels


_LOW, _FP32 = frozenset({Rule.LOW}), frozenset({Rule.FP32})
_KEPT = frozenset({Rule.WIDEST, Rule.NARROWEST, Rule.UNTOUCHED})
_RULES = {"low": _LOW, "float32": _FP32, "kept": _KEPT}


def _kinds() -> Iterator[Kind]:
    yield Kind("forgotten", Call.forgotten, _LOW | _FP32)
    for name, rules in _RULES.items():
        for feed in FEEDS:
            yield Kind(f"forward, {feed} inputs, rule {name}", Call.wrongly, rules, feeds=(feed,))
    for name, rules in _RULES.items():
        yield Kind(f"backward, rule {name}", Call.wrongly, rules, feeds=("float32",), backward=True)
    yield Kind("second call", _later_wrongly, _LOW | _FP32)
    yield Kind("stale cast", _with_stale_inputs, _LOW, in_place=True)
    yield Kind("result not widened", _not_widened, _FP32 | {Rule.WIDEST})
    for level in ("O2", "O3"):
        yield Kind(f"only at {level}", Call.wrongly, frozenset(Rule), levels=(level,))


#: Every kind by its name.
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _kinds()}


@dataclass
class Defect:
    """One operation of a framework, wrong in one kind of way.

    Attributes:
        subject: the framework.
        op: the operation.
        kind: see `KINDS`.
        memory: the state that it keeps from one call to the next.
        resting: whether the operation is right for the moment.
    """

    subject: MutableSubject
    op: str
    kind: Kind
    memory: dict[Any, Any] = field(default_factory=dict)
    resting: bool = False

    @property
    def case(self) -> Case:
        """The operation's example call."""
        return cases()[self.op]

    @cached_property
    def _castable(self) -> list[int]:
        return self.case.eligible(self.case.inputs(0))

    def call(self, function: Callable[..., Any], args: Sequence[Any], kw: Mapping[str, Any]) -> Any:
        """Call the operation, wrongly where the kind says so."""
        policy = unamp.current_policy()
        rule = self.subject.rule(policy, self.op) if policy else None
        if policy is None or rule is None or self.resting or not self.kind.concerns(policy, rule):
            return function(*args, **kw)
        self.resting = True  # calls of the operation inside are right
        try:
            made = Call(self, function, args, kw, policy, rule, self._feed(args))
            return self.kind.manner(made) if made.feed in self.kind.feeds else made.rightly()
        finally:
            self.resting = False

    def _feed(self, args: Sequence[Any]) -> str:
        tensors = [value for value in _flat(args) if self.subject.adapter.is_tensor(value)]
        low = {
            self.subject.adapter.dtype_of(tensors[place]) in LOW_DTYPES for place in self._castable
        }
        return {frozenset({True}): "low", frozenset({True, False}): "mixed"}.get(
            frozenset(low), "float32"
        )


class _MutableOperations:
    """An adapter's operations, one of which may have a defect."""

    def __init__(self, real: Operations) -> None:
        self._real = real
        self.defect: Defect | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return partial(self._pull_back, found) if name == "pull_back" else found

    def __getitem__(self, op: str) -> Callable[..., Any]:
        function, defect = self._real[op], self.defect
        if defect is None or defect.op != op:
            return function
        return lambda *args, **kw: defect.call(function, args, kw)

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[Any], **kw: Any
    ) -> tuple[Any, list[Any]]:
        """Return the right value and its gradients.

        Where only gradients are wrong, they are those of a wrong value.
        """
        return self._with_wrong_gradients(lambda: self._real.value_and_grad(function, inputs, **kw))

    def _pull_back(
        self, real: Callable[..., Any], *function: Any, **kw: Any
    ) -> Callable[..., tuple[Any, Any]]:
        both = real(*function, **kw)

        def run(*given: Any) -> tuple[Any, Any]:
            if self.defect is not None and self.defect.kind.backward:
                # Made anew for each run: a compiled program keeps the defect, or its absence.
                return self._with_wrong_gradients(lambda: real(*function, **kw)(*given))
            result, gradients = both(*given)
            return result, gradients

        return run

    def _with_wrong_gradients(self, both: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        defect = self.defect
        if defect is None or not defect.kind.backward:
            return both()
        _, gradients = both()
        defect.resting = True
        try:
            return both()[0], gradients
        finally:
            defect.resting = False


@dataclass(frozen=True)
class MutableSubject(Subject):
    """A framework whose operations can be given a defect; without one, the framework as it is."""

    @cached_property
    def operations(self) -> Operations:
        """The adapter's own operations, but for the defect."""
        return cast(Operations, _MutableOperations(super().operations))

    @contextmanager
    def mutant(self, op: str, kind: Kind) -> Iterator[None]:
        """Give one operation a defect."""
        operations = cast(_MutableOperations, self.operations)
        operations.defect = Defect(self, op, kind)
        try:
            yield
        finally:
            operations.defect = None

    def eligible(self, value: Any) -> bool:
        """Return whether a value is a tensor that policies cast."""
        return self.adapter.is_tensor(value) and self.adapter.dtype_of(value) in ELIGIBLE

    def to(self, value: Any, dtype: str) -> Any:
        """Return a nested value with everything eligible in it cast."""
        if isinstance(value, (list, tuple)):
            return [self.to(part, dtype) for part in value]
        return self.adapter.cast(value, dtype) if self.eligible(value) else value


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value
