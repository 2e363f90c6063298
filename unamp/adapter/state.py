"""The state of a thread, as far as the kit knows it.

An adapter derives its own thread state and its own `Plan` from these. Its lower layers (calls,
casting, state) name that protocol and never the class in its `plans`, so that the imports between
its files run one way.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from unamp._function_types import Function
from unamp.adapter.open_traces import Observer
from unamp.adapter.replacing import Replacement, as_replacement
from unamp.errors import NotExpressible
from unamp.policy import Policy, Rule

DtypeT = TypeVar("DtypeT")


class Dtypes(dict[str, DtypeT]):
    """The dtypes that a framework's adapter computes in, by the names of those that rules cast.

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
        raise NotExpressible(
            f"{self._framework} does not compute in {name} here; it does in {', '.join(self)}"
        )


class Plan(Protocol):
    """A policy made ready for one framework: all that a call needs to follow its rule."""

    @property
    def policy(self) -> Policy:
        """The policy."""

    def rule(self, op: str, /) -> Rule:
        """Return the rule in force for an operation of the vocabulary."""


class _Elsewhere:
    """A realisation for a device that this process does not use: the outer policy stays."""

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
        plan: the plan of the innermost region; None outside, and while suspended.
        sink: the observer to which operations are reported; None where no trace is open.
    """

    plan: PlanT | None = None
    sink: Observer | None = None


@contextmanager
def in_force(thread: ThreadState[PlanT], plan: PlanT | None) -> Iterator[None]:
    """Have a plan in force in this thread while the context is open; None: no policy."""
    around, thread.plan = thread.plan, plan
    try:
        yield
    finally:
        thread.plan = around


def suspended(thread: ThreadState[PlanT]) -> AbstractContextManager[None]:
    """Have no policy in force in this thread while the context is open."""
    return in_force(thread, None)


def runs_without_policy(thread: ThreadState[PlanT]) -> Replacement:
    """Return the decorator of a function that runs with no policy in force.

    No rule applies in a backward pass, which runs in the dtypes of its forward, nor in an update,
    which runs in those of the tensors that it updates.
    """

    @as_replacement
    def run(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(*args, **kwargs)
        with suspended(thread):
            return original(*args, **kwargs)

    return run


def stepping(thread: ThreadState[PlanT]) -> Replacement:
    """Return the decorator of an optimizer's step whose closures compute the loss; see `Step`."""

    @as_replacement
    def step(original: Function, optimizer: object, /, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(optimizer, *args, **kwargs)
        with Step(thread, functools.partial(suspended, thread)) as running:
            args, kwargs = running.handed(args, kwargs)
            return original(optimizer, *args, **kwargs)

    return step


class Step:
    """An optimizer's step in a region: a context with no policy in force, except in closures.

    A closure computes the loss. It runs under the policy around the step, if it is called in the
    step's thread and in no region that the step opens.

    Args:
        thread: the thread's state.
        suspended: makes the context with no policy in force.
    """

    def __init__(
        self, thread: ThreadState[Any], suspended: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._thread, self._suspended = thread, suspended
        self._runs_in: int | None = None

    def __enter__(self) -> Self:
        self._suspend()
        self._runs_in = threading.get_ident()
        return self

    def __exit__(self, *error: object) -> bool | None:
        self._runs_in = None
        self._without_policy.__exit__(None, None, None)
        return None

    def handed(
        self, args: Iterable[object], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments of the step, with closures that run under the policy."""
        return tuple(map(self._under_policy, args)), {
            name: self._under_policy(each) for name, each in kwargs.items()
        }

    def _under_policy(self, argument: object) -> object:
        return (
            functools.partial(self.call_under_policy, argument) if callable(argument) else argument
        )

    def call_under_policy(self, closure: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Call a closure under the policy around the step, if that runs in this thread."""
        if self._thread.plan is not None or self._runs_in != threading.get_ident():
            return closure(*args, **kwargs)
        self._without_policy.__exit__(None, None, None)
        try:
            return closure(*args, **kwargs)
        finally:
            self._suspend()

    def _suspend(self) -> None:
        self._without_policy = self._suspended()
        self._without_policy.__enter__()


def in_regions(thread: ThreadState[PlanT]) -> Callable[[Function], Replacement]:
    """Return the decorator of a function that takes another's place where a policy is in force.

    The decorated function takes the original before the arguments. The decorator returns a
    `Replacement`, which calls the original alone in threads without a policy.
    """

    def decorate(run: Function) -> Replacement:
        @functools.wraps(run)
        def replacement(original: Function) -> Function:
            def call(*args: Any, **kwargs: Any) -> Any:
                return (
                    original(*args, **kwargs)
                    if thread.plan is None
                    else run(original, *args, **kwargs)
                )

            return call

        return replacement

    return decorate
