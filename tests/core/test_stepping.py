"""An optimizer's step runs under no policy; its closure runs under the policy around the step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from unamp.adapter.state import ThreadState, stepping, suspended
from unamp.policy import Policy, Rule


@dataclass(frozen=True)
class Plan:
    """A plan that decides nothing."""

    policy: Policy

    def rule(self, op: str, /) -> Rule:
        return self.policy.rules[op]


OUTER, INNER = Plan(Policy("O2", "bfloat16")), Plan(Policy("O3", "float16"))


class Optimizer:
    """Record what is in force in its step, and have `call` call the closure."""

    def __init__(
        self, thread: ThreadState[Plan], call: Callable[[Any], Any] = lambda closure: closure()
    ) -> None:
        self.thread, self.call = thread, call
        self.seen: list[Plan | None] = []
        self.kept: Any = None

    def __call__(self) -> None:
        raise AssertionError("an optimizer is no closure")

    def step(self, closure: Any, rate: float = 1.0) -> float:
        self.kept = closure
        self.seen.append(self.thread.plan)
        self.call(closure)
        self.seen.append(self.thread.plan)
        return rate


@pytest.fixture
def thread() -> ThreadState[Plan]:
    return ThreadState()


def take(
    thread: ThreadState[Plan], optimizer: Optimizer, **kwargs: Any
) -> tuple[float, list[Plan | None]]:
    """Return the step's result, and the plans in force in its closure."""
    found: list[Plan | None] = []
    step = stepping(thread)(Optimizer.step)
    return step(optimizer, **{"closure": lambda: found.append(thread.plan), **kwargs}), found


def test_the_closure_alone_is_under_the_policy(thread: ThreadState[Plan]) -> None:
    optimizer = Optimizer(thread)
    thread.plan = OUTER
    assert take(thread, optimizer, rate=0.5) == (0.5, [OUTER])
    assert optimizer.seen == [None, None]
    assert thread.plan is OUTER


def test_outside_regions_nothing_is_handed_over(thread: ThreadState[Plan]) -> None:
    optimizer, closure = Optimizer(thread), int
    stepping(thread)(Optimizer.step)(optimizer, closure)
    assert optimizer.kept is closure


@pytest.mark.parametrize("who", ["the closure", "the step"])
def test_the_policy_is_in_force_again_after_an_error(thread: ThreadState[Plan], who: str) -> None:
    def call(closure: Any) -> None:
        closure()
        raise ArithmeticError

    optimizer = Optimizer(thread, call if who == "the step" else lambda closure: closure())
    thread.plan = OUTER
    with pytest.raises(ArithmeticError if who == "the step" else ZeroDivisionError):
        stepping(thread)(Optimizer.step)(optimizer, lambda: 1 // (who == "the step"))
    assert thread.plan is OUTER


def test_a_region_that_the_step_opens_is_the_closure_s(thread: ThreadState[Plan]) -> None:
    def call(closure: Any) -> None:
        with suspended(thread):
            thread.plan = INNER
            closure()

    thread.plan = OUTER
    assert take(thread, Optimizer(thread, call))[1] == [INNER]


def test_a_closure_that_is_called_elsewhere_or_later_is_under_what_is_in_force_there(
    thread: ThreadState[Plan],
) -> None:
    def call(closure: Any) -> None:
        other = threading.Thread(target=closure)
        other.start()
        other.join()

    optimizer = Optimizer(thread, call)
    thread.plan = OUTER
    found = take(thread, optimizer)[1]
    thread.plan = None
    optimizer.kept()
    thread.plan = INNER
    optimizer.kept()
    assert found == [None, None, INNER]
