"""`float32_results` on MindSpore: followed in PyNative mode, refused by name in a graph."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest

import unamp


@pytest.fixture
def predict():
    layer = mindspore.nn.Dense(4, 4)

    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def predict(x):
        return layer(x)

    return predict


def test_float32_leaves_a_function_that_computes_low(predict):
    x = mindspore.Tensor(np.ones((2, 4), "float32"))
    assert predict(x).dtype == mindspore.float32
    assert mindspore.grad(lambda x: predict(x).sum())(x).dtype == mindspore.float32


def test_a_graph_refuses_it_by_name(predict):
    x = mindspore.Tensor(np.ones((2, 4), "float32"))
    with pytest.raises(unamp.NotExpressible, match="float32_results"):
        mindspore.jit(predict)(x)
