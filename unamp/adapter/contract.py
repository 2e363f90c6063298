"""The adapter contract: what a framework's package promises.

The rules that every adapter keeps:

- It is the only code that imports its framework, and it is loaded only once that framework is
  already imported in the process: a framework is never imported on a user's behalf.
- It is found through the entry-point group ``unamp.adapters``; the entry point's name is the
  framework's import name.
- It hands out a `Realisation` for a policy. Nothing is installed in the framework before a
  realisation is entered, and everything is undone on the last exit.
- It knows what it cannot do: `Adapter.support`, `Adapter.how` and `Adapter.gaps` are data that turn
  into documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from unamp.adapter.open_traces import Sink
from unamp.adapter.operations import Operations
from unamp.errors import NotExpressible
from unamp.policy import Policy

#: The kinds of device that every framework may have, and a region can be limited to: a CPU, and
#: whatever accelerator there is. Others are one framework's own; see `NamesDevices`.
DEVICES = ("cpu", "gpu")

#: The value of one fact of `Adapter.runtime`.
Fact = bool | int | str


class Support(Enum):
    """The ways in which a device computes in a dtype."""

    NATIVE = "native"
    EMULATED = "emulated"
    UNSUPPORTED = "unsupported"


class How(Enum):
    """The ways in which an adapter carries out the rule for one operation."""

    NATIVE = "native"  #: the framework's own AMP, or nothing at all, already does it
    INTERCEPTED = "intercepted"  #: the adapter casts, the framework computes in the rule's dtype
    EMULATED = "emulated"  #: inputs rounded to low, computed in float32, the result rounded to low
    ABSENT = "absent"  #: the framework has no such operation


class Gap(NamedTuple):
    """Something that an adapter cannot do, and why."""

    what: str
    reason: str
    link: str = ""


class Realisation(Protocol):
    """A policy on a device, ready to be put in force.

    Threads share it; `enter` and `exit` act on the calling one.
    """

    def enter(self) -> object:
        """Put the policy in force in this thread; return the token for `exit`."""

    def exit(self, token: object) -> None:
        """Put back what was in force before.

        Never raises for a token that `enter` of this thread returned.
        """


class Decoration(NamedTuple):
    """A request of `unamp.decorate`; see there.

    Attributes:
        dtype: the dtype that parameters are cast to, of `unamp.dtypes.LOW_DTYPES`.
        master_weights: whether optimizers step float32 copies of the low parameters.
        master_grad: whether the gradients of low parameters are kept in float32.
        save_dtype: the dtype of floating parameters in a saved network; None leaves them.
        excluded: layers and classes of layers that stay in float32, with all that is in them.
    """

    dtype: str
    master_weights: bool = True
    master_grad: bool = False
    save_dtype: str | None = None
    excluded: tuple[Any, ...] = ()


class Gradients(Protocol):
    """One optimizer's gradients of one step, from the scaled backward pass to the optimizer.

    In some frameworks the optimizer's parameters hold them (PyTorch, PaddlePaddle); in others they
    are values, which the caller hands over (MindSpore, TensorFlow, JAX). Dense or sparse, on one
    device or on several.
    """

    #: the gradients that the caller handed over, in the framework's usual form, unscaled once
    #: `unscale` ran; None where the parameters hold them
    values: Any

    def dtypes(self) -> frozenset[str]:
        """Return the names of the dtypes in which the optimizer takes gradients; empty without any.

        Low gradients of parameters with float32 master weights count as ``"float32"``: they have
        that dtype once `unscale` ran.
        """

    def unscale(self, scale: float) -> None:
        """Divide the gradients by the loss scale, and check that they are finite.

        Low gradients are divided in float32. Gradients that parameters hold are changed in place;
        gradients that were handed over are replaced in `values`. Numbers that are not finite stay,
        for `first_nonfinite`. Nothing waits for the device where the framework can do without.
        """

    def overflow(self) -> bool | None:
        """Return whether a gradient was infinite or NaN when `unscale` ran; None without any.

        It may wait for the device.
        """

    def first_nonfinite(self, network: Any) -> str | None:
        """Return the name of the first parameter whose gradient is infinite or NaN now, or None.

        The order is the optimizer's.

        Args:
            network: the network whose names are used; None uses the name that the framework or the
                optimizer gave the parameter.
        """

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Let the optimizer take its step with the gradients, and return its result.

        Further arguments are the optimizer's.
        """


