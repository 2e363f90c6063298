"""docs/examples/library.py, which knows no framework, on PyTorch's tensors."""

from __future__ import annotations

import agnostic
import library
import numpy as np
import pytest
import torch

import unamp
from unamp.testing import assert_computed

FRAMEWORK = agnostic.Framework(
    tensor=lambda array: torch.tensor(array).long() if array.dtype == np.int32 else torch.tensor(array),
    parameter=lambda array: torch.nn.Parameter(torch.tensor(array)),
    sgd=lambda parameters, rate: torch.optim.SGD(parameters, rate),
    numpy=lambda tensor: tensor.detach().double().numpy(),
)


def test_the_default_is_in_force_where_nothing_is() -> None:
    agnostic.default_is_in_force_where_nothing_is(FRAMEWORK)


def test_denied_softmax() -> None:
    agnostic.denied_softmax_is_what_the_policy_says(FRAMEWORK)


def test_regions_of_the_caller_go_before() -> None:
    agnostic.regions_of_the_caller_go_before(FRAMEWORK)


@pytest.mark.parametrize("dtype", agnostic.LOW)
def test_numbers_agree_with_numpy(dtype: str) -> None:
    agnostic.numbers_agree_with_numpy(FRAMEWORK, dtype)


def test_training_lowers_the_loss() -> None:
    agnostic.training_steps_lower_the_loss(FRAMEWORK)


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
