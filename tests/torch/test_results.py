"""`float32_results` on PyTorch: eager and compiled."""

from __future__ import annotations

import functools

import pytest
import torch

import unamp

pytestmark = pytest.mark.beside_kernels


@pytest.mark.parametrize("compiled", [lambda f: f, functools.partial(torch.compile, backend="aot_eager", fullgraph=True)])
def test_float32_leaves_a_function_that_computes_low(compiled):
    layer = torch.nn.Linear(4, 4)

    @unamp.float32_results
    @unamp.autocast("cpu", dtype="bfloat16")
    def predict(x):
        return {"y": layer(x)}

    x = torch.ones(2, 4, requires_grad=True)
    result = compiled(predict)(x)["y"]
    assert result.dtype == torch.float32
    result.sum().backward()
    assert x.grad.dtype == torch.float32
