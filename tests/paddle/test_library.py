"""docs/examples/library.py, which knows no framework, on PaddlePaddle's tensors."""

from __future__ import annotations

import agnostic
import paddle
import pytest

FRAMEWORK = agnostic.Framework(
    tensor=paddle.to_tensor,
    parameter=lambda array: paddle.create_parameter(
        array.shape, "float32", default_initializer=paddle.nn.initializer.Assign(array)
    ),
    sgd=lambda parameters, rate: paddle.optimizer.SGD(rate, parameters),
    numpy=lambda tensor: tensor.astype("float64").numpy(),
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
