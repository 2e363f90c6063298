"""`float32_results` on MindSpore works in PyNative mode, and is refused in a graph."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from narrowed import test_float32_leaves_a_function_that_computes_low  # noqa: F401

import unamp

WAYS = [lambda f: f]


def test_a_graph_refuses_it_by_name():
    layer, x = mindspore.nn.Dense(4, 4), mindspore.Tensor(np.ones((2, 4), "float32"))

    @mindspore.jit
    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def predict(x):
        return layer(x)

    with pytest.raises(unamp.NotExpressible, match="float32_results"):
        predict(x)
