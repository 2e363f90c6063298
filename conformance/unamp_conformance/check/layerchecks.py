"""Rules for layers, judged by numbers: eager, compiled and exported, put on and taken off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import unamp
from unamp.adapter.layered_networks import LayeredNetworks
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp_conformance.check.netbounds import relative_error
from unamp_conformance.check.rounding import round_to
from unamp_conformance.results import Finding
from unamp_conformance.subjects import Subject

__all__ = ["LAYER_CASES", "check_layers"]


@dataclass(frozen=True)
class _Case:
    """Rules, and the precision of the block's two products.

    Attributes:
        rules: returns the rules, given the low dtype.
        expected: the dtype of each product, ``"low"`` or ``"float32"``.
        region: whether a low region is open around.
        narrowed: whether the rule's result goes back to low.
    """

    rules: Callable[[str], dict[str, Any]]
    expected: tuple[str, str]
    region: bool = True
    narrowed: bool = False


def _low(dtype: str) -> Policy:
    return Policy("O3", dtype)


#: The cases, by their names in results.
LAYER_CASES: Mapping[str, _Case] = {
    "float32 in a low region": _Case(lambda low: {"block.second": "float32"}, ("low", "float32")),
    "low without a region": _Case(
        lambda low: {"block.first": _low(low)}, ("low", "float32"), region=False
    ),
    "a rule inside a rule": _Case(
        lambda low: {"block": "float32", "**.first": _low(low)}, ("low", "float32")
    ),
    "by a wildcard": _Case(lambda low: {"*": "float32"}, ("float32", "float32")),
    "a result that goes back to low": _Case(
        lambda low: {"**.second": "float32"}, ("low", "float32"), narrowed=True
    ),
}

_FRACTION = 2.0**-13


def _numbers() -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the block's input and weights; their products tell the precision to the bit.

    They do so on every machine. They are whole numbers, some with a fraction that rounding to a low
    dtype takes away: in the first half of each sum the input has it, in the second the weight.
    float32 holds all products and partial sums exactly, in any order, and so does a low dtype once
    the fractions are gone. In half of the results the whole numbers cancel and fractions alone are
    left, so that rounding a result to a low dtype changes nothing; in the others it takes the
    fraction away.
    """
    drawn = np.random.default_rng(7)
    with_fractions = np.repeat((_FRACTION, 0.0), 4)

    def twice(rows: int) -> np.ndarray:
        return np.tile(drawn.integers(1, 4, (rows, 4)), 2).astype(np.float32)

    signs = np.where((np.arange(6)[:, None] < 3) & (np.arange(8) >= 4), -1, 1)
    weights = [twice(6) * signs + with_fractions[::-1] for _ in range(2)]
    return (twice(3) + with_fractions).astype(np.float32), (
        weights[0].astype(np.float32),
        weights[1].astype(np.float32),
    )


_INPUT, _WEIGHTS = _numbers()


def check_layers(subject: Subject, way: str, name: str, policy: Policy) -> Finding:
    """Judge every number of a network before layer rules are put on, under them, and after.

    The network runs in one way, and the rules are those of a case.

    Args:
        subject: the framework and device.
        way: one of `unamp.adapter.layered_networks.LAYER_WAYS`.
        name: one of `LAYER_CASES`.
        policy: the policy of the region around.
    """
    make = getattr(subject.operations, "layered", None)
    if make is None:
        return Finding(
            "not applicable", f"the adapter for {subject.framework} gives no network with layers"
        )
    given: LayeredNetworks = make()
    made = given.ways[way]
    if isinstance(made, str):
        return Finding("not run", made)
    case = LAYER_CASES[name]
    network = given.network(_WEIGHTS, subject.device)
    tensor = subject.operations.tensor(_INPUT, device=subject.device)
    run = made(network)

    def region() -> AbstractContextManager[Any]:
        return subject.region(policy) if case.region else nullcontext()

    if reason := given.refused(way, policy, case.narrowed):
        return _refused(lambda: _ruled(network, case, policy, lambda: run(region, tensor)), reason)
    plain = ("low", "low") if case.region else ("float32", "float32")
    for moment, expected, ruled in (
        ("before", plain, False),
        ("under", case.expected, True),
        ("after", plain, False),
    ):
        found = (
            _ruled(network, case, policy, lambda: run(region, tensor))
            if ruled
            else run(region, tensor)
        )
        for number, (result, precision) in enumerate(zip(found, expected, strict=True)):
            narrowed = ruled and case.narrowed and precision == "float32"
            complaint, details = _judged(
                subject, result, number, precision, policy.dtype, narrowed=narrowed
            )
            if complaint:
                layer = ("first", "second")[number]
                return Finding("failed", f"{moment} the rules block.{layer} {complaint}", details)
    return Finding("passed")


def _ruled(network: Any, case: _Case, policy: Policy, run: Callable[[], Any]) -> Any:
    with unamp.layer_policies(
        network, case.rules(policy.dtype), result="low" if case.narrowed else None
    ):
        return run()


def _refused(run: Callable[[], Any], reason: str) -> Finding:
    try:
        run()
    except NotExpressible as error:
        return Finding("refused", reason, {"refusal": str(error).splitlines()[0][:300]})
    return Finding("failed", f"the adapter says that it refuses this, but it ran: {reason}")


def _judged(
    subject: Subject, result: Any, number: int, precision: str, low: str, *, narrowed: bool
) -> tuple[str, dict[str, Any]]:
    """Return the fault of a product, by its dtype and by its numbers."""
    wanted = low if narrowed or precision == "low" else "float32"
    if (dtype := subject.operations.dtype(result)) != wanted:
        return f"is {dtype}, and must be {wanted}", {}
    values = np.asarray(subject.operations.numpy(result)).astype(np.float64)
    weight = _WEIGHTS[number]
    exact = _INPUT.astype(np.float64) @ weight.T.astype(np.float64)
    rounded = round_to(_INPUT, low).astype(np.float64) @ round_to(weight, low).T.astype(np.float64)
    expected, other = (rounded, exact) if precision == "low" else (exact, rounded)
    if narrowed:
        expected = round_to(exact, low)
    if np.array_equal(values, expected):
        return "", {}
    if np.array_equal(values, other):
        return f"has the numbers of {'float32' if precision == 'low' else low}", {}
    error = relative_error(values, expected)
    return f"is off by {error:.3g}, although nothing needs rounding", {"error": float(error)}
