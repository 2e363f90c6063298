"""Adapters that are spoilt in one way, to see whether the suite notices.

- `forgetting` gives an adapter's own regions a policy that leaves one operation alone; all others
  are as they were.
- `forgetting_a_way` gives an adapter a way in which its regions have no effect, or that of another
  dtype.
- `pretending` stands around an adapter's operations and gets every rule wrong in one manner: it
  changes dtype tags only, rounds inputs only, computes in the other low dtype, or computes the
  gradient in float32.

`mutants` has defects of one operation, by their kinds; `noticing` measures which of them a
thorough run notices: ``python -m unamp_conformance.meta.mutation torch``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from unamp.adapter import OpenRegion, Operations, Way, machine
from unamp.adapter.ways import Opened
from unamp.dtypes import ELIGIBLE
from unamp.policy import Policy, Rule
from unamp.regions import Region
from unamp_conformance import gaps
from unamp_conformance.meta.mutants import AlteredPolicy
from unamp_conformance.meta.noticing import candidates, choose, main, own_lists, telling
from unamp_conformance.results import Result
from unamp_conformance.run.plan import Item
from unamp_conformance.run.worker import perform
from unamp_conformance.subjects import Subject

__all__ = [
    "MANNERS",
    "Verdict",
    "candidates",
    "choose",
    "forgetting",
    "forgetting_a_way",
    "pretending",
    "probed",
    "telling",
    "verdicts",
]


@dataclass(frozen=True)
class _Forgetting(Subject):
    """A framework whose regions leave one operation alone."""

    real: Subject
    forgotten: str

    @property
    def operations(self) -> Operations:
        return self.real.operations

    def region(self, policy: Policy) -> Region:
        return Region(
            AlteredPolicy(policy, self.forgotten), framework=self.framework, device=self.device
        )


def forgetting(subject: Subject, op: str) -> Subject:
    """Return the framework as it is, with regions that leave one operation alone."""
    return _Forgetting(subject.framework, subject.device, subject, op)


# --- a way that forgets the policy ----------------------------------------------------------------


@dataclass(frozen=True)
class _ForgettingWay(Subject):
    """A framework that forgets the policy in one of its ways, or follows another."""

    real: Subject
    forgotten: str
    dtype: str | None

    @property
    def operations(self) -> Operations:
        return self.real.operations

    @cached_property
    def ways(self) -> Mapping[str, Way]:
        way = self.real.ways[self.forgotten]
        return {
            **self.real.ways,
            way.name: replace(
                way, run=self._spoilt(way.run), value_and_grad=self._spoilt(way.value_and_grad)
            ),
        }

    def _spoilt(self, run: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """Return a function that runs another with regions that are off, or of another dtype."""
        if run is None:
            return None

        def spoilt(function: Callable[..., Any], region: OpenRegion, *rest: Any) -> Any:
            wrong = Policy(
                "O1",
                "bfloat16" if self.dtype is None else self.dtype,
                enabled=self.dtype is not None,
            )
            return run(function, lambda: cast(Opened, self.real.region(wrong)), *rest)

        return spoilt


def forgetting_a_way(subject: Subject, way: str, dtype: str | None = None) -> Subject:
    """Return the framework with a way in which every region is switched off.

    Where a dtype is given, the region is one at O1 with that dtype instead.
    """
    return _ForgettingWay(subject.framework, subject.device, subject, way, dtype)


# --- every operation wrong in one manner ----------------------------------------------------------

#: A manner takes the pretender, the operation's function on some tensors, those tensors, the policy
#: and the rule's dtype.
Manner = Callable[["_Pretending", Callable[..., Any], Sequence[Any], Policy, str], Any]


@dataclass(frozen=True)
class _Pretending(Subject):
    """A framework whose operations are carried out in a pretended region."""

    manner: Manner
    _open: list[Policy] = field(default_factory=list, compare=False)

    @contextmanager
    def region(self, policy: Policy) -> Iterator[None]:
        self._open.append(policy)
        try:
            yield
        finally:
            self._open.pop()

    @cached_property
    def operations(self) -> Operations:
        # an attribute that it lacks is read from the real operations
        return cast(Operations, _Operations(self, super().operations))

    def real_region(self, policy: Policy) -> AbstractContextManager[object]:
        """Return the adapter's own region."""
        return super().region(policy)

    def to(self, value: Any, dtype: str) -> Any:
        """Return a nested value with everything eligible in it cast."""
        if isinstance(value, (list, tuple)):
            return [self.to(part, dtype) for part in value]
        eligible = self.adapter.is_tensor(value) and self.adapter.dtype_of(value) in ELIGIBLE
        return self.adapter.cast(value, dtype) if eligible else value


