"""Checks before a search: bad arguments, unrepeatable runs, and faults that no search can mend."""

from __future__ import annotations

import math
from typing import Any

from unamp.amp_warnings import moves_statistics
from unamp.dtypes import FLOAT32, low_dtype
from unamp.errors import shortened, unknown
from unamp.policy import Policy
from unamp.presets import preset
from unamp.regions import check_policy
from unamp.tracing import Trace
from unamp.tuning import measuring
from unamp.tuning.places import BY
from unamp.tuning.search_order import EFFORTS
from unamp.tuning.subject import Subject
from unamp.typing import DtypeLike


def check_arguments(
    run: object, batches: object, tolerance: object, margin: object, by: object, effort: object
) -> None:
    """Check the arguments of `tune`.

    Raises:
        TypeError, ValueError: where one is not valid; the message says what was given, and what is
            valid.
    """
    if not callable(run):
        raise TypeError(
            f"run must be a function of one batch that returns results; not {shortened(run)}"
        )
    if not isinstance(batches, (list, tuple)):
        raise TypeError(
            "batches must be a list of batches, each for one call of run; "
            f"not {type(batches).__name__}"
        )
    if not batches:
        raise ValueError(
            "batches is empty; three or more are better than one: the answer fits what was run"
        )
    for name, value, up_to in (("tolerance", tolerance, math.inf), ("margin", margin, 1.0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, not {shortened(value)}")
        if not (0.0 < value <= up_to and math.isfinite(value)):
            most = f" and at most {up_to:g}" if up_to < math.inf else ""
            raise ValueError(f"{name} must be above 0{most}, not {value}")
    if by not in BY:
        raise ValueError(unknown("by", by, BY))
    if effort not in EFFORTS:
        raise ValueError(unknown("effort", effort, EFFORTS))


def base_policy(base: object, dtype: DtypeLike | None) -> Policy:
    """Return the policy that a search starts from.

    Raises:
        TypeError, ValueError: where `base` is no policy, has no lists, or has another dtype.
    """
    if base is None:
        return Policy("O3", "float16" if dtype is None else low_dtype(dtype))
    check_policy(base)
    assert isinstance(base, Policy)
    if dtype is not None and Policy(dtype=dtype).dtype != base.dtype:
        raise ValueError(
            f"dtype is {shortened(dtype)} and base computes in {base.dtype}; leave dtype out"
        )
    if not base.active or base.dtype == FLOAT32:
        raise ValueError(
            f"base must be a policy under which something is low; {base!r} changes nothing"
        )
    if preset(base.preset).delegates:
        raise ValueError(
            f"base must be a policy with lists; preset {base.preset!r} is the framework's own AMP, "
            "which takes none"
        )
    return base


def check_repeatable(
    subject: Subject, one: tuple[Any, Trace], other: tuple[Any, Trace], limit: float
) -> None:
    """Check that two float32 runs of one batch agree.

    Raises:
        ValueError: where they do not; the message gives a likely reason.
    """
    if subject.measure is None:
        if measuring.has_nan(one[0]):
            raise ValueError(f"the float32 run gives NaN{_where(one[1])}; no policy can mend that")
    elif measuring.same_objects(one[0], other[0]):
        raise ValueError(
            "run returned the same tensor twice, so that every run would overwrite the first; "
            "return a copy"
        )
    apart = subject.difference(one[0], other[0])
    if apart > limit / 10:
        raise ValueError(
            f"two float32 runs of the same batch are {apart:.1e} apart, so no error could be "
            f"measured: {_reason(subject)}{_first_difference(one[1], other[1])}"
        )


def warn_of_statistics(subject: Subject) -> None:
    """Warn of norms whose running statistics every run of the search will change."""
    if moving := _layers(subject, "batchnorm", training=True):
        moves_statistics(_some(moving))


def _layers(subject: Subject, kind: str, *, training: bool | None) -> list[str]:
    """Return layers of a kind and in a mode, with their classes; None: layers without a mode."""
    return [
        f"{name or 'the network'} ({type(layer).__name__})"
        for name, layer in subject.names.layers.items()
        if _mode(layer) is training and kind in type(layer).__name__.lower()
    ]


def _mode(layer: object) -> bool | None:
    """Return whether a layer is in training mode; None for a layer without a mode.

    Keras' layers have no mode: each call is given it. On PyTorch they have the attribute of a
    module, which says nothing.
    """
    return None if hasattr(layer, "dtype_policy") else getattr(layer, "training", None)


def _reason(subject: Subject) -> str:
    evaluate = "call network.eval() (network.set_train(False) in MindSpore) before"
    if dropping := _layers(subject, "drop", training=True):
        return f"dropout is on in {_some(dropping)}; {evaluate}"
    if dropping := _layers(subject, "drop", training=None):
        return f"there is dropout in {_some(dropping)}; call the network with training=False"
    if _layers(subject, "", training=True):
        return f"the network is in training mode; {evaluate}"
    return (
        "run draws random numbers, or changes what it reads; "
        "seed it, and have it begin from the same state each time"
    )


def _first_difference(one: Trace, other: Trace) -> str:
    if [(r.layer, r.op) for r in one.records] != [(r.layer, r.op) for r in other.records]:
        return " (the second run did not run the same operations)"
    for before, after in zip(one.records, other.records, strict=True):
        if before.values != after.values:
            return (
                f" (what {before.op}{f' of {before.layer}' if before.layer else ''} gives "
                "is the first to differ)"
            )
    return ""


def _where(ran: Trace) -> str:
    first = next(iter(ran.nonfinite), None)
    if first is None:
        return ""
    return (
        f", and {first.op}{f' of {first.layer}' if first.layer else ''} "
        "is the first whose result is not finite"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
