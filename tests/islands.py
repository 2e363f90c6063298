"""The promises of a policy whose dtype is float32 (an island), on every framework.

Each framework's folder tests them. The numbers are small integers and fractions. float32 holds
their products and sums exactly, in any order; bfloat16 and float16 do not. So an island computes
the exact result, bit by bit, and low arithmetic does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unamp
from unamp.adapter import Operations
from unamp.adapter.registry import adapter_for

LEVELS = ("OD", "O1", "O2", "O3")
LOW = ("bfloat16", "float16")

#: 1 + 2^-12 is in float32 and in no low dtype. So is a sum of eight of them, times a power
#: of two.
WIDE = np.full((8, 8), 1 + 2.0**-12, np.float32)
X = np.arange(32, dtype=np.float32).reshape(4, 8) / 4
PRODUCT = X @ WIDE


def operations(framework: str) -> Operations:
    return adapter_for(framework).operations()


def an_island_widens(framework: str, level: str, low: str) -> None:
    """Check an island in a low region: it computes in float32 from low inputs.

    The region goes on after it.
    """
    ops = operations(framework)
    x, w = ops["cast"](ops.tensor(X), dtype=low), ops.tensor(WIDE)
    with unamp.autocast(dtype=low):
        before = ops["matmul"](x, w)
        with unamp.autocast(dtype="float32", level=level):
            assert unamp.is_autocast_enabled()
            assert unamp.get_autocast_dtype() == "float32"
            product, total = ops["matmul"](x, w), ops["add"](x, x)
            softmax = ops["softmax"](x, dim=-1)
        after = ops["matmul"](x, w)
    assert (ops.dtype(before), ops.dtype(after)) == (low, low)
    assert ops.dtype(product) == ops.dtype(softmax) == "float32"
    np.testing.assert_array_equal(ops.numpy(product), PRODUCT)
    # At O1 an operation on no list runs in the widest dtype of its inputs;
    # from O2 on, every operation runs in the policy's dtype, float32.
    assert ops.dtype(total) == (low if level == "O1" else "float32")
    np.testing.assert_array_equal(ops.numpy(total), X + X)


def an_outermost_island(framework: str, level: str) -> None:
    """Check an island alone, as a decorator: gradients are exact, in the dtypes of the inputs."""
    ops = operations(framework)

    @unamp.autocast(dtype="float32", level=level)
    def product(x: Any, w: Any) -> Any:
        return ops["sum"](ops["matmul"](x, w))

    x, w = ops.tensor(X, requires_grad=True), ops.tensor(WIDE, requires_grad=True)
    value, (dx, dw) = ops.value_and_grad(product, [x, w])
    assert ops.dtype(value) == ops.dtype(dx) == ops.dtype(dw) == "float32"
    np.testing.assert_array_equal(ops.numpy(dx), np.ones((4, 8), np.float32) @ WIDE.T)
    np.testing.assert_array_equal(ops.numpy(dw), X.T @ np.ones((4, 8), np.float32))


def a_trace_tells_of_it(framework: str) -> None:
    ops = operations(framework)
    x, w = ops["cast"](ops.tensor(X), dtype="bfloat16"), ops.tensor(WIDE)
    with unamp.trace() as trace, unamp.autocast(dtype="float32"):
        ops["matmul"](x, w)
    (record,) = [record for record in trace.records if record.op == "matmul"]
    assert (record.compute, record.output, record.emulated) == ("float32", "float32", False)
    assert record.inputs == ("bfloat16", "float32")


def every_way_widens(framework: str, name: str) -> None:
    """Check that every way of a framework computes the same in an island as eager mode."""
    ops = operations(framework)
    (way,) = [way for way in ops.ways() if way.name == name]  # type: ignore[attr-defined]
    policy = unamp.Policy("O1", "float32")

    def region() -> Any:
        return unamp.policy_region(policy, framework=framework)

    matmul = ops["matmul"]

    def island(x, w):  # type: ignore[no-untyped-def]
        return matmul(x, w)

    x, w = ops["cast"](ops.tensor(X), dtype="bfloat16"), ops.tensor(WIDE)
    if way.run is None or way.absent or way.impossible("island") or way.refusal(policy):
        assert way.value_and_grad or way.absent or way.impossible("island") or way.refusal(policy)
        return
    result = way.run(island, region, (x, w))
    assert ops.dtype(result) == "float32"
    np.testing.assert_array_equal(ops.numpy(result), PRODUCT)


def names_of_ways(framework: str) -> list[str]:
    return [way.name for way in operations(framework).ways()]  # type: ignore[attr-defined]


def promises(framework: str) -> Any:
    """Return all promises as parameters of a test: functions without arguments."""
    asked: dict[str, Any] = {
        f"{low} {level}": (an_island_widens, level, low) for level in LEVELS for low in LOW
    }
    asked |= {f"alone {level}": (an_outermost_island, level) for level in LEVELS}
    asked |= {"trace": (a_trace_tells_of_it,)}
    asked |= {f"way {name}": (every_way_widens, name) for name in names_of_ways(framework)}
    return [
        pytest.param(lambda ask=ask, rest=rest: ask(framework, *rest), id=name)
        for name, (ask, *rest) in asked.items()
    ]


def test_promises(promise: Callable[[], None]) -> None:
    promise()


test_promises.promises = promises  # type: ignore[attr-defined]  # see `pytest_generate_tests` in conftest.py
