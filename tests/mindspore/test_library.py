"""docs/examples/library.py, which knows no framework, on MindSpore's tensors."""

from __future__ import annotations

import agnostic
import mindspore
import numpy as np
import pytest

FRAMEWORK = agnostic.Framework(
    tensor=mindspore.Tensor,
    parameter=lambda array: mindspore.Parameter(mindspore.Tensor(array)),
    sgd=lambda parameters, rate: mindspore.nn.SGD(parameters, rate),
    numpy=lambda tensor: tensor.astype(mindspore.float32).asnumpy().astype(np.float64),
)


@pytest.mark.parametrize("promise", agnostic.PROMISES)
def test_the_library_keeps(promise: str) -> None:
    agnostic.PROMISES[promise](FRAMEWORK)
