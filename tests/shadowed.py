"""The promises of `unamp.trace(shadow=...)` on every framework.

Each framework's folder tests them on its own networks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

import unamp
from unamp.adapter import machine
from unamp.adapter.records import Shadow
from unamp.adapter.registry import adapter_for

Run = Callable[[AbstractContextManager[object]], Sequence[np.ndarray]]


def a_shadow_changes_nothing(run: Run, *others: str) -> unamp.Trace:
    """Check that a network has the same results and side effects with a shadow and without one.

    They are compared bit by bit.

    Args:
        run: returns values, gradients, running statistics, tensors changed in place, and random
            numbers drawn afterwards. Each run starts anew, from the same seed.
        others: further shadows to test, without statistics of values. The float16 shadow is tested
            with them, and its trace is returned.
    """
    plain = run(nullcontext())
    for dtype in (*others, "float16"):
        shadow = unamp.trace(values=dtype not in others, shadow=dtype)
        for n, (a, b) in enumerate(zip(plain, run(shadow), strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=f"{dtype}, result {n}")
        assert shadow.records
        assert all(record.shadow is not None for record in shadow.records)
        assert not [
            record
            for record in shadow.records
            if record.shadow and "raises" in record.shadow.left_out
        ]
    return shadow


def faults_lead(
    tensor: Callable[[np.ndarray], object],
    exp: Callable[[object], object],
    total: Callable[[object], object],
    network: Callable[[object], object],
    layer: str,
) -> None:
    """Check that each seeded fault comes first in the table, while the network's numbers are fine.

    Args:
        tensor: makes a tensor.
        exp, total: the exponential function, and the sum of all numbers.
        network: linear layers; the weights of `layer` are so large that float16 overflows for an
            input of ones.
        layer: the name of that layer.
    """
    scores = np.linspace(0.0, 30.0, 64, dtype=np.float32).reshape(4, 16)
    ones = tensor(np.ones((4, 8), np.float32))
    for fault, op, where in (
        (lambda: exp(tensor(scores)), "exp", None),
        (lambda: total(tensor(np.full(100_000, 0.7, np.float32))), "sum", None),
        (lambda: network(ones), "linear", layer),
    ):
        with unamp.trace(values=True, shadow="float16") as trace:
            exp(tensor(scores / 100))
            total(tensor(scores))
            if where is None:
                exp(network(tensor(np.zeros((4, 8), np.float32))))
            fault()
        worst = trace.shadow_summary()[0]
        assert (worst.op, worst.layer) == (op, where), trace.shadow_table()
        assert worst.overflow > 0
        assert not trace.nonfinite
        assert f"loses most in float16: {op}" in trace.table()
    with unamp.trace(shadow="bfloat16") as trace:
        exp(tensor(scores))
        total(tensor(np.full(100_000, 0.7, np.float32)))
    # bfloat16 has the range of float32
    assert {record.shadow.overflow for record in trace.records if record.shadow is not None} == {0}


def error_is_that_of_numpy(framework: str, exp: Callable[[object], object]) -> None:
    """Check the error of an operation against NumPy's."""
    ops = adapter_for(framework).operations()
    # XLA makes the processor flush subnormal numbers. No real processor does that in a cast to
    # float16, but the emulator does.
    flushes = framework == "jax" and "qemu" in machine.processor()
    x = np.random.default_rng(0).uniform(-14.0, 4.0, 500).astype(np.float32)
    with unamp.trace(shadow="float16") as trace:
        exp(ops.tensor(x))
    (record,) = trace.records
    exact = np.exp(x).astype(np.float64)
    low = np.exp(x.astype(np.float16).astype(np.float32)).astype(np.float16).astype(np.float64)
    found = record.shadow
    assert found is not None
    assert found.error == pytest.approx(
        np.linalg.norm(low - exact) / np.linalg.norm(exact), rel=0.05
    )
    subnormal = pytest.approx(((low < 2.0**-14) & (low > 0)).mean(), abs=0.01)
    assert (found.subnormal, found.flushed) == ((0.0, subnormal) if flushes else (subnormal, 0.0))
    assert (found.dtype, found.overflow, found.left_out) == ("float16", 0, "")


def what_runs_low_is_left_out(call: Callable[[], object]) -> None:
    """Check that low operations in a region are left out: they have no float32 result to compare.

    The record has the reason.
    """
    with unamp.trace(shadow="float16") as trace, unamp.autocast(dtype="float16"):
        call()
    assert {record.shadow for record in trace.records if record.compute == "float16"} == {
        Shadow("float16", left_out="it ran low in the network")
    }


def another_thread_has_no_shadow(call: Callable[[], object]) -> None:
    """Check that another thread's trace has no shadow, while this thread's has one."""
    found = []

    def run() -> None:
        with unamp.trace() as other:
            call()
        found.extend(other.records)

    with unamp.trace(shadow="float16") as trace:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        call()
    assert trace.records
    assert {record.shadow for record in found} == {None}
    assert None not in {record.shadow for record in trace.records}


def test_the_error_is_that_of_numpy(framework: str) -> None:
    error_is_that_of_numpy(framework, adapter_for(framework).operations()["exp"])


def test_what_runs_low_is_left_out(framework: str) -> None:
    ops = adapter_for(framework).operations()
    x = ops.tensor(np.ones((3, 3), np.float32))
    what_runs_low_is_left_out(lambda: ops["matmul"](x, x))


def test_another_thread_has_none(framework: str) -> None:
    ops = adapter_for(framework).operations()
    x = ops.tensor(np.ones(3, np.float32))
    another_thread_has_no_shadow(lambda: ops["exp"](x))


__all__ = [name for name in globals() if name.startswith("test_")]
