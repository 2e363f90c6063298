"""The ways in which a framework runs a user's function, as an adapter lists them for conformance.

A way is data: a name, a kind, a function that runs another one in that way, and a promise about the
result. The method ``ways()`` of a framework's `Operations` returns its ways; without the method
there are none.

The suite calls ``run(function, region, inputs)`` with

- ``function``: plain Python that any compiler can read. It takes tensors by position, calls the
  framework's operations one after the other, and returns one tensor. It has source, and its
  ``__name__`` is that of the network or operation;
- ``region``: makes a region at each call: a context manager and a decorator, maybe one that does
  nothing;
- ``inputs``: the tensors.

`run` opens the region where the way has it, inside the function or around, and returns what the
function returned. It leaves nothing behind: a compiled function is compiled anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from unamp._function_types import Function
from unamp.adapter.framework_types import Tensor
from unamp.errors import AdapterError
from unamp.policy import Policy

#: The kinds of way.
WAY_KINDS = (
    "eager",
    "compiled",
    "traced",
    "exported",
    "recomputed",
    "control flow",
    "decorated",
    "transformed",
    "replicated",
    "foreign AMP",
)

#: The promises of a way: eager's bits, or an error within the suite's own bound of the dtype.
EQUAL = ("bits", "bound")


class Opened(AbstractContextManager[object], Protocol):
    """A region: a context manager and a decorator."""

    def __call__(self, function: Function, /) -> Function:
        """Decorate a function."""


OpenRegion = Callable[[], Opened]
Run = Callable[[Function, OpenRegion, Sequence[Tensor]], Tensor]
ValueAndGrad = Callable[
    [Function, OpenRegion, Sequence[Tensor], Sequence[int]], tuple[Tensor, Sequence[Tensor]]
]


@dataclass(frozen=True)
class Way:
    """A way in which a framework runs a function.

    Attributes:
        name: its name, unique in its framework: ``"compile inductor, region inside"``.
        kind: one of `WAY_KINDS`.
        run: see the module. None where the way differentiates by itself.
        value_and_grad: in place of `run`, for a way that differentiates by itself (a transformation
            of functions, a training step, replicas that average gradients):
            ``value_and_grad(function, region, inputs, places)``. The function returns a scalar, and
            the answer is the scalar and its gradients for the inputs at these places.
        equal: one of `EQUAL`.
        gradients: whether the result of `run` can be differentiated by `Operations.value_and_grad`
            around it.
        refused: why the adapter cannot follow a policy in this way; empty where it can. Where that
            depends on the policy, a function of it. The suite checks that ``run`` raises
            `NotExpressible` before anything is computed.
        upstream: what the framework itself cannot run in this way, by the names of networks and
            operations (``*`` is a wildcard), each with the reason. The suite checks that it fails
            outside of every region too.
        absent: why the way cannot be tried here (a package or a compiler that is not installed);
            empty where it can.
        dear: whether a run takes seconds; a quick run of the suite then tries a few policies only.

    Raises:
        AdapterError: for a way that contradicts this.
    """

    name: str
    kind: str
    run: Run | None = None
    value_and_grad: ValueAndGrad | None = None
    equal: str = "bits"
    gradients: bool = True
    refused: str | Callable[[Policy], str] = ""
    upstream: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    dear: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip() or "/" in self.name:
            raise AdapterError(f"a way's name must be text without '/', not {self.name!r}")
        for what, given, valid in (("kind", self.kind, WAY_KINDS), ("equal", self.equal, EQUAL)):
            if given not in valid:
                raise AdapterError(
                    f"way {self.name!r}: {what} must be one of {', '.join(valid)}, not {given!r}"
                )
        if (self.run is None) == (self.value_and_grad is None):
            raise AdapterError(f"way {self.name!r}: give it either run or value_and_grad")

    def refusal(self, policy: Policy) -> str:
        """Return why the adapter refuses a policy in this way; empty where it follows it."""
        return self.refused(policy) if callable(self.refused) else self.refused

    def impossible(self, subject: str) -> str:
        """Return why the framework cannot run a network or operation so; empty where it can."""
        return next(
            (why for pattern, why in self.upstream.items() if fnmatchcase(subject, pattern)), ""
        )
