"""docs/examples/library.py, which knows no framework, keeps its promises on MindSpore."""

from __future__ import annotations

import agnostic
import mindspore
import numpy as np
from agnostic import test_the_library_keeps  # noqa: F401

FRAMEWORK = agnostic.Framework(
    tensor=mindspore.Tensor,
    parameter=lambda array: mindspore.Parameter(mindspore.Tensor(array)),
    sgd=lambda parameters, rate: mindspore.nn.SGD(parameters, rate),
    numpy=lambda tensor: tensor.astype(mindspore.float32).asnumpy().astype(np.float64),
)
