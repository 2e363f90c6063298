"""The precision probe: the numbers of one operation tell the precision that it computed in.

It runs the operation, and decides forward and backward. Every prediction comes from the framework
itself, in float64 outside any region: float64 is never cast. Where the framework has an operation
in no higher precision than float32, the predictions are made in that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from unamp.adapter import Operations
from unamp.adapter.absent_devices import Unreadable
from unamp.dtypes import LOW_DTYPES
from unamp_conformance.check import arrays
from unamp_conformance.check.cases import Case
from unamp_conformance.check.classify import PRECISIONS, Prediction, explain, only_moves, tells
from unamp_conformance.check.rounding import Low, cast, round_to
from unamp_conformance.subjects import SECOND

__all__ = [
    "FEEDS",
    "Finding",
    "Prepare",
    "Probe",
    "Region",
    "Run",
    "Unsuitable",
    "feeder",
    "feeder_in",
    "put",
]

#: The dtypes in which eligible inputs are handed over: all float32, all low, or the first low and
#: the others float32.
FEEDS = ("float32", "low", "mixed")

_ENOUGH = 24  # elements that a verdict rests on
_SAMPLE = 16  # numbers by which frameworks are compared
_DRAWS = 64  # at most so many calls to collect them
_CALLS = 8  # equal results of so many more calls are no luck
_AGAIN = 4  # the factor of more draws where no precision explains the numbers

Region = Callable[[], AbstractContextManager[object]]
Fed = Sequence[np.ndarray | Low]
Prepare = Callable[[list[np.ndarray]], Fed]  # changes the inputs before they are tensors


class Unsuitable(Exception):
    """A case's inputs do not tell the precisions apart."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one look at an operation.

    Attributes:
        what: ``"forward"``, ``"backward of input n"`` or ``"forward of a later call"``.
        precisions: those that the numbers are consistent with; None where the numbers cannot tell.
        dtype: the tag on the tensor.
        note: a diagnosis of numbers that no precision explains.
        values: the numbers of a first call's result where they cannot tell.
    """

    what: str
    precisions: frozenset[str] | None
    dtype: str
    note: str = ""
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Run:
    """The outcome of one call: the result's values, the gradients, and the dtypes of both.

    Gradients are those of eligible inputs.
    """

    values: np.ndarray
    dtype: str
    gradients: tuple[np.ndarray | None, ...] = ()
    gradient_dtypes: tuple[str, ...] = ()


class Probe:
    """One operation on one framework and device.

    Args:
        case: its example call.
        operations: the framework's namespace.
        device: ``"cpu"`` or ``"gpu"``.
    """

    def __init__(self, case: Case, operations: Operations, device: str = "cpu") -> None:
        self.case = case
        self._operations = operations
        self._device = device
        self._predicted: dict[tuple[str, str, range, bool], list[Prediction | None]] = {}
        self._made: dict[int, list[np.ndarray]] = {}
        self._outside: dict[tuple[str, str, str], Run | None] = {}
        self._called: dict[tuple[object, ...], Run] = {}
        self._cotangents: dict[tuple[object, ...], np.ndarray | Low] = {}
        self._wholes: dict[tuple[Region, str], Callable[..., Any] | None] = {}
        # A second device is kept on the CPU: the CPU itself gives the same numbers, in less time.
        self._beside = Probe(case, operations) if device == SECOND else None
        if self._beside is not None:
            self._beside._made = self._made

    @cached_property
    def castable(self) -> int:
        """Return the number of inputs a policy casts."""
        return len(self.case.eligible(self._inputs(0)))

    @cached_property
    def outside(self) -> Run:
        """The operation in float32, outside any region."""
        return self._without_policy(0, lambda a: a, "float32", "float32")

    @cached_property
    def keyed(self) -> bool:
        """Return whether random numbers are the same in every call.

        They are on JAX, where they come from a key.
        """
        return self.case.undetermined and all(
            np.array_equal(
                self.outside.values, self._run(0, lambda a: a, "float32", nullcontext).values
            )
            for _ in range(_CALLS)
        )

    def cast_outside(self, precision: str, feed: str, low: str) -> Run | None:
        """Return the call outside any region, for inputs of a feed cast to a precision.

        None where the framework has no such kernel.
        """
        key = precision, feed, low
        if key not in self._outside:
            try:
                self._outside[key] = self._run(
                    0, feeder_in(self.case, feed, low, precision), "float32", nullcontext
                )
            except Exception:
                self._outside[key] = None
        return self._outside[key]

    @cached_property
    def moves(self) -> bool:
        """Return whether the operation only moves values.

        Then a cast of a result in another precision is the right one.
        """
        if not self._sensitive:
            return False
        prediction = self._predictions("float32", "float32", self._draws)[0]
        return prediction is not None and only_moves(prediction)

    def ready(self) -> None:
        """Make sure that the inputs tell the precisions apart.

        Raises:
            Unsuitable: where they do not.
        """
        if self._sensitive and self._flushed:
            raise Unsuitable(
                f"{self.case.op}: its inputs tell by subnormal numbers, "
                "which the framework may take for zeros"
            )
        _ = self._draws if self._sensitive else self.outside

    def unreadable(self, precision: str, feed: str, low: str) -> Unreadable | None:
        """Return None: every run can be looked at.

        An absent device may have no program to read.

        Args:
            precision: the precision that the policy means for the inputs.
            feed, low: see `look`.
        """
        return None

    def look(self, region: Region, feed: str = "float32", low: str = "bfloat16") -> list[Finding]:
        """Run the operation inside a region and report what the numbers say.

        Args:
            region: makes the region that is open during the operation (and closed before the
                backward pass).
            feed: one of `FEEDS`.
            low: the low dtype of inputs that are fed low.

        Raises:
            Unsuitable: where the case's inputs do not tell the precisions apart.
        """
        if not self._sensitive:
            run = self._run(0, feeder(self.case, feed, low), "float32", region)
            return [Finding("forward", None, run.dtype, values=run.values)]
        findings = self._findings(region, feed, low, self._draws)
        # Where a kernel rounds its sums on the way, chance decides to which prediction a few
        # numbers are nearer: in one look of 30 at a recurrent layer in TensorFlow without oneDNN,
        # in none of 160 with twice the numbers. A true finding comes again.
        if any(finding.note and not finding.precisions for finding in findings):
            return self._findings(region, feed, low, range(_AGAIN * len(self._draws)))
        return findings

    def look_again(self, region: Region) -> list[Finding]:
        """Call the operation repeatedly in one open region, and report on the later calls.

        Shapes, dtypes and, where the framework can change a tensor in place, the tensors are those
        of the first call. Only the values differ, which shows a cast that is kept for too long.

        Args:
            region: makes the region, which stays open.
        """
        if not self._sensitive:
            _, dtype = self._changed_in_place(region, range(1, 2))
            return [Finding("forward of a later call", None, dtype)]
        draws = range(1, len(self._draws) + 1)
        for repeated in (draws, range(1, _AGAIN * len(draws) + 1)):  # see `look`
            prediction = self._predictions("float32", "float32", repeated, backward=False)[0]
            if prediction is None:
                return []
            values, dtype = self._changed_in_place(region, repeated)
            precisions, note = explain(values, self._stored(prediction, dtype))
            if precisions:
                break
        return [Finding("forward of a later call", precisions, dtype, note)]

    def _changed_in_place(self, region: Region, draws: range) -> tuple[np.ndarray, str]:
        """Return the results of calls after the first ones of their regions, with their dtype."""
        ops, case, runs = self._operations, self.case, []
        for draw in draws:
            before, after = self._inputs(draw - 1), self._inputs(draw)
            kept = {n: ops.parameter(before[n], device=self._device) for n in self._parameters}  # type: ignore[attr-defined]
            with region():
                case.call(
                    ops[case.op],
                    [kept[n] if n in kept else self._tensor(a) for n, a in enumerate(before)],
                )
                for n, parameter in kept.items():
                    ops.assign(parameter, after[n])  # type: ignore[attr-defined]
                result = case.call(
                    ops[case.op],
                    [kept[n] if n in kept else self._tensor(a) for n, a in enumerate(after)],
                )
            runs.append(self._result(self._pick(result)))
        return _flat([values for values, _ in runs]), runs[-1][1]

    @cached_property
    def _parameters(self) -> tuple[int, ...]:
        """Return the places of inputs that are parameters, where parameters change in place.

        These are all inputs that rounding changes, or none.
        """
        if not hasattr(self._operations, "assign"):
            return ()
        case, inputs = self.case, self._inputs(0)
        places = tuple(case.differentiable(inputs)) if case.backward else ()
        make = self._operations.parameter  # type: ignore[attr-defined]
        given = [
            make(a, device=self._device) if n in places else self._tensor(a)
            for n, a in enumerate(inputs)
        ]
        try:
            case.call(self._operations[case.op], given)
        except Exception:  # not every function takes the framework's parameters
            return ()
        return places

    def _stored(self, prediction: Prediction, dtype: str) -> Prediction:
        """Return the prediction for results of a dtype.

        Results that the framework keeps in a low dtype are rounded to it.
        """
        keeps = dtype == "complex32" or (self.case.own_dtype and dtype in LOW_DTYPES)
        return replace(prediction, rounded=True) if keeps else prediction

    def _findings(self, region: Region, feed: str, low: str, draws: range) -> list[Finding]:
        predictions = self._predictions(feed, low, draws)
        fed, gradients = feeder(self.case, feed, low), len(predictions) > 1
        runs = [self._run(n, fed, "float32", region, gradients=gradients) for n in draws]
        observed = _streams(runs)
        dtypes = [runs[0].dtype, *runs[0].gradient_dtypes]
        names = self._names()
        findings = []
        for name, values, dtype, prediction in zip(
            names, observed, dtypes, predictions, strict=False
        ):
            if prediction is None:
                continue
            if values is None:
                findings.append(Finding(name, frozenset(), dtype, "no gradient arrived"))
                continue
            precisions, note = explain(
                values, self._stored(prediction, dtype) if name == "forward" else prediction
            )
            findings.append(Finding(name, precisions, dtype, note))
        return findings

    def determined(self, region: Region, feed: str, low: str) -> list[np.ndarray | None]:
        """Return the results of all draws of a look, as they are.

        Gradients follow where inputs are float32. Where the inputs give only a shape, and the
        numbers are random or uninitialised memory, an array of the same size holds the name of
        their dtype instead.
        """
        gradients = self.case.backward and feed == "float32"
        draws = self._draws if self._sensitive else range(1)
        runs = [
            self._run(n, feeder(self.case, feed, low), "float32", region, gradients=gradients)
            for n in draws
        ]
        if self.case.undetermined and self.case.insensitive.startswith("takes only shape"):
            return [np.full(run.values.size, run.dtype) for run in runs]
        return _streams(runs)

    def sample(self) -> dict[str, Any]:
        """Return the count of the numbers of a result outside any region, and a few of them.

        Empty where they cannot be compared with those of another framework.
        """
        values = _flat([self.outside.values])
        chosen = values[
            np.linspace(0, values.size - 1, min(values.size, _SAMPLE)).round().astype(int)
        ]
        if self.case.undetermined or self._flushed or not np.isfinite(chosen).all():
            return {}
        return {"count": values.size, "sample": [float(f"{v:.9g}") for v in chosen]}

    def _names(self) -> list[str]:
        return [
            "forward",
            *(f"backward of input {n}" for n in self.case.differentiable(self._inputs(0))),
        ]

    @cached_property
    def _reference(self) -> str:
        """The precision that predictions are made in."""
        given = self.case.reference
        if given == "float64":
            widened = _rounder(self.case, lambda a: a, "float32", given)
            try:
                (self._beside or self)._without_policy(
                    0, widened, given, "float32", gradients=self.case.backward
                )
            except Exception:
                return "float32"
        return given

    @property
    def _sensitive(self) -> bool:
        return not self.case.insensitive and self.castable > 0

    @property
    def _flushed(self) -> bool:
        """Return whether the framework may take some inputs for zeros, in some calls only."""
        return self.case.subnormal and not getattr(self._operations, "subnormals", True)

    @cached_property
    def _draws(self) -> range:
        """As many draws as it takes until every precision gives recognisably different numbers."""
        collected: dict[str, list[Run]] = {p: [] for p in ("calibration", *PRECISIONS)}
        for draw in range(_DRAWS):
            self._collect(collected, draw, "float32", "float32", self.case.backward)
            if sum(run.values.size for run in collected["float32"]) < _ENOUGH:
                continue
            found = [p for p in self._compare(collected) if p is not None]
            if found and all(tells(prediction, calibration) for prediction, calibration in found):
                self._predicted["float32", "float32", range(draw + 1), True] = [
                    p and p[0] for p in self._compare(collected)
                ]
                return range(draw + 1)
        names = self._names()
        dull = [
            name
            for name, pair in zip(names, self._compare(collected), strict=False)
            if pair is not None and not tells(*pair)
        ]
        said = ", ".join(dull) or "its results are zeros, or of another size in another precision"
        raise Unsuitable(f"{self.case.op}: its inputs do not tell the precisions apart ({said})")

    def _predictions(
        self, feed: str, low: str, draws: range, *, backward: bool = True
    ) -> list[Prediction | None]:
        key = (feed, low if feed != "float32" else "float32", draws, backward)
        if key not in self._predicted:
            collected: dict[str, list[Run]] = {p: [] for p in ("calibration", *PRECISIONS)}
            for draw in draws:
                self._collect(
                    collected,
                    draw,
                    feed,
                    low,
                    self.case.backward and backward and feed == "float32",
                )
            self._predicted[key] = [pair and pair[0] for pair in self._compare(collected)]
        return self._predicted[key]

    def _collect(
        self, collected: dict[str, list[Run]], draw: int, feed: str, low: str, gradients: bool
    ) -> None:
        fed = feeder(self.case, feed, low)
        up, beside = self._reference, self._beside or self
        for precision in PRECISIONS:
            rounded = _rounder(self.case, fed, precision, up)
            collected[precision].append(
                beside._without_policy(draw, rounded, up, precision, gradients=gradients)
            )
        plain = _rounder(self.case, fed, "float32", "float32")
        collected["calibration"].append(
            self._without_policy(draw, plain, "float32", "float32", gradients=gradients)
        )

    def _without_policy(
        self,
        draw: int,
        prepare: Prepare,
        work_dtype: str,
        precision: str,
        *,
        gradients: bool = False,
    ) -> Run:
        """Return the call outside any region.

        Feeds and precisions with the same input numbers share one call. A call with gradients also
        serves callers that want none; the precision makes a difference to gradients alone.
        """
        inputs = prepare(self._inputs(draw))
        given = (
            (a.values.tobytes(), a.dtype) if isinstance(a, Low) else a.tobytes() for a in inputs
        )
        numbers = (draw, work_dtype, *given)
        key = (*numbers, precision) if gradients else numbers
        if key not in self._called:
            self._called[key] = run = self._run(
                draw, lambda _: inputs, work_dtype, nullcontext, precision, gradients
            )
            self._called.setdefault(numbers, replace(run, gradients=(), gradient_dtypes=()))
        return self._called[key]

    def _run(
        self,
        draw: int,
        prepare: Prepare,
        work_dtype: str,
        region: Region,
        precision: str = "float32",
        gradients: bool = False,
    ) -> Run:
        """Call once on prepared inputs.

        The gradient is that of the result's product with a fixed array.
        """
        ops, case = self._operations, self.case
        inputs = prepare(self._inputs(draw))
        tensors = [self._tensor(array) for array in inputs]
        function = ops[case.op]
        places = case.differentiable(self._inputs(draw))
        leaves = [tensors[place] for place in places]
        cotangent = partial(self._cotangent, draw, precision)
        if whole := self._whole(region, work_dtype, inputs):
            differentiated = leaves if gradients or region is nullcontext else []
            with suppress(Exception):
                # it needs numbers to go on, or raises an error, which the plain call below shows
                return self._run_of(*whole(differentiated, tensors, cotangent), gradients=gradients)
            self._wholes[region, work_dtype] = None
        if not (gradients and places):
            with region():
                result = case.call(function, tensors)
            return Run(*self._result(self._pick(result)))

        def called(leaves: Sequence[Any], tensors: Sequence[Any]) -> Any:
            with region():
                return self._pick(case.call(function, put(leaves, places, tensors)))

        if hasattr(ops, "pull_back"):
            both = ops.pull_back(
                lambda *given: self._differentiated(called(*given), work_dtype), compiled=False
            )
            return self._run_of(*both(leaves, tensors, cotangent))
        seen: list[Any] = []

        def weighed(*leaves: Any) -> Any:
            seen.append(called(leaves, tensors))
            real = self._real(seen[-1], work_dtype)
            return ops["sum"](ops["mul"](real, cotangent(real, seen[-1])))

        _, grads = ops.value_and_grad(weighed, leaves)
        return self._run_of(seen[-1], grads)

    def _whole(self, region: Region, work_dtype: str, inputs: Fed) -> Callable[..., Any] | None:
        """Return the operation in a region with its gradient, as one program.

        None where the framework does not make one program of both. A program serves all draws under
        one policy's region. Outside of regions, callers that want no gradient get the same program,
        too: running it costs less than compiling another.
        """
        ops, case, places = self._operations, self.case, self.case.differentiable(self._inputs(0))
        outside = region is nullcontext
        if not (hasattr(ops, "pull_back") and getattr(ops, "dear", False)):
            return None
        if outside and (not (case.backward and places) or any(isinstance(a, Low) for a in inputs)):
            return None
        if (region, work_dtype) not in self._wholes:

            def called(leaves: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, Any]:
                given = put(leaves, places, tensors) if leaves else tensors
                with region():
                    result = self._pick(case.call(ops[case.op], given))
                return (
                    (self._real(result, work_dtype), result)
                    if outside
                    else self._differentiated(result, work_dtype)
                )

            self._wholes[region, work_dtype] = ops.pull_back(called, compiled=True)
        return self._wholes[region, work_dtype]

    def _real(self, result: Any, dtype: str) -> Any:
        ops = self._operations
        return self._cast(
            ops["real"](result) if ops.dtype(result).startswith("complex") else result, dtype
        )

    def _cast(self, tensor: Any, dtype: str) -> Any:
        """Return a tensor in a dtype, cast cheaply: the probe's own casts are not under test."""
        ops = self._operations
        return ops.cast(tensor, dtype) if hasattr(ops, "cast") else ops["cast"](tensor, dtype)

    def _differentiated(self, result: Any, dtype: str) -> tuple[Any, Any]:
        """Return the tensor that a cotangent is given for, and the result.

        The tensor keeps its own dtype, unless it is no floating one.
        """
        ops = self._operations
        real = ops["real"](result) if ops.dtype(result).startswith("complex") else result
        return real if "float" in ops.dtype(real) else self._cast(real, dtype), result

    def _run_of(self, result: Any, grads: Sequence[Any], *, gradients: bool = True) -> Run:
        ops = self._operations
        values, dtype = self._result(result)
        if not gradients:
            return Run(values, dtype)
        arrived = tuple(None if g is None else self._read(g)[0] for g in grads)
        return Run(
            values, dtype, arrived, tuple("none" if g is None else ops.dtype(g) for g in grads)
        )

    def _inputs(self, draw: int) -> list[np.ndarray]:
        """Return the arrays of a draw, made once: every policy looks at the same ones."""
        if draw not in self._made:
            self._made[draw] = self.case.inputs(draw)
            for array in self._made[draw]:
                array.flags.writeable = False
        return self._made[draw]

    def _tensor(self, given: np.ndarray | Low) -> Any:
        if isinstance(given, Low):
            return self._cast(
                self._operations.tensor(given.values, device=self._device), given.dtype
            )
        return self._operations.tensor(given, device=self._device)

    def _cotangent(self, draw: int, precision: str, real: Any, result: Any) -> Any:
        """Return the cotangent of a result, in the dtype of its real part, which is given too."""
        ops, shape = self._operations, tuple(real.shape)
        dtype = ops.dtype(real)
        # A low result receives its gradient in low.
        key = (
            draw,
            shape,
            "float32" if ops.dtype(result).startswith("complex") else precision,
            dtype,
        )
        if key not in self._cotangents:
            spec = f"normal {'x'.join(map(str, shape or (1,)))}"
            array = round_to(
                arrays.make(spec, f"{self.case.op}/{draw}/cotangent", 0).reshape(shape), key[2]
            )
            self._cotangents[key] = (
                Low(round_to(array, dtype), dtype) if dtype in LOW_DTYPES else cast(array, dtype)
            )
        return self._tensor(self._cotangents[key])

    def _compare(
        self, collected: dict[str, list[Run]]
    ) -> list[tuple[Prediction, np.ndarray] | None]:
        """Return each stream's prediction and the framework's float32 values.

        None for a stream without numbers that tell.
        """
        streams = {name: _streams(runs) for name, runs in collected.items()}
        first = collected["float32"][0]
        found: list[tuple[Prediction, np.ndarray] | None] = []
        for n, calibration in enumerate(streams["calibration"]):
            values = {p: v for p in PRECISIONS if (v := streams[p][n]) is not None}
            if calibration is None or len(values) < len(PRECISIONS):
                found.append(None)
                continue
            # What is false in float32 may be true in low: `isinf` of a large number.
            if any(v.size != calibration.size for v in values.values()) or not any(
                np.any(v) for v in values.values()
            ):
                found.append(None)
                continue
            exact = n == 0 and first.values.dtype.kind in "biu"
            rounded = n > 0 or not (np.iscomplexobj(first.values) or self.case.own_dtype)
            found.append(
                (
                    Prediction(values, _tolerance(values["float32"], calibration), exact, rounded),
                    calibration,
                )
            )
        return found

    def _pick(self, result: Any) -> Any:
        """Return the result that is looked at.

        It is the one named by the case, or the first floating one, or the first.
        """
        results = list(_flatten(result))
        if self.case.out is not None:
            return results[self.case.out]
        floating = (
            r for r in results if hasattr(r, "shape") and "float" in self._operations.dtype(r)
        )
        return next(floating, results[0])

    def _result(self, tensor: Any) -> tuple[np.ndarray, str]:
        values, dtype = self._read(tensor)
        if self.case.unordered:
            values = np.sort(values.reshape(-1, tensor.shape[-1]), axis=-1).ravel()
        return values, dtype

    def _read(self, tensor: Any) -> tuple[np.ndarray, str]:
        if not hasattr(tensor, "shape"):  # a Python number: what `equal` and `allclose` return
            return np.atleast_1d(np.asarray(tensor)), type(tensor).__name__
        return np.atleast_1d(self._operations.numpy(tensor)).ravel(), self._operations.dtype(tensor)


