"""docs/examples/library.py, which knows no framework, keeps its promises on PyTorch."""

from __future__ import annotations

import agnostic
import library
import numpy as np
import pytest
import torch
from agnostic import test_the_library_keeps  # noqa: F401

import unamp
from unamp.testing import assert_computed

pytestmark = pytest.mark.beside_kernels

FRAMEWORK = agnostic.Framework(
    tensor=lambda array: (
        torch.tensor(array).long() if array.dtype == np.int32 else torch.tensor(array)
    ),
    parameter=lambda array: torch.nn.Parameter(torch.tensor(array)),
    sgd=lambda parameters, rate: torch.optim.SGD(parameters, rate),
    numpy=lambda tensor: tensor.detach().double().numpy(),
)


@pytest.mark.parametrize("dtype", agnostic.LOW)
def test_torchs_own_autocast_goes_before(dtype: str) -> None:
    x = torch.ones(2, 5, 8)
    with torch.autocast("cpu", getattr(torch, dtype)):
        assert library.attention(x, x, x).dtype == getattr(torch, dtype)
        with torch.autocast("cpu", enabled=False):
            assert library.attention(x, x, x).dtype == torch.bfloat16  # nothing is in force there
        with unamp.trace() as trace:
            library.rms_norm(x, x[0, 0])
    assert_computed(trace, mul="float32", pow="float32")


def test_numpy_is_no_framework() -> None:
    with pytest.raises(TypeError, match="expected a tensor of torch, paddle, .*; got ndarray"):
        library.attention(*[np.ones((2, 2))] * 3)