class Adapter(Protocol):
    """One framework's package, as the core sees it."""

    framework: str  #: its import name
    requires: str  #: the versions that it works with, as in ``">=2.6,<3"``
    #: whether parameters hold their gradients; otherwise gradients are values
    holds_gradients: bool

    def version(self) -> str:
        """Return the framework's version."""

    def probe(self) -> None:
        """Check every private hook that the adapter will use; `requires` is checked before.

        Raises:
            FrameworkNotSupported: where a hook is missing; the message names it and the version.
        """

    def devices(self) -> tuple[str, ...]:
        """Return the devices present, of `DEVICES`."""

    def support(self, device: str, dtype: str) -> Support:
        """Return the support that a device has for a low dtype."""

    def slowdown(self, device: str, dtype: str) -> float:
        """Return the time of a training step in a low dtype, as a multiple of float32's.

        This is a rule of thumb for a warning, measured on three linear layers of 512 with 1024
        rows. 1.0 where it is not slower, or where that is not known.
        """

    def runtime(self) -> Mapping[str, Fact]:
        """Return facts about how the framework computes in this process, by name.

        They are about its build, libraries, instructions and threads: about those in use, not about
        all that the processor has. Where an environment variable forbids an instruction set, the
        fact says so if the framework does. A fact that the framework does not tell is left out.
        Names are lower case; ``onednn`` (whether it is in use) and ``threads`` (the number that
        compute one operation) mean the same in every framework.
        """

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps: declared here, and turned into documentation."""

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        """Return the object that puts a policy in force on a device, or on all of them.

        Raises:
            NotExpressible: where the policy cannot be honoured there.
        """

    def how(self, op: str, policy: Policy, device: str) -> How:
        """Return the way in which the rule for one operation is carried out on a device."""

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        """Report every operation of the vocabulary that this thread runs; an outer observer waits.

        Args:
            sink: takes the records, and gives a hook where a trace wants the gradients of the
                results; see `unamp.adapter.open_traces.Observer`.
            values: whether the records have statistics of the results. Without, nothing waits for a
                device.
        """

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is one of the framework's tensors."""

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Return a tensor in another dtype; the gradient flows back through the cast."""

    def dtype_of(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype."""

    def device_of(self, tensor: Any) -> str:
        """Return the kind of a tensor's device: of `DEVICES`, or the framework's own word."""

    def native_policy(self, device: str) -> Policy | None:
        """Return the policy of the framework's own AMP where that decides in this thread, or None.

        The policy has the preset ``native``. Where a region of unamp covers the device, that region
        decides, whatever the framework's own AMP reports about itself.
        """

    def is_network(self, value: object) -> bool:
        """Return whether a value is one of the framework's networks."""

    def wrap(self, network: Any, policy: Policy) -> Any:
        """Return a network that computes under a policy.

        `unamp.networks.call_under` does the casts. Both networks share the parameters, which stay
        as they are. See `unamp.auto_mixed_precision`.
        """

    def is_optimizer(self, value: object) -> bool:
        """Return whether a value is one of the framework's optimizers."""

    def scale_loss(self, loss: Any, scale: float) -> Any:
        """Return a tensor times the loss scale; the gradient flows back through the product.

        A low scalar gives float32, as the product may not fit a low dtype. No policy is in force.

        Raises:
            NotExpressible: in a function that a compiler traces, where the scale of that moment
                would stay in the graph.
        """

    def backward(
        self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: Any
    ) -> tuple[Any, Any]:
        """Run one backward pass, for the optimizer's parameters in a network.

        Args:
            compute: returns the scalar to differentiate, and a tensor that is handed on: a scaled
                loss, and the loss itself.
            network: the network.
            optimizer: the optimizer. Gradients that its parameters held before are dropped; it is
                built where it has to be.

        Returns:
            The second tensor of `compute`, and the gradients, in the form in which `gradients`
            takes them; None where the parameters hold them.
        """

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        """Return a boolean tensor: whether no number in some tensors is infinite or NaN.

        No policy is in force.
        """

    def gradients(self, optimizer: Any, given: Any) -> Gradients:
        """Return the gradients for an optimizer's next step.

        Nothing is read from the parameters before a method needs it.

        Args:
            optimizer: the optimizer; None where a caller only wants `given` unscaled.
            given: the gradients where the caller hands them over; None: the optimizer's parameters
                hold them.

        Raises:
            TypeError: where the framework holds gradients and some are given, or where it does not
                and none are.
        """

    def decorate(
        self, networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration
    ) -> None:
        """Cast networks' parameters in place, and let optimizers step their master weights.

        See `unamp.decorate`. The objects stay the same: a parameter, a group or a schedule that a
        program holds stays in use.

        Raises:
            TypeError: where an excluded layer is no layer.
            ValueError: where a parameter to be cast is low already, or an optimizer has state or is
                decorated already. Nothing is changed then.
        """

    def spelling(self, value: object) -> str | None:
        """Return the spelling of one of the framework's functions, layer classes or primitives.

        It begins with the framework's name. None for anything else.
        """

    def check_compiled(self, policy: Policy, device: str) -> None:
        """Check that functions which the compiler traces can follow a policy on a device.

        Raises:
            NotExpressible: where they cannot; then they raise it too, before anything is computed.
        """

    def compiling(self) -> bool:
        """Return whether the framework's compiler is tracing the calling Python code."""

    def make_capturable(self, region: AbstractContextManager[Any]) -> int:
        """Return a number by which a graph that the compiler traces can open a region."""

    def enter_captured(self, key: int) -> None:
        """Open a region, by its number.

        Traced code calls it, and the call becomes one node of the graph.
        """

    def leave_captured(self, key: int) -> None:
        """Close a region, by its number."""

    def operations(self) -> Operations:
        """Return the operation namespace for conformance."""


