"""Random policies, random networks and random nesting of regions, on every framework.

The folder of every framework imports the test. A network is a list of steps: operations on existing
values, and blocks of steps in a region of their own. Every call is compared with a reference from
NumPy: the inputs rounded as the policy says, the operation in float64, the result rounded.
Frameworks that agree with this reference agree with each other. Where NumPy has no number
(infinities, NaN), the reference is the framework itself, in float32 outside any region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unamp_conformance.check.rounding import UNIT_ROUNDOFF, cast, round_to, spacing
from unamp_conformance.subjects import Subject

import unamp
from unamp.adapter.observing import traced
from unamp.dtypes import LOW_DTYPES
from unamp.policy import Policy, Rule

#: The same few examples in every run.
_QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

Array = np.ndarray
Step = tuple[str, int, int] | tuple[Policy, "list[Step]"]


def _softmax(a: Array) -> Array:
    e = np.exp(a - a.max(1, keepdims=True, initial=-np.inf))
    return e / e.sum(1, keepdims=True)


@dataclass(frozen=True)
class _Op:
    """An operation of the networks.

    Its fields are the number of its values, its other arguments, NumPy's version, and the size of
    its summands.
    """

    values: int
    numpy: Callable[..., Array]
    kw: Mapping[str, Any] | None = None
    args: tuple[Any, ...] = ()
    size: Callable[..., Array] | None = None
    listed: bool = False


_OPS = {
    "relu": _Op(1, lambda a: np.maximum(a, 0.0)),
    "tanh": _Op(1, np.tanh),
    "sigmoid": _Op(1, lambda a: 1.0 / (1.0 + np.exp(-a))),
    "exp": _Op(1, np.exp),
    "neg": _Op(1, np.negative),
    "abs": _Op(1, np.abs),
    "softmax": _Op(1, _softmax, {"dim": 1}),
    "sum": _Op(1, lambda a: a.sum(1), {"dim": 1}, size=lambda a: np.abs(a).sum(1)),
    "mean": _Op(1, lambda a: a.sum(1) / a.shape[1], {"dim": 1}, size=lambda a: np.abs(a).sum(1)),
    "add": _Op(2, np.add, size=lambda a, b: np.abs(a) + np.abs(b)),
    "sub": _Op(2, np.subtract, size=lambda a, b: np.abs(a) + np.abs(b)),
    "mul": _Op(2, np.multiply),
    "div": _Op(2, np.divide),
    "maximum": _Op(2, np.maximum),
    "matmul": _Op(2, np.matmul, size=lambda a, b: np.abs(a) @ np.abs(b)),
    "linear": _Op(
        3, lambda a, w, b: a @ w.T + b, size=lambda a, w, b: np.abs(a) @ np.abs(w.T) + np.abs(b),
    ),
    "transpose": _Op(1, lambda a: a.T, args=(0, 1)),
    "cat": _Op(2, lambda a, b: np.concatenate([a, b], 1), {"dim": 1}, listed=True),
}  # fmt: skip
_PRESETS = ("unamp", "torch-cuda", "torch-cpu", "paddle", "mindspore", "tensorflow", "apex")
#: Ordinary numbers, and numbers that are difficult in float16, in both low dtypes, and in all.
_SPECIAL = (
    0.0,
    -0.0,
    1e-8,
    -3e-5,
    6.5e4,
    7e4,
    -1e30,
    3.4e38,
    1e-37,
    float("inf"),
    float("-inf"),
    float("nan"),
)


@st.composite
def _policies(draw: Any) -> Policy:
    named = draw(st.lists(st.sampled_from(sorted(_OPS)), unique=True, max_size=5))
    cut = draw(st.integers(0, len(named)))
    flags = {name: draw(st.booleans()) for name in ("promote", "widen_results", "cache")}
    level = draw(st.sampled_from(["O1", "O2", "O3", "O1", "O2", "OD", "O0"]))
    preset = draw(st.sampled_from(_PRESETS))
    enabled = draw(st.sampled_from([True] * 5 + [False]))
    dtype = draw(st.sampled_from(LOW_DTYPES))
    return Policy(level, dtype, named[:cut], named[cut:], preset, enabled, **flags)


_CALLS = st.tuples(st.sampled_from(sorted(_OPS)), st.integers(0, 50), st.integers(0, 50))
_STEPS = st.recursive(
    st.lists(_CALLS, min_size=2, max_size=6),
    lambda inner: st.lists(_CALLS | st.tuples(_policies(), inner), min_size=2, max_size=5),
    max_leaves=5,
)


@dataclass(frozen=True)
class Network:
    """Steps in a region, and the shape and kind of their first values.

    Attributes:
        policy, steps: see the module's docstring.
        shape: rows and columns of the first value. The others are broadcast against it, or
            multiplied with it.
        seed: the seed of the numbers.
        special: the number of special numbers among them.
        strided: whether values are views that are not contiguous.
        watched: whether a trace is recorded.
    """

    policy: Policy
    steps: list[Step]
    shape: tuple[int, int]
    seed: int
    special: int
    strided: bool
    watched: bool


_SIZES = st.sampled_from([3, 5, 2, 1, 4, 3, 0])
_NETWORKS = st.builds(
    Network, _policies(), _STEPS, st.tuples(_SIZES, _SIZES), st.integers(0, 2**16),
    st.sampled_from([0, 0, 1, 4]), st.booleans(), st.booleans(),
)  # fmt: skip


#: Some frameworks' float32 functions are approximations, off by a few dozen roundings.
_ROUNDOFF = {**UNIT_ROUNDOFF, "float32": 2.0**-19}


class _Run:
    """A run of a network on a framework."""

    def __init__(self, subject: Subject, network: Network) -> None:
        self.subject, self.ops, self.network = subject, subject.operations, network
        self.generator = np.random.default_rng(network.seed)
        self.values = [self.made(network.shape)]

    def made(self, shape: Sequence[int]) -> Any:
        """Return a new float32 value."""
        array = self.generator.standard_normal(shape).astype(np.float32)
        for n in self.generator.integers(
            0, max(array.size, 1), self.network.special if array.size else 0
        ):
            array.flat[n] = self.generator.choice(_SPECIAL)
        if not self.network.strided or array.ndim < 2:
            return self.ops.tensor(array, device=self.subject.device)
        return self.ops["transpose"](
            self.ops.tensor(np.ascontiguousarray(array.T), device=self.subject.device), 0, 1
        )

    def steps(self, steps: Sequence[Step], policy: Policy) -> None:
        for step in steps:
            if isinstance(step[0], Policy):
                with unamp.policy_region(step[0], framework=self.subject.framework):
                    self.steps(step[1], step[0])
            else:
                self.step(*step, policy)

    def step(self, op: str, first: int, second: int, policy: Policy) -> None:
        inputs = self.operands(op, self.values[first % len(self.values)], second)
        if not self.works(op, inputs):
            return  # the call fails outside any region, too
        rule = policy.decide(op)
        dtypes = [self.ops.dtype(value) for value in inputs]
        if rule is Rule.UNTOUCHED and len(set(dtypes)) > 1:
            return  # the framework decides, and the reference cannot know
        if rule.leaves_agreeing and {*dtypes} <= {*LOW_DTYPES} and self.plainly(op, inputs) is None:
            return  # it has no kernel for the low dtype, and the rule asks for no cast
        result = self.watched(op, inputs, rule) if self.network.watched else self.call(op, inputs)
        self.check(op, inputs, rule, policy, result)
        self.values.append(
            result
            if len(result.shape) == 2
            else self.outside(lambda: self.ops["reshape"](result, (-1, 1)))
        )

    def operands(self, op: str, value: Any, choice: int) -> list[Any]:
        """Return the value, and others that fit it: existing or new ones."""
        rows, columns = value.shape
        if op == "linear":
            return [
                value,
                self.outside(lambda: self.made((3, columns))),
                self.outside(lambda: self.made((3,))),
            ]
        if _OPS[op].values == 1:
            return [value]
        shapes = {"matmul": [(columns, 4)], "cat": [(rows, 2)]}.get(
            op, [(rows, columns), (1, columns), (rows, 1)]
        )
        fitting = [v for v in self.values if tuple(v.shape) in shapes]
        if choice % 3 and fitting:
            return [value, fitting[choice % len(fitting)]]
        return [value, self.outside(lambda: self.made(shapes[choice % len(shapes)]))]

    def outside(self, call: Callable[[], Any]) -> Any:
        with unamp.policy_region(Policy(enabled=False), framework=self.subject.framework):
            return call()

    def cast(self, value: Any, dtype: str) -> Any:
        return self.outside(lambda: self.subject.adapter.cast(value, dtype))

    def call(self, op: str, inputs: Sequence[Any]) -> Any:
        given, what = list(inputs), _OPS[op]
        return self.ops[op](*([given] if what.listed else given), *what.args, **(what.kw or {}))

    def plainly(self, op: str, inputs: Sequence[Any]) -> Any:
        """Return the result outside any region; None where the call fails there."""
        try:
            result = self.outside(lambda: self.call(op, inputs))
            self.ops.dtype(result)  # a framework that computes lazily raises only here
        except Exception:
            return None
        return result

    def works(self, op: str, inputs: Sequence[Any]) -> bool:
        """Return whether the framework's function works in float32.

        Some functions return uninitialized memory for empty tensors.
        """
        result = self.plainly(op, [self.cast(value, "float32") for value in inputs])
        if result is None:
            return False
        expected, allowed = _reference(op, [self.read(value) for value in inputs], "float32")
        observed = self.read(result)
        return observed.shape == expected.shape and not _wrong(observed, expected, allowed).any()

    def watched(self, op: str, inputs: Sequence[Any], rule: Rule) -> Any:
        with unamp.trace() as trace:
            result = self.call(op, inputs)
        records = [record for record in trace.records if record.op == op]
        assert {record.rule for record in records} <= {rule}, (
            f"{op}: the trace says {records}, the policy {rule}"
        )
        assert records or not traced(op) or rule is Rule.UNTOUCHED, (
            f"{op} is not in the trace: {trace.records}"
        )
        return result

    # --- the reference ----------------------------------------------------------------------------

    def check(
        self, op: str, inputs: Sequence[Any], rule: Rule, policy: Policy, result: Any
    ) -> None:
        dtypes = [self.ops.dtype(value) for value in inputs]
        computed = _computed(rule, policy, dtypes)
        tag = "float32" if rule is Rule.LOW and policy.widen_results else computed
        said = f"{op} under {rule} of {dtypes}, {policy}"
        assert self.ops.dtype(result) == tag, (
            f"{said}: the result is {self.ops.dtype(result)}, should be {tag}"
        )
        given = [round_to(self.read(value), computed) for value in inputs]
        observed, expected, allowed = self.read(result), *_reference(op, given, computed)
        assert observed.shape == expected.shape, said
        wrong = _wrong(observed, expected, allowed)
        assert not wrong.any(), (
            f"{said}: {observed[wrong]}, "
            f"should be {expected[wrong]} within {allowed[wrong]}, from {given}"
        )
        if (
            all(np.isfinite(a).all() for a in given)
            and np.isfinite(expected).all()
            and np.isfinite(allowed).all()
        ):
            return
        own = self.plainly(
            op, [self.ops.tensor(cast(a, "float32"), device=self.subject.device) for a in given]
        )
        unfinished = np.isnan(self.read(own)) & ~(np.isfinite(expected) & np.isfinite(allowed))
        assert np.isnan(observed[unfinished]).all(), (
            f"{said}: {observed}, should be NaN where {self.read(own)} is, from {given}"
        )

    def read(self, value: Any) -> Array:
        return np.asarray(self.ops.numpy(value), np.float64)


def _computed(rule: Rule, policy: Policy, dtypes: Sequence[str]) -> str:
    if rule is Rule.LOW:
        return policy.dtype
    low = {*dtypes} - {"float32"}
    if rule is Rule.NARROWEST and len(low) == 1:
        return low.pop()
    if rule is Rule.FP32 or len(set(dtypes)) > 1:
        return "float32"
    return dtypes[0]


def _reference(op: str, given: Sequence[Array], dtype: str) -> tuple[Array, Array]:
    """Return the exact result rounded to a dtype, and the largest error of a computation in it."""
    what = _OPS[op]
    with np.errstate(all="ignore"):
        exact = what.numpy(*given)
        size = np.abs(exact) if what.size is None else what.size(*given)
        # Four roundings of the largest summand count.
        # A very small number may also become zero.
        allowed = (
            4.0 * _ROUNDOFF[dtype] * size + 2.0 * spacing(np.nan_to_num(exact), dtype) + 2.0**-125
        )
        largest = {"float16": 2.0**14, "bfloat16": 2.0**126, "float32": 2.0**126}[dtype]
        # near the end of the range an intermediate number may overflow
        allowed = np.where(size < largest, allowed, np.inf)
        return round_to(exact, dtype), allowed


def _wrong(observed: Array, expected: Array, allowed: Array) -> Array:
    """Return the positions of numbers beyond the allowed error, where NumPy has a number."""
    with np.errstate(invalid="ignore"):
        return (
            np.isfinite(expected) & np.isfinite(allowed) & ~(np.abs(observed - expected) <= allowed)
        )


@_QUICK
@given(_NETWORKS)
def test_every_operation_of_a_network_computes_as_the_policy_says(
    framework: str, network: Network
) -> None:
    made = _Run(Subject(framework, "cpu"), network)
    with unamp.policy_region(network.policy, framework=framework):
        made.steps(network.steps, network.policy)
    assert unamp.current_policy() is None
