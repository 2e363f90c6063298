"""One way of a framework, one program, one policy: is it followed as eagerly, refused before it computes, or lost?"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np

import unamp
from unamp.adapter import OpenRegion, Way
from unamp.adapter.ways import Opened
from unamp.dtypes import LOW_DTYPES
from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Policy, Rule
from unamp_conformance.netruns import LOSS_SCALE, NetworkRun
from unamp_conformance.networks import NETWORKS, Functions, Lacking
from unamp_conformance.programs import Program, function, program
from unamp_conformance.reference import Reference, relative_error
from unamp_conformance.rounding import UNIT_ROUNDOFF, on_grid, round_to
from unamp_conformance.subjects import Subject

__all__ = ["Finding", "check_way"]

#: How far one operation may be off in another way, in unit roundoffs of its result: each way rounds once on its own, and in
#: float32 sums are added up in an order of its own, too (see `unamp_conformance.reference.bounds`).
_ROUNDINGS = {"float32": 2.0 * 16.0, "float16": 2.0, "bfloat16": 2.0}


#: A run that is not held to bits lost its policy where it is nearer to another precision than this, of eager's distance.
_SURELY = 0.05


@dataclass(frozen=True)
class Finding:
    """The outcome of one check of a way: a status of `unamp_conformance.results.STATUSES`, what to say, observations."""

    status: str
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Seen:
    """The outcome of one run: the result, gradients by the places of inputs (None where not asked for), a network's loss."""

    values: np.ndarray
    dtype: str
    gradients: dict[int, np.ndarray] | None
    gradient_dtypes: frozenset[str]
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


#: What every way is held against.
EAGER = Way("eager", "eager", _eagerly)


def _eager_gradients(subject: Subject) -> Way:
    """Return what ways that differentiate by themselves are held against."""

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


def check_way(subject: Subject, way: Way, name: str, policy: Policy) -> Finding:
    """Run a network or an operation under a policy in one of a framework's ways, and hold it against the same run eagerly.

    Args:
        subject: the framework and device.
        way: one of its ways.
        name: the network or operation.
        policy: the policy.
    """
    if way.absent:
        return Finding("not run", way.absent)
    if reason := way.impossible(name):
        return _impossible(subject, way, name, reason)
    if reason := way.refusal(policy):
        return _refused(subject, way, name, policy, reason)
    # What is kept for gradients can make another kernel compute: the eager run keeps them where the way does.
    alike = (name, way.run is None, way.gradients, low := _fed(subject, policy, name))
    try:
        eager = _eager(subject, *alike, policy)
    except Lacking:
        raise
    except BannedOperation as error:
        return _banned(subject, way, name, low, policy, error)
    except Exception as error:  # other checks say so
        return Finding("not applicable", f"eagerly it fails too: {_line(error)}")
    try:
        seen = _run(subject, way, program(name, scalar=way.run is None), low, policy)
    except Exception as error:
        return _raised(error)
    return _judged(subject, way, name, policy, eager, seen, _others(subject, alike, policy))


def _others(subject: Subject, alike: tuple[str, bool, bool, tuple[int, ...]], policy: Policy) -> dict[str, _Seen]:
    """Return what the same comes to eagerly in other precisions: outside of every region, and in the other low dtype."""
    other = next(dtype for dtype in LOW_DTYPES if dtype != policy.dtype)
    found = {"float32": _eager(subject, *alike, None)}
    with suppress(Exception):  # not everything that runs in one of them runs in the other
        found[other] = _eager(subject, *alike, policy.replace(dtype=other))
    return found


# --- where it does not run ---------------------------------------------------------------------------------------------


def _impossible(subject: Subject, way: Way, name: str, reason: str) -> Finding:
    """Show that the framework itself cannot, without any region."""
    try:
        _run(subject, way, program(name, scalar=way.run is None), (), None)
    except Exception as error:
        return Finding("not applicable", f"{subject.framework} itself cannot: {reason}", {"upstream": _line(error)})
    return Finding("failed", f"{subject.framework} can run it by now, and the way says that it cannot: {reason}")


def _refused(subject: Subject, way: Way, name: str, policy: Policy, reason: str) -> Finding:
    """Show that it is refused, and that nothing was computed before."""
    scalar = way.run is None
    with unamp.trace() as trace:
        before = len(trace.records)
        try:
            _run(subject, way, program(name, scalar=scalar), _fed(subject, policy, name), policy, gradients=False)
        except NotExpressible as error:
            ran = [record.op for record in trace.records[before:]]
            details = {"refusal": _line(error), "reason": reason}
            if ran:
                return Finding("failed", f"refused, but after it computed {', '.join(dict.fromkeys(ran))}", details)
            return Finding("refused", reason, details)
        except Exception as error:
            return _raised(error)
    return Finding("failed", f"the adapter says that it refuses this way, but it ran: {reason}")


