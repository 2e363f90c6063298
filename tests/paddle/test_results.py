"""`float32_results` on Paddle: eager and compiled both ways."""

from __future__ import annotations

import paddle
import pytest

import unamp


@pytest.mark.parametrize("full_graph", [None, False, True])
def test_float32_leaves_a_function_that_computes_low(full_graph):
    layer = paddle.nn.Linear(4, 4)

    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def predict(x):
        return {"y": layer(x)}

    call = predict if full_graph is None else paddle.jit.to_static(predict, full_graph=full_graph)
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    result = call(x)["y"]
    assert result.dtype == paddle.float32
    result.sum().backward()
    assert x.grad.dtype == paddle.float32
