"""docs/examples/library.py, which knows no framework, keeps its promises on Paddle."""

from __future__ import annotations

import agnostic
import paddle
from agnostic import test_the_library_keeps  # noqa: F401

FRAMEWORK = agnostic.Framework(
    tensor=paddle.to_tensor,
    parameter=lambda array: paddle.create_parameter(
        array.shape, "float32", default_initializer=paddle.nn.initializer.Assign(array)
    ),
    sgd=lambda parameters, rate: paddle.optimizer.SGD(rate, parameters),
    numpy=lambda tensor: tensor.astype("float64").numpy(),
)