def _banned(subject: Subject, way: Way, name: str, low: tuple[int, ...], policy: Policy, banned: Exception) -> Finding:
    """Show that what the policy bans does not run in this way either."""
    try:
        _run(subject, way, program(name, scalar=way.run is None), low, policy)
    except Exception as error:
        causes = list(_causes(error))
        if any(isinstance(cause, BannedOperation | NotExpressible) for cause in causes) or _line(banned) in str(error):
            return Finding("passed")
        return _raised(error)
    return Finding("lost", f"lost in silence: it ran, and eagerly the policy bans it: {_line(banned)}")


def _raised(error: Exception) -> Finding:
    said = f"{type(error).__name__}: {_line(error)}"
    kept = {"traceback": traceback.format_exc()[-3000:].splitlines()}
    if isinstance(error, NotExpressible):
        return Finding("failed", f"refused, and the way does not say so: {said}", kept)
    return Finding("failed", f"raised, where a way is followed or refused by NotExpressible: {said}", kept)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


# --- running -----------------------------------------------------------------------------------------------------------


def _fed(subject: Subject, policy: Policy, name: str) -> tuple[int, ...]:
    """Return which inputs of an operation are fed low, so that its rule changes something: all, the first, or none."""
    asked = program(name)
    if asked.network:
        return ()
    places = asked.case.eligible(asked.inputs())
    rule = subject.rule(policy, name)
    return tuple(places if rule is Rule.FP32 else places[:1] if rule in (Rule.WIDEST, Rule.NARROWEST) else ())


@lru_cache(maxsize=1024)
def _eager(subject: Subject, name: str, scalar: bool, gradients: bool, low: tuple[int, ...], policy: Policy | None) -> _Seen:
    if scalar:
        return _run(subject, _eager_gradients(subject), program(name, scalar=True), low, policy)
    return _run(subject, EAGER, program(name), low, policy, gradients=gradients)


def _run(
    subject: Subject, way: Way, asked: Program, low: tuple[int, ...], policy: Policy | None, *, gradients: bool = True
) -> _Seen:
    """Run a program in a way; the policy None stands for no region."""
    ops = subject.operations
    region: OpenRegion = _Nothing if policy is None else lambda: cast(Opened, subject.region(policy))
    body, places = function(asked, ops), asked.differentiable()
    tensors = [
        (ops.buffer if place in asked.buffers() else ops.tensor)(array, device=subject.device)
        for place, array in enumerate(asked.inputs())
    ]
    fed = policy.dtype if policy else "float32"
    tensors = [ops["cast"](tensor, fed) if place in low else tensor for place, tensor in enumerate(tensors)]
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
    """Return the scalar that is differentiated, computed eagerly: a network's loss, or the sum of squares."""
    ops, network = subject.operations, asked.network
    if network is None:
        wide = ops["cast"](result, "float32")
        return ops["sum"](ops["mul"](wide, wide))
    data = {n: ops.tensor(array, device=subject.device) for n, array in network.inputs().items()}
    with region():
        return network.loss(Functions(ops), result, data)


def _seen(subject: Subject, value: Any, gradients: dict[int, Any] | None, loss: Any = None) -> _Seen:
    ops = subject.operations

    def numbers(tensor: Any) -> np.ndarray:
        return np.atleast_1d(ops.numpy(tensor)).astype(np.float64)

    arrived = {place: gradient for place, gradient in (gradients or {}).items() if gradient is not None}
    return _Seen(
        numbers(value),
        ops.dtype(value),
        None if gradients is None else {place: numbers(gradient) for place, gradient in arrived.items()},
        frozenset(map(ops.dtype, arrived.values())),
        None if loss is None else numbers(loss),
    )


# --- judging -----------------------------------------------------------------------------------------------------------


def _judged(
    subject: Subject, way: Way, name: str, policy: Policy, eager: _Seen, seen: _Seen, others: dict[str, _Seen]
) -> Finding:
    """Return what a run in a way comes to beside the eager one, and eager ones in other precisions."""
    if complaint := _precision(eager, seen, others, exact=way.equal == "bits"):
        return Finding("lost", f"lost in silence: {complaint}", _beside(eager, seen))
    asked = program(name, scalar=way.run is None)
    if way.equal == "bits":
        message, details = _bits(asked, eager, seen)
    elif asked.network:
        precision = policy.dtype if subject.stated(policy).active else "float32"
        message, details = _within_bounds(asked, precision, seen, scalar=way.run is None)
    else:
        message, details = _near(asked, policy.dtype, eager, seen)
    return Finding("failed" if message else "passed", message, details | (_beside(eager, seen) if message else {}))


def _precision(eager: _Seen, seen: _Seen, others: dict[str, _Seen], *, exact: bool) -> str:
    """Return how a result shows another precision than the eager one; empty where it does not."""
    if seen.dtype != eager.dtype:
        return f"the result is {seen.dtype}, eagerly {eager.dtype}"
    if seen.gradients is not None and seen.gradient_dtypes != eager.gradient_dtypes:
        return f"gradients are {_listed(seen.gradient_dtypes)}, eagerly {_listed(eager.gradient_dtypes)}"
    if seen.values.shape != eager.values.shape:
        return ""
    for low in LOW_DTYPES if eager.values.size > 1 else ():  # one number is on any grid by chance
        eagerly, here = on_grid(eager.values, low), on_grid(seen.values, low)
        if eagerly != here:
            return f"the numbers are {'' if here else 'not '}on the grid of {low}, eagerly they are{'' if eagerly else ' not'}"
    for precision, other in others.items():
        if _nearer(eager, seen, other, exact=exact):
            return f"the numbers are those of {precision}"
    return ""


