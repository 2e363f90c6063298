"""A run in one way, judged beside the eager run.

It has the same bits, is within bounds, or has the numbers of another precision.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from unamp.adapter import Way
from unamp.dtypes import LOW_DTYPES
from unamp.policy import Policy
from unamp_conformance.check.netbounds import Reference, relative_error
from unamp_conformance.check.netruns import LOSS_SCALE, NetworkRun
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.programs import Program, program
from unamp_conformance.check.rounding import UNIT_ROUNDOFF, on_grid, round_to
from unamp_conformance.check.wayruns import Seen
from unamp_conformance.results import Finding
from unamp_conformance.subjects import Subject

__all__ = ["judged"]

#: The error allowed to one operation in another way, in unit roundoffs of its result: each way
#: rounds once by itself, and in float32 it adds sums up in an order of its own, too (see
#: `unamp_conformance.check.netbounds`).
_ROUNDINGS = {"float32": 2.0 * 16.0, "float16": 2.0, "bfloat16": 2.0}

#: The relative distance of two losses that differ in their last bits.
_LAST_BITS = 4.0 * UNIT_ROUNDOFF["float32"]

#: A run that need not have the eager bits has lost its policy where its distance from another
#: precision is less than this share of the eager run's.
_SURELY = 0.05


def judged(
    subject: Subject,
    way: Way,
    name: str,
    policy: Policy,
    eager: Seen,
    seen: Seen,
    others: dict[str, Seen],
) -> Finding:
    """Return the verdict on a run in a way, beside the eager one.

    `others` are eager runs in other precisions.
    """
    if complaint := _precision(eager, seen, others, exact=way.equal == "bits"):
        return Finding("lost", f"lost in silence: {complaint}", _beside(eager, seen))
    asked = program(name, scalar=way.run is None)
    if way.equal == "bits":
        message, details = _bits(
            asked, eager, seen, repeats=getattr(subject.operations, "repeats", True)
        )
    elif asked.network:
        precision = policy.dtype if subject.stated(policy).active else "float32"
        message, details = _within_bounds(asked, precision, seen, scalar=way.run is None)
    else:
        message, details = _near(asked, policy.dtype, eager, seen)
    return Finding(
        "failed" if message else "passed",
        message,
        details | (_beside(eager, seen) if message else {}),
    )


def _precision(eager: Seen, seen: Seen, others: dict[str, Seen], *, exact: bool) -> str:
    """Return the evidence that a result has another precision than the eager one, else nothing."""
    if seen.dtype != eager.dtype:
        return f"the result is {seen.dtype}, eagerly {eager.dtype}"
    both = eager.gradient_dtypes.keys() & seen.gradient_dtypes.keys()
    wanted, found = ([run.gradient_dtypes[p] for p in sorted(both)] for run in (eager, seen))
    if found != wanted:
        return f"gradients are {', '.join(found)}, eagerly {', '.join(wanted)}"
    if seen.values.shape != eager.values.shape:
        return ""
    for low in LOW_DTYPES if eager.values.size > 1 else ():  # one number is on any grid by chance
        eagerly, here = on_grid(eager.values, low), on_grid(seen.values, low)
        if eagerly != here:
            return (
                f"the numbers are {'' if here else 'not '}on the grid of {low}, "
                f"eagerly they are{'' if eagerly else ' not'}"
            )
    for precision, other in others.items():
        if _nearer(eager, seen, other, exact=exact):
            return f"the numbers are those of {precision}"
    return ""


def _nearer(eager: Seen, seen: Seen, other: Seen, *, exact: bool) -> bool:
    """Return whether the numbers are those of a run in another precision.

    Rounded or not, and whatever dtype the result is labelled with.
    """
    if other.values.shape != eager.values.shape:
        return False
    plain = round_to(other.values, eager.dtype) if eager.dtype in LOW_DTYPES else other.values
    every = [(eager.values, seen.values, plain)] if eager.values.size > 1 else []
    eagerly, here, there = (run.gradients or {} for run in (eager, seen, other))
    every += [
        (eagerly[place], here[place], there[place])
        for place in eagerly.keys() & here.keys() & there.keys()
    ]
    apart, plainly, told = (
        sum(_square(three[a], three[b]) for three in every) for a, b in ((0, 1), (1, 2), (0, 2))
    )
    return plainly < (0.25 * min(apart, told) if exact else _SURELY**2 * told)


def _square(values: np.ndarray, other: np.ndarray) -> float:
    return relative_error(values, other) ** 2 if values.shape == other.shape else float("inf")


def _bits(asked: Program, eager: Seen, seen: Seen, *, repeats: bool) -> tuple[str, dict[str, Any]]:
    """Compare every number with the eager one, bit by bit.

    Where a framework does not repeat its own loss, the last bits of a loss may differ.
    """
    if asked.scalar and not repeats:
        same = _apart(seen.values, eager.values) <= _LAST_BITS
    else:
        same = np.array_equal(seen.values, eager.values, equal_nan=True)
    wrong = [] if same else ["the result"]
    if seen.gradients is not None:
        for place, gradient in (eager.gradients or {}).items():
            if not np.array_equal(seen.gradients.get(place, ()), gradient, equal_nan=True):
                wrong.append(f"the gradient of {asked.arguments[place]}")
    details = {"error": _finite(_apart(seen.values, eager.values))} if wrong else {}
    return f"other bits than eagerly: {', '.join(wrong)}" * bool(wrong), details


def _near(asked: Program, low: str, eager: Seen, seen: Seen) -> tuple[str, dict[str, Any]]:
    """Compare the results of one operation with the eager ones.

    Each of the two runs rounds, and starts its backward pass from its own rounded result.
    """

    def allowed(dtype: str) -> float:
        return len(asked.ops) * _ROUNDINGS[dtype] * UNIT_ROUNDOFF[dtype]

    lowest = max(map(allowed, ("float32", low)))  # a scalar is float32, made from low results
    found = {
        "the result": (
            _apart(seen.values, eager.values),
            lowest if asked.scalar else allowed(eager.dtype),
        )
    }
    backward = 4.0 * lowest
    if seen.gradients is not None:
        for place, gradient in (eager.gradients or {}).items():
            arrived = seen.gradients.get(place, np.empty(0))
            found[f"the gradient of {asked.arguments[place]}"] = _apart(arrived, gradient), backward
    return _worst(found)


def _within_bounds(
    asked: Program, precision: str, seen: Seen, *, scalar: bool
) -> tuple[str, dict[str, Any]]:
    """Compare a network's run with the suite's bounds from float64."""
    reference = _reference(asked.name)
    gradients = {
        asked.arguments[place]: gradient / LOSS_SCALE
        for place, gradient in (seen.gradients or {}).items()
    }
    output, loss = (
        (reference.exact.output, seen.values / LOSS_SCALE) if scalar else (seen.values, seen.loss)
    )
    errors = reference.errors(
        NetworkRun(
            output, reference.exact.loss if loss is None else loss, gradients, {}, {}, (), ()
        )
    )
    bounds = reference.bounds(precision)
    compared = {
        n: (e, bounds[n])
        for n, e in errors.items()
        if seen.gradients is not None or not n.startswith("gradient")
    }
    return _worst(compared)


@lru_cache
def _reference(name: str) -> Reference:
    return Reference(NETWORKS[name])


def _worst(found: dict[str, tuple[float, float]]) -> tuple[str, dict[str, Any]]:
    wrong = [
        f"{n}: error {error:.3g}, bound {bound:.3g}"
        for n, (error, bound) in found.items()
        if not error <= bound
    ]
    worst = max(found, key=lambda n: found[n][0] / found[n][1])
    return "; ".join(wrong), {
        "worst": worst,
        "error": _finite(found[worst][0]),
        "bound": found[worst][1],
    }


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None


def _apart(values: np.ndarray, other: np.ndarray) -> float:
    if values.shape != other.shape:
        return float("inf")
    finite = np.isfinite(values)
    if (finite != np.isfinite(other)).any():  # an overflow is one in both
        return float("inf")
    return relative_error(values[finite], other[finite]) if finite.any() else 0.0


def _beside(eager: Seen, seen: Seen) -> dict[str, Any]:
    """Return the first numbers of both, as a part of the details."""
    rows = [{"of": "dtype", "expected": eager.dtype, "observed": seen.dtype}]
    few = zip(eager.values.ravel()[:4], seen.values.ravel()[:4], strict=False)
    rows += [
        {"of": f"number {n}", "expected": f"{a:.9g}", "observed": f"{b:.9g}"}
        for n, (a, b) in enumerate(few)
    ]
    return {"wrong": rows}
