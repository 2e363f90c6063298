"""The state of a thread: the part of an adapter's that the kit knows.

An adapter derives its own thread state and its own `Plan` from these. Its lower layers (calls, casting, state) name that
protocol and never the class in its `plans`, so that the arrows between its files run one way.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from unamp.adapter.observer import Observer
from unamp.errors import NotExpressible
from unamp.policy import Policy, Rule

__all__ = ["ELSEWHERE", "Dtypes", "Plan", "ThreadState", "suspended", "suspending"]

P = ParamSpec("P")
R = TypeVar("R")
DtypeT = TypeVar("DtypeT")


class Dtypes(dict[str, DtypeT]):
    """A framework's dtypes by the names of those that rules cast: the ones that its adapter computes in.

    Args:
        framework: the framework's name.
        dtypes: its dtypes by their names.

    Raises:
        NotExpressible: where a dtype is asked for that is not among them.
    """

    def __init__(self, framework: str, dtypes: Mapping[str, DtypeT]) -> None:
        super().__init__(dtypes)
        self._framework = framework

    def __missing__(self, name: str) -> DtypeT:
        raise NotExpressible(f"{self._framework} does not compute in {name} here; it does in {', '.join(self)}")


class Plan(Protocol):
    """A policy made ready for one framework: everything that the carrying out of a call asks."""

    @property
    def policy(self) -> Policy:
        """The policy."""

    def rule(self, op: str, /) -> Rule:
        """Return the rule in force for an operation of the vocabulary."""


class _Elsewhere:
    """A region for a device on which this process does not compute: what is around it stays in force."""

    def enter(self) -> object:
        """Change nothing."""
        return None

    def exit(self, token: object) -> None:
        """Put back nothing."""


#: `unamp.adapter.Realisation` for a device that is not there.
ELSEWHERE = _Elsewhere()

PlanT = TypeVar("PlanT", bound=Plan)


class ThreadState(threading.local, Generic[PlanT]):
    """One thread's state.

    Attributes:
        plan: what the innermost region made of its policy; None outside regions and while one is suspended.
        sink: where `unamp.trace` wants operations reported; None where nobody traces.
    """

    plan: PlanT | None = None
    sink: Observer | None = None


@contextmanager
def suspended(thread: ThreadState[Any]) -> Iterator[None]:
    """Have no policy in force in this thread while the context is open."""
    plan, thread.plan = thread.plan, None
    try:
        yield
    finally:
        thread.plan = plan


def suspending(thread: ThreadState[Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the decorator of a function that runs with no policy in force.

    For what no rule reaches: the backward pass runs in the dtypes of its forward, and updates in those of what they update.
    """

    def replacement(original: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(original)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if thread.plan is None:
                return original(*args, **kwargs)
            with suspended(thread):
                return original(*args, **kwargs)

        return run

    return replacement
