"""The numbers that judge rules for layers mean the same on every processor."""

import ml_dtypes
import numpy as np
import pytest
from unamp_conformance.check import layerchecks

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

INPUT, WEIGHTS = layerchecks._INPUT, layerchecks._WEIGHTS


def added_up(x, weight, dtype, order):
    """Return the product of x and a weight, with the terms added in a given order.

    Every product and partial sum is rounded to a dtype.
    """
    total = np.zeros((len(x), len(weight)), dtype)
    for number in order:
        total = (total + (x[:, number, None] * weight[:, number]).astype(dtype)).astype(dtype)
    return total.astype(np.float64)


def low(values, dtype):
    return values.astype(DTYPES[dtype]).astype(np.float32)


@pytest.mark.parametrize("weight", WEIGHTS, ids=["first", "second"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_low_dtype_comes_to_the_same_numbers_however_a_kernel_adds_up(weight, dtype):
    x, w = low(INPUT, dtype), low(weight, dtype)
    exact = x.astype(np.float64) @ w.T
    for seed in range(16):
        order = np.random.default_rng(seed).permutation(8)
        assert np.array_equal(added_up(x, w, DTYPES[dtype], order), exact)


@pytest.mark.parametrize("weight", WEIGHTS, ids=["first", "second"])
def test_float32_comes_to_the_exact_numbers_however_a_kernel_adds_up(weight):
    exact = INPUT.astype(np.float64) @ weight.T.astype(np.float64)
    for seed in range(16):
        order = np.random.default_rng(seed).permutation(8)
        assert np.array_equal(added_up(INPUT, weight, np.float32, order), exact)


@pytest.mark.parametrize("weight", WEIGHTS, ids=["first", "second"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_rounding_to_a_low_dtype_is_seen(weight, dtype):
    exact = INPUT.astype(np.float64) @ weight.T.astype(np.float64)
    both_low = low(INPUT, dtype).astype(np.float64) @ low(weight, dtype).T.astype(np.float64)
    for x, w in ((low(INPUT, dtype), weight), (INPUT, low(weight, dtype))):
        one_low = x.astype(np.float64) @ w.T.astype(np.float64)
        assert not np.array_equal(one_low, exact)
        assert not np.array_equal(one_low, both_low)
        assert not np.array_equal(low(one_low, dtype), low(exact, dtype))
    assert not np.array_equal(low(exact, dtype), exact)
    assert not np.array_equal(low(exact, dtype), both_low)
