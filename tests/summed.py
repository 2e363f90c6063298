"""Sums and draws from low tensors in a region of the default preset.

Each framework's folder imports the test. A sum of 20,000 ones in bfloat16 stops at 256, and a sum
of squares in float16 at 65,504. A draw that compares low numbers takes the first of those that are
equal.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unamp
from unamp.adapter.registry import adapter_for

COUNT = 20_000

#: For each operation, a call with arguments from `Values`, and its exact result, one number.
SUMS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "bincount": (lambda op, v: op(v.nowhere, v.ones), COUNT),
    "cdist": (lambda op, v: op(v.row, v.zeros_row), math.sqrt(COUNT)),
    "clip_by_norm": (lambda op, v: op(v.ones, 1.0), 1 / math.sqrt(COUNT)),
    "corrcoef": (lambda op, v: op(v.large_row), 1.0),
    "cov": (lambda op, v: op(v.large_row), 90_000 * COUNT / (COUNT - 1)),
    "cumsum": (lambda op, v: op(v.ones, dim=0), COUNT),
    "cumulative_trapezoid": (lambda op, v: op(v.row, dim=1), COUNT - 1),
    "dist": (lambda op, v: op(v.ones, v.zeros), math.sqrt(COUNT)),
    "embedding_bag": (lambda op, v: op(v.nowhere_row, v.one, mode="sum"), COUNT),
    "frobenius_norm": (lambda op, v: op(v.row, [1]), math.sqrt(COUNT)),
    "histc": (lambda op, v: op(v.ones, bins=1, min=0.0, max=2.0), COUNT),
    "index_add": (lambda op, v: op(v.zero, 0, v.nowhere, v.column), COUNT),
    "l1_norm": (lambda op, v: op(v.ones), COUNT),
    "linalg_matrix_norm": (lambda op, v: op(v.row), math.sqrt(COUNT)),
    "linalg_norm": (lambda op, v: op(v.ones, dim=0), math.sqrt(COUNT)),
    "linalg_vector_norm": (lambda op, v: op(v.ones, dim=0), math.sqrt(COUNT)),
    "logcumsumexp": (lambda op, v: op(v.zeros_row, dim=1), math.log(COUNT)),
    "logsumexp": (lambda op, v: op(v.zeros, dim=0), math.log(COUNT)),
    "nansum": (lambda op, v: op(v.ones, dim=0), COUNT),
    "norm": (lambda op, v: op(v.ones, dim=0), math.sqrt(COUNT)),
    "scatter_add": (lambda op, v: op(v.zeros_row, 1, v.nowhere_row, v.row), COUNT),
    "scatter_nd": (lambda op, v: op(v.nowhere_column, v.column, [1, 1]), COUNT),
    "scatter_nd_add": (lambda op, v: op(v.zero, v.nowhere_column, v.column), COUNT),
    "scatter_reduce": (lambda op, v: op(v.zeros_row, 1, v.nowhere_row, v.row, "sum"), COUNT),
    "segment_pool": (lambda op, v: op(v.column, v.whole), COUNT),
    "send_u_recv": (lambda op, v: op(v.column, v.everywhere, v.nowhere), COUNT),
    # some frameworks return half of the sum: the quotient is the same
    "squared_l2_norm": (lambda op, v: op(v.ones) / op(v.one), COUNT),
    "std": (lambda op, v: op(v.large_row, dim=1, correction=0), 300),
    "std_mean": (lambda op, v: op(v.large_row, dim=1, correction=0)[0], 300),
    "sum": (lambda op, v: op(v.ones, dim=0), COUNT),
    "trace": (lambda op, v: op(v.large_diagonal), 90_000),
    "trapezoid": (lambda op, v: op(v.row, dim=1), COUNT - 1),
    "unsorted_segment_sum": (lambda op, v: op(v.column, v.nowhere, 1), COUNT),
    "var": (lambda op, v: op(v.large_row, dim=1, correction=0), 90_000),
    "var_mean": (lambda op, v: op(v.large_row, dim=1, correction=0)[0], 90_000),
}

#: The other reductions: they add nothing up, or their result is no larger than their input.
OTHERS = frozenset(
    (
        "amax amin aminmax count_nonzero cummax cummin cumprod fast_unsorted_segment_max max mean "
        "median min mode nanmean nanmedian nanquantile nuclear_norm pdist prod quantile"
    ).split()
)

#: Draws of one number out of a thousand equally likely ones, in each framework.
CATEGORICAL: dict[str, Callable[[Any, Any], Any]] = {
    "torch": lambda torch, v: torch.multinomial(v.equal, COUNT, replacement=True),
    "paddle": lambda paddle, v: paddle.multinomial(v.equal, COUNT, replacement=True),
    "mindspore": lambda mindspore, v: mindspore.ops.multinomial(v.equal, COUNT, replacement=True),
    "tensorflow": lambda tf, v: tf.random.categorical(v.equal[None], COUNT),
    "jax": lambda jax, v: jax.random.categorical(jax.random.key(0), v.equal, shape=(COUNT,)),
}
#: The mean of these draws, and five standard deviations of the mean.
MIDDLE, FAR = 499.5, 5 * math.sqrt(1000**2 / 12 / COUNT)

#: Draws of zeros and ones with one in a thousand, in each framework that has them.
SELDOM: dict[str, Callable[[Any, Any], Any]] = {
    "torch": lambda torch, v: torch.bernoulli(v.seldom),
    "paddle": lambda paddle, v: paddle.bernoulli(v.seldom),
    "mindspore": lambda mindspore, v: mindspore.ops.bernoulli(v.ones, v.seldom),
    "jax": lambda jax, v: jax.random.bernoulli(jax.random.key(0), v.seldom),
}
RARITY, FAR_FROM_IT = 0.001, 5 * math.sqrt(0.001 / COUNT)

#: The sums whose call has no kernel on a CPU in a framework, in a region or not.
WITHOUT_KERNEL = {"mindspore": frozenset({"linalg_norm", "scatter_add"})}


class Values:
    """The arguments of the calls: low tensors and indices of one framework."""

    def __init__(self, ops: Any) -> None:
        def low(array: Any, dtype: str = "bfloat16") -> Any:
            return ops["cast"](ops.tensor(np.asarray(array, np.float32)), dtype)

        def index(array: Any) -> Any:
            return ops.tensor(np.asarray(array, np.int64))

        ones, nowhere = np.ones(COUNT), np.zeros(COUNT)
        self.ones, self.row, self.column = low(ones), low(ones[None]), low(ones[:, None])
        self.zeros, self.zeros_row = low(nowhere), low(nowhere[None])
        self.one, self.zero = low([[1.0]]), low([[0.0]])
        self.nowhere, self.nowhere_row, self.nowhere_column = (
            index(nowhere),
            index(nowhere[None]),
            index(nowhere[:, None]),
        )
        self.everywhere, self.whole = index(np.arange(COUNT)), index([COUNT])
        self.large_row = low(np.where(np.arange(COUNT) % 2, 300, -300)[None], "float16")
        self.large_diagonal = low(np.diag(np.full(300, 300)), "float16")
        self.seldom, self.equal = low(ones * 0.001), low(np.full(1000, 0.001))


def measure(framework: str) -> dict[str, Any]:
    """Return the result of every sum that a framework has, with its dtype, by operation.

    The means of draws are also there.
    """
    module = importlib.import_module(framework)
    ops = adapter_for(framework).operations()
    values = Values(ops)
    region = unamp.autocast("cpu", "bfloat16", framework=framework)
    sums = {}
    for op in SUMS.keys() & ops.names() - WITHOUT_KERNEL.get(framework, frozenset()):
        with region:
            result = SUMS[op][0](ops[op], values)
        sums[op] = float(np.max(ops.numpy(result))), ops.dtype(result)
    draws = {}
    for name, table in {"categorical": CATEGORICAL, "seldom": SELDOM}.items():
        if framework in table:
            with region:
                result = table[framework](module, values)
            draws[name] = float(np.mean(np.asarray(ops.numpy(result), np.float64)))
    return {"sums": sums, "draws": draws}


def test_sums_do_not_saturate_and_draws_are_not_biased(framework: str) -> None:
    found = measure(framework)
    assert len(found["sums"]) >= 15
    for op, (value, dtype) in found["sums"].items():
        assert (op, value) == (op, pytest.approx(SUMS[op][1], rel=1e-3))
        assert dtype not in ("float16", "bfloat16"), op
    assert found["draws"]["categorical"] == pytest.approx(MIDDLE, abs=FAR)
    if framework in SELDOM:
        assert found["draws"]["seldom"] == pytest.approx(RARITY, abs=FAR_FROM_IT)
