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
