"""Checks of regions beyond one operation or network: nesting, exceptions, threads, the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

import unamp
from unamp.policy import Policy
from unamp_conformance.check.cases import cases
from unamp_conformance.check.netbounds import relative_error
from unamp_conformance.check.netruns import run
from unamp_conformance.check.networks import NETWORKS, Functions, Lacking
from unamp_conformance.check.probes import Probe, Region
from unamp_conformance.check.rounding import UNIT_ROUNDOFF
from unamp_conformance.subjects import Subject

__all__ = ["BEHAVIOURS"]

_OP = "matmul"  # low under every preset's O1, and needed by every network

_THREADS = 4
_ROUNDS = 25

# of a regression; each halves the error, so that no digit of the start is left in float32
_STEPS = 24


def _prepared(subject: Subject) -> Probe:
    """Return a probe with its predictions, which must be made outside all regions."""
    if _OP not in subject.operations.names():
        raise Lacking(_OP)
    probe = Probe(cases()[_OP], subject.operations, subject.device)
    probe.ready()
    return probe


def _precision(probe: Probe, region: Region, expected: str, where: str) -> str:
    """Return a complaint where the probe finds another precision in a region, or an empty text."""
    right = frozenset({expected})
    wrong = [
        f"{f.what} computed in {sorted(f.precisions or ())}"
        for f in probe.look(region)
        if f.precisions != right
    ]
    return f"{where}: {'; '.join(wrong)}; should be {expected}" if wrong else ""


def _inside(subject: Subject, *policies: Policy) -> Region:
    """Return the context that opens regions within regions, as one."""

    @contextmanager
    def opened() -> Iterator[None]:
        with ExitStack() as stack:
            for policy in policies:
                stack.enter_context(subject.region(policy))
            yield

    return opened


def nesting(subject: Subject, dtype: str) -> str:
    """Check that the innermost region counts, and that the outer one is back when it closes."""
    probe = _prepared(subject)
    low, off, deny = (
        Policy("O1", dtype),
        Policy("O1", dtype, enabled=False),
        Policy("O1", dtype, deny=(_OP,)),
    )
    other = Policy("O1", {"float16": "bfloat16", "bfloat16": "float16"}[dtype])
    wrong = [
        _precision(probe, _inside(subject, low), dtype, "in a region"),
        _precision(probe, _inside(subject, low, off), "float32", "with enabled=False inside it"),
        _precision(probe, _inside(subject, off, low), dtype, "in a region inside enabled=False"),
        _precision(
            probe,
            _inside(subject, low, other),
            other.dtype,
            "in a region of the other dtype inside it",
        ),
        _precision(
            probe,
            _inside(subject, low, deny),
            "float32",
            "in a region that denies the operation inside it",
        ),
        _precision(probe, _inside(subject, low, low), dtype, "in the same region inside itself"),
    ]
    with subject.region(low):
        with subject.region(off):
            pass
        wrong.append(_precision(probe, _inside(subject), dtype, "after the inner region closed"))
    wrong.append(_precision(probe, _inside(subject), "float32", "after all regions closed"))
    return "; ".join(filter(None, wrong))


def exceptions(subject: Subject, dtype: str) -> str:
    """Check that an exception out of a region leaves everything as it was before."""
    probe = _prepared(subject)
    outer, inner = Policy("O1", dtype, deny=(_OP,)), Policy("O1", dtype)
    wrong = []
    with subject.region(outer):
        with suppress(_Expected), subject.region(inner):
            raise _Expected
        wrong.append(
            _precision(
                probe, _inside(subject), "float32", "in the outer region after the inner one raised"
            )
        )
        if unamp.current_policy() is None:
            wrong.append("the outer region's policy is gone after the inner one raised")
    with suppress(_Expected), subject.region(inner):
        raise _Expected
    wrong.append(_precision(probe, _inside(subject), "float32", "after a region raised"))
    if unamp.current_policy() is not None:
        wrong.append(f"a policy is still in force: {unamp.current_policy()!r}")
    return "; ".join(filter(None, wrong))


class _Expected(Exception):
    pass


def threads(subject: Subject, dtype: str) -> str:
    """Check that threads do not share policies, and that a new one starts outside all regions."""
    probe = _prepared(subject)
    policies = [
        (Policy("O1", dtype), dtype),
        (Policy("O1", dtype, deny=(_OP,)), "float32"),
        (Policy("O3", dtype), dtype),
        (None, "float32"),
    ]
    wrong: list[str] = []
    start = threading.Barrier(_THREADS)

    def work(policy: Policy | None, expected: str) -> None:
        try:
            start.wait()
            for _ in range(_ROUNDS):
                regions = () if policy is None else (policy,)
                if complaint := _precision(
                    probe, _inside(subject, *regions), expected, f"in the thread of {policy}"
                ):
                    return wrong.append(complaint)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=case) for case in policies]
    # Opened while the threads run: none of them inherits it.
    with subject.region(Policy("O1", dtype)):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return "; ".join(dict.fromkeys(wrong))


def cache(subject: Subject, dtype: str) -> str:
    """Check that a parameter used twice in a region gets the whole gradient.

    Also after it was used without gradients.
    """
    ops, network = subject.operations, NETWORKS["mlp"]
    x = ops.tensor(network.inputs()["x"], device=subject.device)
    w = ops.tensor(network.parameters()["w1"][:32], device=subject.device)

    def twice(weight: Any) -> Any:
        f = Functions(ops)
        with subject.region(Policy("O1", dtype)):
            f.linear(x, ops.tensor(ops.numpy(weight), device=subject.device))
            h = f.linear(f.linear(x, weight), weight)
        return f.sum(ops["cast"](h, "float32"))

    def once(weight: Any) -> Any:
        f = Functions(ops)
        return f.sum(f.linear(f.linear(x, weight), weight))

    observed, exact = (
        ops.numpy(ops.value_and_grad(function, [w])[1][0]) for function in (twice, once)
    )
    error = relative_error(observed.astype(np.float64), exact.astype(np.float64))
    return (
        ""
        if error < 0.05
        else f"the gradient of a parameter used twice is off by {100 * error:.0f}%"
    )


def repeated(subject: Subject, dtype: str) -> str:
    """Check that the same region gives the same values every time."""
    network = NETWORKS["mlp"]
    region = subject.region(Policy("O1", dtype))
    first, second = (
        run(network, subject.operations, lambda: region, device=subject.device) for _ in range(2)
    )
    return "" if np.array_equal(first.output, second.output) else "two runs of one region differ"


def steps_in_one_region(subject: Subject, dtype: str) -> str:
    """Check that training in one long region ends as with a region for each step.

    The inputs of a linear regression are columns of a Hadamard matrix, so that every step halves
    the error of the weights, but for the rounding of the prediction. An input is 1 or -1, so this
    is at most the rounding of each weight and of the sum: 2 u |w|, with |w| the sum of the weights'
    absolute values. The weights end with no larger error, and the loss is its square; twice that
    error is allowed, for the second order. With the weights of an earlier step the error grows at
    every step.
    """
    inputs = _hadamard(16)[:, :8].astype(np.float32)
    wanted = np.random.default_rng(0).uniform(0.5, 2.0, (4, 8)).astype(np.float32)
    bound = (4.0 * UNIT_ROUNDOFF[dtype] * float(np.abs(wanted).sum(1).max())) ** 2
    wrong = []
    for where, open_long in (
        ("a region around each step", False),
        ("one region around all steps", True),
    ):
        weights, seen = _regression(
            subject, Policy("O1", dtype), inputs, wanted, open_long=open_long
        )
        loss = float(np.square((weights - wanted).astype(np.float64)).sum(1).max())
        if not loss <= bound:
            wrong.append(
                f"with {where} the loss comes to {loss:.3g}, should be {bound:.3g} at most"
            )
        if seen != {dtype}:
            wrong.append(
                f"with {where} predictions are {' and '.join(sorted(seen))}, should be {dtype}"
            )
    return "; ".join(wrong)


def _regression(
    subject: Subject, policy: Policy, inputs: np.ndarray, wanted: np.ndarray, *, open_long: bool
) -> tuple[np.ndarray, set[str]]:
    """Return the weights after steps of gradient descent, and the dtypes of predictions.

    The weights change in place where the framework has parameters.
    """
    ops: Any = subject.operations  # not all have parameters
    f = Functions(ops)
    weights, x = np.zeros_like(wanted), ops.tensor(inputs, device=subject.device)
    in_place = hasattr(ops, "assign")
    parameter = ops.parameter(weights, device=subject.device) if in_place else None
    seen: set[str] = set()
    with subject.region(policy) if open_long else nullcontext():
        for _ in range(_STEPS):
            with nullcontext() if open_long else subject.region(policy):
                prediction = f.linear(
                    x, parameter if in_place else ops.tensor(weights, device=subject.device)
                )
            seen.add(ops.dtype(prediction))
            residual = ops.numpy(prediction).astype(np.float32) - inputs @ wanted.T
            weights = weights - np.float32(0.5 / len(inputs)) * (residual.T @ inputs)
            if in_place:
                ops.assign(parameter, weights)
    return weights, seen


def optimizer_in_one_region(subject: Subject, dtype: str) -> str:
    """Check that an optimizer steps in a region as it does outside of it.

    No policy is in force in a step. The arithmetic is the same, and so are the bits. At O2 a step
    that followed the policy would be low. It does not apply to an adapter that binds no optimizer
    (``Operations.adam``).
    """
    make: Any = getattr(subject.operations, "adam", None)
    if make is None:
        raise Lacking("adam")
    values = np.random.default_rng(0)
    start, *gradients = (values.normal(size=(16, 8)).astype(np.float32) for _ in range(4))
    ended = []
    for region in (nullcontext(), subject.region(Policy("O2", dtype))):
        step = make(start, device=subject.device)
        with region:
            ended.append([step(gradient) for gradient in gradients][-1])
    outside, inside = ended
    off = float(np.abs(inside.astype(np.float64) - outside).max())
    return (
        ""
        if np.array_equal(inside, outside)
        else f"steps of Adam in a region at O2 are {off:.3g} off those outside of it"
    )


def _hadamard(size: int) -> np.ndarray:
    """Return a matrix of 1 and -1 with orthogonal columns; the size is a power of two."""
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made


#: Every behaviour by its name.
BEHAVIOURS: Mapping[str, Callable[[Subject, str], str]] = {
    f.__name__: f
    for f in (
        nesting,
        exceptions,
        threads,
        cache,
        repeated,
        steps_in_one_region,
        optimizer_in_one_region,
    )
}
