"""One operation on one kind of tensor that is not one dense array.

It must be followed, refused or left alone, as the adapter says.

The call runs on float32 values under a policy that allows the operation, on low values under one
that denies it, and outside of regions on both. Dtypes and numbers tell the outcome; see
`unamp.adapter.tensor_kinds` for the words.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

import unamp
from unamp.adapter.tensor_kinds import TensorKind
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp_conformance.check.netbounds import relative_error
from unamp_conformance.check.rounding import UNIT_ROUNDOFF, on_grid, round_to
from unamp_conformance.results import Finding
from unamp_conformance.subjects import Subject

__all__ = ["check_tensors"]

#: The number of roundings of the low dtype by which a followed operation may differ from float32:
#: those of its inputs, which a function with a condition number up to ten makes larger, and a few
#: of its own.
_ROUNDINGS = 32.0


@dataclass(frozen=True)
class _Came:
    """The outcome of a call: values with a dtype, or an error."""

    values: np.ndarray
    dtype: str
    error: Exception | None = None

    def same(self, other: _Came) -> bool:
        """Return whether another call gave the same bits, or raised the same error."""
        if self.error or other.error:
            return type(self.error) is type(other.error)
        return self.dtype == other.dtype and np.array_equal(
            self.values, other.values, equal_nan=True
        )


def check_tensors(subject: Subject, kind: TensorKind, op: str, policy: Policy) -> Finding:
    """Compare an operation on a kind of tensor, in a region, with the adapter's declaration.

    Args:
        subject: the framework and device.
        kind: the kind of tensor.
        op: one of the kind's operations.
        policy: the policy, which allows or denies the operation.
    """
    low = policy.dtype
    fed = "float32" if op in policy.allow else low
    try:
        given = kind.make(fed, subject.device)
    except Exception as error:
        return Finding(
            "not applicable",
            f"there is no {kind.name} of {fed}",
            {"upstream": f"{type(error).__name__}: {error}"},
        )
    plain, lowly = (_outside(subject, kind, op, dtype) for dtype in ("float32", low))
    try:
        with subject.region(policy):
            result = kind.calls[op](given)
        came = _read(kind, result)
    except NotExpressible as error:
        if complaint := _computed_before(subject, kind, op, policy, fed):
            return Finding("failed", complaint)
        came = _Came(np.empty(0), "", error)
    except Exception as error:
        came = _Came(np.empty(0), "", error)
    found, why = _treatment(came, fed, low, plain, lowly)
    declared = kind.treatments[op]
    details = {"declared": declared, "found": found or why}
    if found != declared:
        return Finding("failed", f"the adapter says {declared}; it is {found or why}", details)
    return Finding("refused", kind.reason, details) if found == "refused" else Finding("passed")


def _treatment(came: _Came, fed: str, low: str, plain: _Came, lowly: _Came) -> tuple[str, str]:
    """Return one of the treatments and an empty text, or an empty text and the observation."""
    if isinstance(came.error, NotExpressible):
        return "refused", ""
    if came.same(plain if fed == "float32" else lowly):
        return "left alone", ""
    if came.error:
        return (
            "",
            f"raised: {type(came.error).__name__}: "
            f"{next(iter(str(came.error).splitlines()), '')[:200]}",
        )
    if plain.error:
        return (
            "",
            f"neither: in a region it gives {came.dtype}, "
            f"outside it raises {type(plain.error).__name__}",
        )
    expected = low if fed == "float32" else "float32"
    if came.dtype != expected:
        return "", f"neither: the result is {came.dtype}"
    if not relative_error(came.values, plain.values) <= _ROUNDINGS * UNIT_ROUNDOFF[low]:
        return (
            "",
            f"neither: the numbers are {relative_error(came.values, plain.values):.2g} away from "
            "those of float32",
        )
    relabelled = round_to(plain.values, low)
    if expected == low and not on_grid(came.values, low):
        return "", f"neither: the result is {low}, and its numbers are not"
    # An operation that only moves or doubles values gives the same numbers either way.
    if not lowly.error and not np.array_equal(lowly.values, relabelled):
        if expected == low and np.array_equal(came.values, relabelled):
            return "", "neither: computed in float32, and only the result was rounded"
        if expected == "float32" and np.array_equal(came.values, lowly.values):
            return "", f"neither: computed in {low}, and only the result was widened"
    return "followed", ""


def _outside(subject: Subject, kind: TensorKind, op: str, dtype: str) -> _Came:
    try:
        return _read(kind, kind.calls[op](kind.make(dtype, subject.device)))
    except Exception as error:
        return _Came(np.empty(0), "", error)


def _read(kind: TensorKind, result: object) -> _Came:
    return _Came(np.atleast_1d(kind.values(result)).astype(np.float64), kind.dtype(result))


def _computed_before(subject: Subject, kind: TensorKind, op: str, policy: Policy, fed: str) -> str:
    """Return a complaint where the operation was carried out before it was refused."""
    given = kind.make(fed, subject.device)
    with unamp.trace() as trace, suppress(NotExpressible), subject.region(policy):
        kind.calls[op](given)
    return (
        f"refused, but after it computed {op}"
        if any(record.op == op for record in trace.records)
        else ""
    )