def feeder(case: Case, feed: str, low: str) -> Prepare:
    """Return the function that hands inputs over in the dtypes of a feed."""

    def fed(inputs: list[np.ndarray]) -> Fed:
        places = {"float32": 0, "low": None, "mixed": 1}[feed]
        lowered = case.eligible(inputs)[:places]
        return [Low(round_to(a, low), low) if n in lowered else a for n, a in enumerate(inputs)]

    return fed


def feeder_in(case: Case, feed: str, low: str, precision: str) -> Prepare:
    """Return the function that casts the numbers of a feed to a precision."""

    def fed(inputs: list[np.ndarray]) -> Fed:
        given = [a.values if isinstance(a, Low) else a for a in feeder(case, feed, low)(inputs)]
        lowered = case.eligible(inputs) if precision != "float32" else []
        return [
            Low(round_to(a, precision), precision) if n in lowered else a
            for n, a in enumerate(given)
        ]

    return fed


def _rounder(
    case: Case, fed: Prepare, precision: str, up: str
) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Return the function that rounds a feed's inputs to a precision.

    The rounded inputs are kept in the precision of the reference.
    """

    def rounded(inputs: list[np.ndarray]) -> list[np.ndarray]:
        eligible = case.eligible(inputs)
        given = [a.values if isinstance(a, Low) else a for a in fed(inputs)]
        given = [round_to(a, precision) if n in eligible else a for n, a in enumerate(given)]
        return [cast(a, up) if a.dtype == np.float32 else a for a in given]

    return rounded


def put(leaves: Sequence[Any], places: Sequence[int], tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors with leaves in some places."""
    given = list(tensors)
    for place, leaf in zip(places, leaves, strict=True):
        given[place] = leaf
    return given


