"""Regions around operations in eager mode, on every framework.

Each framework's folder imports the tests. `unamp conformance` checks that each operation follows
each rule: these are cases that it does not have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unamp
from unamp import Policy, policy_region
from unamp.adapter import Operations
from unamp.adapter.registry import adapter_for
from unamp.dtypes import LOW_DTYPES
from unamp.regions import Region

X = np.random.default_rng(0).integers(-8, 8, (4, 16)).astype(np.float32) * (1 + 2.0**-6)
each_low = pytest.mark.parametrize("low", LOW_DTYPES)


def under(level: str = "O1", low: object = "float16", **rest: Any) -> Region:
    """Return a region with a policy of its own."""
    return policy_region(Policy(level, low, **rest))  # type: ignore[arg-type]


@pytest.fixture
def operations(framework: str) -> Operations:
    return adapter_for(framework).operations()


@each_low
def test_products_add_up_in_float32(operations: Operations, low: str) -> None:
    """Check that a product adds up in float32: only the inputs and the result are rounded.

    A low sum of ones would stop to count before three thousand.
    """
    ones = np.full((1, 3001), 1 + 2.0**-12, np.float32)
    with policy_region(Policy("O1", low)):
        result = operations["matmul"](operations.tensor(ones), operations.tensor(ones.T.copy()))
    assert operations.dtype(result) == low
    assert operations.numpy(result).item() == (3000.0 if low == "float16" else 3008.0)


@each_low
def test_the_narrowest_of_inputs(operations: Operations, low: str) -> None:
    """Check that a low input makes the others low; of two low dtypes, neither is narrower."""
    (other,) = set(LOW_DTYPES) - {low}
    with policy_region(Policy("O1", low, preset="tensorflow")):
        x = operations.tensor(X)
        h = operations["cast"](x, dtype=low)
        results = [
            operations["add"](h, x),
            operations["sub"](x, h),
            operations["add"](x, x),
            operations["add"](h, operations["cast"](x, dtype=other)),
        ]
    assert [operations.dtype(result) for result in results] == [low, low, "float32", "float32"]


@each_low
def test_other_dtypes_are_never_cast(operations: Operations, low: str) -> None:
    with policy_region(Policy("O3", low)):
        double = operations.tensor(X.astype(np.float64))
        whole = operations.tensor(np.arange(4, dtype=np.int32))
        results = [operations["mul"](double, double), operations["add"](whole, whole)]
    assert [operations.dtype(result) for result in results] == [
        operations.dtype(double),
        operations.dtype(whole),
    ]


@each_low
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_results_are_widened(operations: Operations, level: str, low: str) -> None:
    x, y = operations.tensor(X), operations.tensor(X.T.copy())
    with policy_region(Policy(level, low)):
        narrow = operations["matmul"](x, y)
    with policy_region(Policy(level, low, widen_results=True)):
        result = operations["matmul"](x, y)
    assert (operations.dtype(narrow), operations.dtype(result)) == (low, "float32")
    np.testing.assert_array_equal(operations.numpy(result), operations.numpy(narrow))


@each_low
def test_a_region_that_is_off_computes_with_the_low_tensors_of_the_one_around_it(
    operations: Operations, low: str
) -> None:
    x, y = operations.tensor(X), operations.tensor(X.T.copy())
    with policy_region(Policy("O1", low)):
        h = operations["matmul"](x, y)
        with unamp.autocast(enabled=False):
            results = [operations["matmul"](x, y), operations["add"](h, h)]
    assert [operations.dtype(result) for result in results] == ["float32", low]


__all__ = ["operations", *(name for name in globals() if name.startswith("test_"))]