@runtime_checkable
class TellsOfDtypes(Protocol):
    """The part of an adapter that serves notes on errors about dtypes (`unamp.error_notes`)."""

    @property
    def dtype_errors(self) -> str:
        """A regular expression that matches messages of the framework's errors about dtypes."""

    def made_by(self, tensor: Any) -> Iterator[str]:
        """Yield the operations that a tensor came from, the last first, as far as known."""


class CapturesNothing:
    """The part of an adapter about compilers, for a framework whose compilers capture no regions.

    The compilers run regions as any other Python code, or refuse them.
    """

    def check_compiled(self, policy: Policy, device: str) -> None:
        """See `Adapter.check_compiled`."""

    def compiling(self) -> bool:
        """See `Adapter.compiling`."""
        return False

    def make_capturable(self, region: AbstractContextManager[Any]) -> int:
        """See `Adapter.make_capturable`; no caller needs it here."""
        raise NotExpressible("this framework's compiler captures no regions")

    def enter_captured(self, key: int) -> None:
        """See `Adapter.enter_captured`."""
        raise NotExpressible("this framework's compiler captures no regions")

    def leave_captured(self, key: int) -> None:
        """See `Adapter.leave_captured`."""
        raise NotExpressible("this framework's compiler captures no regions")


@runtime_checkable
class MayBeFaster(Protocol):
    """The part of an adapter that is faster with a compiled module.

    A wheel brings that module, or a user has it built.
    """

    def faster(self) -> str | None:
        """Return a sentence on what could be faster here, with the command; None for nothing."""


@runtime_checkable
class NamesDevices(Protocol):
    """The part of an adapter whose framework has names of its own for devices.

    Names of its own are all but ``"cpu"``, ``"gpu"`` and ``"cuda"``.
    """

    def device_kind(self, device: object) -> str | None:
        """Return the kind of device that a word or object of the framework's stands for, or None.

        A device that the framework knows and that is not here has a kind, too; `device_names` does
        not have that kind.
        """

    def device_names(self) -> Mapping[str, str]:
        """Return the framework's words for the devices here that a region can cover, by kind."""


@runtime_checkable
class NamesGradients(Protocol):
    """The part of an adapter that serves `unamp.watch`: gradients by name, and their sums.

    The sums stay on the device. No policy is in force when the methods run, and no trace records.
    """

    def named_gradients(
        self, network: Any, optimizer: Any, given: Any
    ) -> list[tuple[str, Any, Any]]:
        """Return the floating parameters that are trained, in the network's order.

        Args:
            network: the network.
            optimizer: the optimizer, or None.
            given: the gradients where they are values, as `Adapter.gradients` takes them; None: the
                parameters hold them.

        Returns:
            For each parameter: its name, with dots; the parameter, whose `numbers` are asked for
            again after the step, or None where it is a value that does not change; and its
            gradient, or None where it has none.

        Raises:
            TypeError, ValueError: where the gradients are not those of the network.
        """

    def numbers(self, tensor: Any) -> Any:
        """Return the numbers that a parameter or gradient has now, in float32 or wider.

        They are on the tensor's device, outside of any graph, and a copy where the tensor is low.
        A sparse tensor gives the numbers that it stores, a sharded one those of this process.
        Python's operators compute with the result, comparisons and ``&`` included.
        """

    def total(self, numbers: Any) -> Any:
        """Return the sum of numbers, or the count of the true ones of some booleans, as one number.

        Nothing waits for the device.
        """

    def fetched(self, totals: Sequence[Any]) -> list[float]:
        """Return the numbers of `total` as floats, fetched from the device at once."""


@runtime_checkable
class KnowsRanks(Protocol):
    """The part of an adapter whose framework shares work between processes, and numbers them."""

    def rank(self) -> int | None:
        """Return the number of this process among those that share work; None if none is known."""