class _Operations:
    """An adapter's operations, each run in a pretender's manner while its region is open."""

    def __init__(self, pretender: _Pretending, real: Operations) -> None:
        self._pretender = pretender
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __getitem__(self, op: str) -> Callable[..., Any]:
        function, pretender = self._real[op], self._pretender

        def call(*args: Any, **kw: Any) -> Any:
            policy = pretender._open[-1] if pretender._open else None
            rule = policy.decide(op) if policy else Rule.UNTOUCHED
            if policy is None or rule not in (Rule.LOW, Rule.FP32):
                return function(*args, **kw)
            dtype = policy.dtype if rule is Rule.LOW else "float32"
            return pretender.manner(
                pretender, lambda *given: function(*given, **kw), args, policy, dtype
            )

        return call


def _relabelling(
    self: _Pretending, call: Callable[..., Any], args: Sequence[Any], policy: Policy, dtype: str
) -> Any:
    """Compute in float32 and change the result's dtype."""
    return self.to(call(*args), dtype)


def _rounding_inputs(
    self: _Pretending, call: Callable[..., Any], args: Sequence[Any], policy: Policy, dtype: str
) -> Any:
    """Round the inputs, but compute in float32 and leave the result there."""
    return call(*self.to(self.to(args, dtype), "float32"))


def _mistaken(
    self: _Pretending, call: Callable[..., Any], args: Sequence[Any], policy: Policy, dtype: str
) -> Any:
    """Compute in the other low dtype, and give the result the right one."""
    other = "float16" if policy.dtype == "bfloat16" else "bfloat16"
    with self.real_region(policy.replace(dtype=other)):
        return self.to(call(*args), dtype)


def _forward_only(
    self: _Pretending, call: Callable[..., Any], args: Sequence[Any], policy: Policy, dtype: str
) -> Any:
    """Compute the result as the policy says, and the gradient as if there were none."""
    with self.real_region(policy):
        right = self.to(call(*args), "float32")
    straight = self.to(self.to(call(*args), dtype), "float32")

    def joined(value: Any, carrier: Any) -> Any:
        if isinstance(carrier, (list, tuple)):
            return [joined(*pair) for pair in zip(value, carrier, strict=True)]
        if not self.adapter.is_tensor(carrier) or self.adapter.dtype_of(carrier) != "float32":
            return value
        ops = self.operations
        constant = ops.tensor(ops.numpy(value) - ops.numpy(carrier), device=self.device)
        # the sum is exact: both are low, and near to each other
        return self.adapter.cast(ops["add"](carrier, constant), dtype)

    return joined(right, straight)


#: Ways of getting every rule wrong.
MANNERS: Mapping[str, Manner] = {
    "changes dtype tags": _relabelling,
    "rounds inputs": _rounding_inputs,
    "mistakes the dtype": _mistaken,
    "forgets the gradient": _forward_only,
}


def pretending(subject: Subject, manner: str) -> Subject:
    """Return the framework with operations that are carried out in one of `MANNERS`."""
    return _Pretending(subject.framework, subject.device, MANNERS[manner])


# --- asking the suite -----------------------------------------------------------------------------


def probed(subject: Subject, op: str) -> tuple[Result, ...]:
    """Return the suite's findings for one operation, allowed and denied.

    Known gaps are marked.
    """
    found = perform(subject, Item("operation", op, own_lists(op), ("coverage", "probe")))
    known = gaps.gaps_of(subject.framework)
    return gaps.apply(
        known, found, subject.adapter.version(), machine.facts(subject.adapter), whole=False
    )[0]


@dataclass(frozen=True)
class Verdict:
    """The suite's answer to an adapter that forgets one operation.

    Attributes:
        op: the operation.
        honest: whether the adapter as it is passes for that operation; where it does not, nothing
            can be shown.
        named: the operations that failed, of those that were probed.
        said: the first complaint.
    """

    op: str
    honest: bool
    named: frozenset[str]
    said: str

    @property
    def noticed(self) -> bool:
        """Return whether the suite failed, and named that operation and no other."""
        return self.named == {self.op}


def verdicts(subject: Subject, ops: Sequence[str], beside: int = 1) -> Iterator[Verdict]:
    """Forget each of some operations in turn, and probe it and a few others.

    Args:
        subject: the framework and device.
        ops: the operations.
        beside: how many of the others to probe too.
    """
    for n, op in enumerate(ops):
        honest = all(result.status == "passed" for result in probed(subject, op))
        others = [other for other in (*ops[n + 1 :], *ops[:n])[:beside] if other != op]
        spoilt = forgetting(subject, op)
        failed = [
            result
            for each in (op, *others)
            for result in probed(spoilt, each)
            if result.status == "failed"
        ]
        said = next((f"{result.policy}: {result.message}" for result in failed), "")
        yield Verdict(op, honest, frozenset(result.subject for result in failed), said)


if __name__ == "__main__":
    sys.exit(main())
