"""The part of an adapter for operations that users register (`unamp.register_operation`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from unamp._function_types import Function
from unamp.adapter.arguments import Opened
from unamp.adapter.contract import Adapter, How, Support
from unamp.adapter.framework_types import Tensor
from unamp.adapter.open_traces import Observer
from unamp.adapter.records import OpRecord
from unamp.adapter.state import ThreadState
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary

#: Runs a function again, apart from the network, and returns its result; see
#: `CarriesOutRegistered.second_run`.
SecondRun = Callable[[Callable[[], object]], object]

#: Functions for registered operations, for compilers imported later; see `called_as_it_is`.
CALLED_AS_THEY_ARE: list[Function] = []


@runtime_checkable
class CarriesOutRegistered(Protocol):
    """The part of an adapter that carries rules out for registered operations.

    The core casts and emulates, by `Adapter.cast` and `Adapter.support`; the methods here are for
    what only an adapter knows.
    """

    @property
    def thread(self) -> ThreadState[Any]:
        """The adapter's state of the calling thread.

        A call outside of regions and traces needs nothing else.
        """

    def policy_for(self, tensor: Tensor) -> Policy | None:
        """Return the policy whose rules hold for a call with this tensor first, or None.

        None inside of another operation, in a backward pass, and where somebody switched mixed
        precision off by the framework's own means.
        """

    def opened(self, value: object) -> Opened | None:
        """Return the leaves of a framework's own container, and the function that makes another.

        Such containers are of classes that a user told the framework of (pytrees); lists, tuples
        and dictionaries need not be known. None for everything else.
        """

    def unchanged(self, value: object) -> Callable[[], bool]:
        """Return the function that tells whether a tensor or opened container is unchanged.

        An operation that changes an argument in place would change a copy where its rule casts it.
        """

    def second_run(self, tensors: Sequence[Tensor]) -> AbstractContextManager[SecondRun]:
        """Watch a call, for a shadow, and give the function that runs it again.

        The context is open around the first run. The second one is without gradients, unreported,
        and changes nothing that the network sees. It raises `LeftOut` where the first run changed
        its arguments or drew random numbers, or has tensors without numbers; see
        `unamp.adapter.shadowing`.

        Args:
            tensors: all tensors among the arguments.
        """

    def report_registered(
        self,
        observer: Observer,
        record: OpRecord,
        tensors: Sequence[Tensor],
        results: Sequence[Tensor],
        low: Callable[[str], object] | None,
    ) -> Sequence[Tensor]:
        """Report one call, and return the floating results to go on with.

        They are other tensors where gradients are followed by replacing them.

        Args:
            observer: takes the report.
            record: the operation, without shapes, casts and result.
            tensors: the eligible tensors among the arguments.
            results: the floating tensors of the result.
            low: computes the operation in a low dtype, by `second_run`, and returns its floating
                results; None where no trace wants that.
        """

    def operators_changed(self) -> None:
        """Make plans anew: an operator that the framework dispatches has another rule now."""

    def called_as_it_is(self, function: Function) -> None:
        """Have the framework's compilers call a function while they trace, not follow it."""


class PlanDecides:
    """That part, where the thread's plan decides and compilers know functions by their marks."""

    thread: ThreadState[Any]

    def policy_for(self, tensor: Tensor) -> Policy | None:
        """See `CarriesOutRegistered.policy_for`."""
        plan = self.thread.plan
        return None if plan is None else plan.policy

    def opened(self, value: object) -> Opened | None:
        """See `CarriesOutRegistered.opened`: the framework has no such kinds."""
        return None

    def unchanged(self, value: object) -> Callable[[], bool]:
        """See `CarriesOutRegistered.unchanged`: the framework's tensors do not change."""
        return lambda: True

    def operators_changed(self) -> None:
        """See `CarriesOutRegistered.operators_changed`: there are no such operators."""

    def called_as_it_is(self, function: Function) -> None:
        """See `CarriesOutRegistered.called_as_it_is`.

        `unamp._compiler_marks.not_converted` has marked the function.
        """


def how(adapter: Adapter, op: str, policy: Policy, device: str) -> How:
    """Return the way in which the rule is carried out for any operation, a registered one too."""
    operation = vocabulary()[op]
    if not operation.registered or adapter.framework in operation.spellings:
        return adapter.how(op, policy, device)
    if not isinstance(adapter, CarriesOutRegistered):
        return How.ABSENT
    stated = policy.delegated(adapter.framework, device)
    rule = Rule.UNTOUCHED if stated is None else stated.rules[op]
    if rule is Rule.LOW and adapter.support(device, policy.dtype) is Support.EMULATED:
        return How.EMULATED
    return How.NATIVE if rule is Rule.UNTOUCHED else How.INTERCEPTED
