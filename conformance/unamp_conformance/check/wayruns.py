"""Running a program in one way of a framework, and eagerly, with which each way is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from unamp.adapter import OpenRegion, Way
from unamp.adapter.ways import Opened
from unamp.dtypes import LOW_DTYPES
from unamp.policy import Policy, Rule
from unamp_conformance.check.netruns import LOSS_SCALE
from unamp_conformance.check.networks import Functions
from unamp_conformance.check.programs import Program, function, program
from unamp_conformance.subjects import Subject

__all__ = ["Seen", "eagerly", "in_other_precisions", "low_inputs", "run_in"]


@dataclass(frozen=True)
class Seen:
    """The outcome of one run: the result, gradients, and a network's loss.

    Gradients are by the places of inputs, and None where not asked for.
    """

    values: np.ndarray
    dtype: str
    gradients: dict[int, np.ndarray] | None
    gradient_dtypes: dict[int, str]
    loss: np.ndarray | None = None


class _Nothing(ContextDecorator):
    """A region that does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        return None


def _eagerly(body: Callable[..., Any], region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region():
        return body(*inputs)


# The way that every other one is compared with.
_EAGER = Way("eager", "eager", _eagerly)


def _eager_gradients(subject: Subject) -> Way:
    """Return the eager way that ways are compared with that differentiate by themselves."""

    def run(
        body: Callable[..., Any], region: OpenRegion, inputs: Sequence[Any], places: Sequence[int]
    ) -> tuple[Any, Sequence[Any]]:
        def loss(*leaves: Any) -> Any:
            return _eagerly(body, region, _with(inputs, places, leaves))

        return subject.operations.value_and_grad(loss, [inputs[place] for place in places])

    return Way("eager", "eager", value_and_grad=run)


def _with(inputs: Sequence[Any], places: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    """Return the inputs with others in some places."""
    given = list(inputs)
    for place, leaf in zip(places, leaves, strict=True):
        given[place] = leaf
    return given


def low_inputs(subject: Subject, policy: Policy, name: str) -> tuple[int, ...]:
    """Return the inputs of an operation that are fed low, so that its rule changes something.

    These are all, the first, or none.
    """
    asked = program(name)
    if asked.network:
        return ()
    places = asked.case.eligible(asked.inputs())
    rule = subject.rule(policy, name)
    return tuple(
        places if rule is Rule.FP32 else places[:1] if rule in (Rule.WIDEST, Rule.NARROWEST) else ()
    )


@lru_cache(maxsize=1024)
def eagerly(
    subject: Subject,
    name: str,
    scalar: bool,
    gradients: bool,
    low: tuple[int, ...],
    policy: Policy | None,
) -> Seen:
    """Run a program eagerly; the policy None stands for no region.

    With `scalar`, differentiate it as a whole, as ways do that differentiate by themselves.
    """
    if scalar:
        return run_in(subject, _eager_gradients(subject), program(name, scalar=True), low, policy)
    return run_in(subject, _EAGER, program(name), low, policy, gradients=gradients)


def run_in(
    subject: Subject,
    way: Way,
    asked: Program,
    low: tuple[int, ...],
    policy: Policy | None,
    *,
    gradients: bool = True,
) -> Seen:
    """Run a program in a way; the policy None stands for no region."""
    ops = subject.operations
    region: OpenRegion = (
        _Nothing if policy is None else lambda: cast(Opened, subject.region(policy))
    )
    body, places = function(asked, ops), asked.differentiable()
    tensors = [
        (ops.buffer if place in asked.buffers() else ops.tensor)(array, device=subject.device)
        for place, array in enumerate(asked.inputs())
    ]
    fed = policy.dtype if policy else "float32"
    tensors = [
        ops["cast"](tensor, fed) if place in low else tensor for place, tensor in enumerate(tensors)
    ]
    run, own = way.run, way.value_and_grad
    if own is not None:
        value, found = own(body, region, tensors, places)
        return _seen(subject, value, dict(zip(places, found, strict=True)))
    assert run is not None
    if not (way.gradients and gradients and places):
        return _seen(subject, run(body, region, tensors), None)
    kept: list[Any] = []

    def loss(*leaves: Any) -> Any:
        kept.append(run(body, region, _with(tensors, places, leaves)))
        return _loss(subject, asked, region, kept[-1])

    scale = LOSS_SCALE if asked.network else 1.0
    value, found = ops.value_and_grad(loss, [tensors[place] for place in places], loss_scale=scale)
    return _seen(subject, kept[-1], dict(zip(places, found, strict=True)), value)


def _loss(subject: Subject, asked: Program, region: OpenRegion, result: Any) -> Any:
    """Return the scalar that is differentiated: a network's loss, or the sum of squares.

    It is computed eagerly.
    """
    ops, network = subject.operations, asked.network
    if network is None:
        wide = ops["cast"](result, "float32")
        return ops["sum"](ops["mul"](wide, wide))
    data = {n: ops.tensor(array, device=subject.device) for n, array in network.inputs().items()}
    with region():
        return network.loss(Functions(ops), result, data)


def _seen(subject: Subject, value: Any, gradients: dict[int, Any] | None, loss: Any = None) -> Seen:
    ops = subject.operations

    def numbers(tensor: Any) -> np.ndarray:
        return np.atleast_1d(ops.numpy(tensor)).astype(np.float64)

    arrived = {
        place: gradient for place, gradient in (gradients or {}).items() if gradient is not None
    }
    return Seen(
        numbers(value),
        ops.dtype(value),
        None
        if gradients is None
        else {place: numbers(gradient) for place, gradient in arrived.items()},
        {place: ops.dtype(gradient) for place, gradient in arrived.items()},
        None if loss is None else numbers(loss),
    )


def in_other_precisions(
    subject: Subject, alike: tuple[str, bool, bool, tuple[int, ...]], policy: Policy
) -> dict[str, Seen]:
    """Return the same run eagerly in other precisions.

    These are the other low dtype and, where the policy makes something low, float32, outside of
    every region.
    """
    name, _, _, low = alike
    other = next(dtype for dtype in LOW_DTYPES if dtype != policy.dtype)
    lowers = any(subject.rule(policy, op) in (Rule.LOW, None) for op in program(name).ops)
    found = {"float32": eagerly(subject, *alike, None)} if low or lowers else {}
    with suppress(Exception):  # not everything that runs in one of them runs in the other
        found[other] = eagerly(subject, *alike, policy.replace(dtype=other))
    return found
