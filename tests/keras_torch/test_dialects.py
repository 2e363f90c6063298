"""The dialect's loss scaling with PyTorch's optimizers agrees with Keras' own."""

import math

import keras
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unamp.dialects.keras.mixed_precision import LossScaleOptimizer


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=10), st.integers(1, 3))
def test_after_any_sequence_it_is_where_keras_own_is(overflows, growth):
    variable = keras.Variable([1.0, 1.0])
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.125), 1024.0, growth)
    own.build([variable])
    w = torch.nn.Parameter(torch.ones(2))
    ours = LossScaleOptimizer(torch.optim.SGD([w], 0.125), 1024.0, growth)
    for overflow in overflows:
        factor = math.inf if overflow else 0.25
        own.apply([own.scale_loss(torch.full((2,), factor))], [variable])
        w.grad = None
        ours.scale_loss((w * factor).sum()).backward()
        ours.apply([w.grad], [w])
        assert (ours.dynamic_scale, ours.step_counter) == (
            float(own.dynamic_scale),
            int(own.step_counter),
        )
        assert w.tolist() == variable.value.tolist()
    assert ours.scaler.skipped == sum(overflows)


def test_around_keras_optimizers_it_is_keras_own():
    inner = keras.optimizers.SGD(0.1)
    assert type(LossScaleOptimizer(inner)) is keras.optimizers.LossScaleOptimizer


def test_from_config():
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.125)
    optimizer = LossScaleOptimizer(inner, 1024.0, 3, name="scaled")
    config = optimizer.get_config()
    with pytest.raises(
        ValueError,
        match=r"has no 'inner_optimizer'.*from_config\(\{\*\*config, 'inner_optimizer': optimizer",
    ):
        LossScaleOptimizer.from_config(config)
    made = LossScaleOptimizer.from_config({**config, "inner_optimizer": inner})
    assert (type(made), made.inner_optimizer, made.get_config()) == (
        LossScaleOptimizer,
        inner,
        config,
    )
    own = LossScaleOptimizer(keras.optimizers.SGD(0.25), 1024.0, 3)
    assert (
        LossScaleOptimizer.from_config(own.get_config()).inner_optimizer.get_config()
        == own.inner_optimizer.get_config()
    )
    given = {**config, "inner_optimizer": own.inner_optimizer}
    assert type(LossScaleOptimizer.from_config(given)) is keras.optimizers.LossScaleOptimizer