def _nearer(eager: _Seen, seen: _Seen, other: _Seen, *, exact: bool) -> bool:
    """Return whether the numbers are those of a run in another precision, whatever the tag is, or those rounded."""
    if other.values.shape != eager.values.shape:
        return False
    plain = round_to(other.values, eager.dtype) if eager.dtype in LOW_DTYPES else other.values
    every = [(eager.values, seen.values, plain)] if eager.values.size > 1 else []
    eagerly, here, there = (run.gradients or {} for run in (eager, seen, other))
    every += [(eagerly[place], here[place], there[place]) for place in eagerly.keys() & here.keys() & there.keys()]
    apart, plainly, told = (sum(_square(three[a], three[b]) for three in every) for a, b in ((0, 1), (1, 2), (0, 2)))
    return plainly < (0.25 * min(apart, told) if exact else _SURELY**2 * told)


def _square(values: np.ndarray, other: np.ndarray) -> float:
    return relative_error(values, other) ** 2 if values.shape == other.shape else float("inf")


def _listed(dtypes: frozenset[str]) -> str:
    return " and ".join(sorted(dtypes)) or "none"


def _bits(asked: Program, eager: _Seen, seen: _Seen) -> tuple[str, dict[str, Any]]:
    """Hold every number against the eager one."""
    wrong = [] if np.array_equal(seen.values, eager.values, equal_nan=True) else ["the result"]
    if seen.gradients is not None:
        for place, gradient in (eager.gradients or {}).items():
            if not np.array_equal(seen.gradients.get(place, ()), gradient, equal_nan=True):
                wrong.append(f"the gradient of {asked.arguments[place]}")
    details = {"error": _finite(_apart(seen.values, eager.values))} if wrong else {}
    return f"other bits than eagerly: {', '.join(wrong)}" * bool(wrong), details


def _near(asked: Program, low: str, eager: _Seen, seen: _Seen) -> tuple[str, dict[str, Any]]:
    """Hold one operation against the eager one: each of the two rounds, and starts its backward pass from what it rounded."""

    def allowed(dtype: str) -> float:
        return len(asked.ops) * _ROUNDINGS[dtype] * UNIT_ROUNDOFF[dtype]

    lowest = max(map(allowed, ("float32", low)))  # a scalar is float32, and comes of low results
    found = {"the result": (_apart(seen.values, eager.values), lowest if asked.scalar else allowed(eager.dtype))}
    backward = 4.0 * lowest
    if seen.gradients is not None:
        for place, gradient in (eager.gradients or {}).items():
            arrived = seen.gradients.get(place, np.empty(0))
            found[f"the gradient of {asked.arguments[place]}"] = _apart(arrived, gradient), backward
    return _worst(found)


def _within_bounds(asked: Program, precision: str, seen: _Seen, *, scalar: bool) -> tuple[str, dict[str, Any]]:
    """Hold a network's run against the suite's bounds from float64."""
    reference = _reference(asked.name)
    gradients = {asked.arguments[place]: gradient / LOSS_SCALE for place, gradient in (seen.gradients or {}).items()}
    output, loss = (reference.exact.output, seen.values / LOSS_SCALE) if scalar else (seen.values, seen.loss)
    errors = reference.errors(NetworkRun(output, reference.exact.loss if loss is None else loss, gradients, {}, {}, (), ()))
    bounds = reference.bounds(precision)
    compared = {n: (e, bounds[n]) for n, e in errors.items() if seen.gradients is not None or not n.startswith("gradient")}
    return _worst(compared)


@lru_cache
def _reference(name: str) -> Reference:
    return Reference(NETWORKS[name])


def _worst(found: dict[str, tuple[float, float]]) -> tuple[str, dict[str, Any]]:
    wrong = [f"{n}: error {error:.3g}, bound {bound:.3g}" for n, (error, bound) in found.items() if not error <= bound]
    worst = max(found, key=lambda n: found[n][0] / found[n][1])
    return "; ".join(wrong), {"worst": worst, "error": _finite(found[worst][0]), "bound": found[worst][1]}


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None


def _apart(values: np.ndarray, other: np.ndarray) -> float:
    if values.shape != other.shape:
        return float("inf")
    finite = np.isfinite(values)
    if (finite != np.isfinite(other)).any():  # an overflow is one in both
        return float("inf")
    return relative_error(values[finite], other[finite]) if finite.any() else 0.0


def _beside(eager: _Seen, seen: _Seen) -> dict[str, Any]:
    """Return the first numbers of both, as a part of the details."""
    rows = [{"of": "dtype", "expected": eager.dtype, "observed": seen.dtype}]
    few = zip(eager.values.ravel()[:4], seen.values.ravel()[:4], strict=False)
    rows += [{"of": f"number {n}", "expected": f"{a:.9g}", "observed": f"{b:.9g}"} for n, (a, b) in enumerate(few)]
    return {"wrong": rows}