def _flatten(result: Any) -> Iterator[Any]:
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from _flatten(part)
    else:
        yield result


def _streams(runs: Sequence[Run]) -> list[np.ndarray | None]:
    """Return the values of several draws, joined: results first, then each input's gradients."""
    joined: list[np.ndarray | None] = [_flat([run.values for run in runs])]
    for parts in zip(*(run.gradients for run in runs), strict=True):
        joined.append(None if any(p is None for p in parts) else _flat(parts))
    return joined


def _flat(parts: Sequence[np.ndarray]) -> np.ndarray:
    joined = np.concatenate(parts)
    return (
        joined.view(joined.real.dtype).astype(np.float64)
        if np.iscomplexobj(joined)
        else joined.astype(np.float64)
    )


def _tolerance(exact: np.ndarray, float32: np.ndarray) -> np.ndarray:
    """Return the distance by which float32 may be off: its error here, with room to spare.

    The room is for another order of its sums.
    """
    finite = np.isfinite(exact) & np.isfinite(float32)
    off = float(np.max(np.abs(float32 - exact), where=finite, initial=0.0))
    size = float(np.max(np.abs(exact), where=finite, initial=0.0))
    allowed: np.ndarray = min(8.0 * off + 2.0**-22 * size, 2.0**-13 * size) + 2.0**-22 * np.abs(
        np.nan_to_num(exact)
    )
    return allowed
