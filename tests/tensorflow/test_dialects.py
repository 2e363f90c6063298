"""The dialects on TensorFlow answer as the frameworks' own modules do.

Keras' dialect runs beside Keras' own; the other frameworks' examples run on TensorFlow's tensors.
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from elsewhere import python
from spoken import (
    error_of,
    mindspores_example,
    paddles_example,
    paddles_scaler_says_what_to_use,
    test_mindspores_scalers_on_gradients_that_are_values,  # noqa: F401
    torchs_example,
)

import unamp
from unamp.dialects.keras import mixed_precision
from unamp.dialects.mindspore import amp as mindspore_amp
from unamp.dialects.paddle import amp as paddle_amp
from unamp.dialects.torch import amp as torch_amp
from unamp.dialects.torch import cpu

F32, F16, BF16 = tf.float32, tf.float16, tf.bfloat16


# --- keras.mixed_precision, which is Keras' own here ----------------------------------------------


@pytest.fixture
def usual_policy():
    """Restore Keras' global policy after each test."""
    before = keras.config.dtype_policy()
    yield before
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16", "float64"])
def test_the_global_policy_is_keras(usual_policy, name):
    assert mixed_precision.global_policy() is usual_policy
    mixed_precision.set_global_policy(name)
    assert mixed_precision.dtype_policy() is keras.config.dtype_policy()
    assert keras.config.dtype_policy().name == name
    assert (
        keras.layers.Dense(2).dtype_policy
        == mixed_precision.DTypePolicy(name)
        == mixed_precision.Policy()
    )
    assert (
        keras.layers.Dense(2)(tf.ones([1, 3])).dtype
        == mixed_precision.DTypePolicy(name).compute_dtype
    )


def test_policies_are_keras_own():
    policy = mixed_precision.DTypePolicy("mixed_float16")
    assert type(policy) is keras.DTypePolicy
    assert isinstance(policy, mixed_precision.DTypePolicy)
    assert not isinstance("mixed_float16", mixed_precision.DTypePolicy)
    assert keras.layers.Dense(2, dtype=policy).compute_dtype == "float16"
    for wrong in (3, "mixed_int4"):
        for name in ("DTypePolicy", "set_dtype_policy", "set_global_policy"):
            ours, own = getattr(mixed_precision, name), getattr(keras.mixed_precision, name)
            raised = error_of(lambda own=own, wrong=wrong: own(wrong))
            assert raised is not None
            assert error_of(lambda ours=ours, wrong=wrong: ours(wrong)) is raised


def test_the_optimizer_is_keras_own_and_fits():
    optimizer = mixed_precision.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), 64.0, dynamic_growth_steps=2
    )
    assert type(optimizer) is keras.optimizers.LossScaleOptimizer
    assert isinstance(optimizer, mixed_precision.LossScaleOptimizer)
    model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    x = np.random.rand(32, 8).astype("float32")
    with unamp.autocast(dtype="float16"):
        losses = model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=3, verbose=0).history[
            "loss"
        ]
    assert losses[-1] < losses[0]
    assert float(optimizer.dynamic_scale) == 64.0 * 2**6
    made = mixed_precision.LossScaleOptimizer.from_config(optimizer.get_config())
    assert type(made) is keras.optimizers.LossScaleOptimizer
    assert made.get_config() == optimizer.get_config()
    # Other scalers load the state that Keras saves.
    scaler = unamp.GradScaler()
    names = ("dynamic_scale", "step_counter")
    state = {name: getattr(optimizer, name).numpy() for name in names}
    scaler.load_state_dict(state | {"dynamic_growth_steps": optimizer.dynamic_growth_steps})
    assert scaler.get_scale() == 4096.0
    for wrong in ({"dynamic": False}, {"clipnorm": 1.0}, {"nesterov": True}):
        for module in (mixed_precision, keras.mixed_precision):
            assert (
                error_of(
                    lambda m=module, w=wrong: m.LossScaleOptimizer(keras.optimizers.SGD(), **w)
                )
                is ValueError
            )


# --- the other frameworks' examples ---------------------------------------------------------------


def test_paddles_examples():
    conv2d, data = keras.layers.Conv2D(2, 3, use_bias=False), tf.random.uniform([10, 32, 32, 3])
    paddles_example(
        "tensorflow", conv2d, data, tf.random.uniform([2, 3]), tf.random.uniform([2, 3])
    )
    paddles_scaler_says_what_to_use(tf.constant(1.0), keras.optimizers.SGD())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_paddles_decorate(dtype):
    layers = keras.layers
    model = keras.Sequential(
        [layers.Dense(8), layers.LayerNormalization(), layers.BatchNormalization(), layers.Dense(1)]
    )
    model.build((None, 4))
    optimizer = keras.optimizers.Adam(0.05)
    assert paddle_amp.decorate(model, optimizer, level="O2", dtype=dtype) == (model, optimizer)
    norm = "float32" if dtype == "float16" else "bfloat16"  # as in Paddle
    assert [v.dtype for v in model.trainable_variables] == [
        dtype,
        dtype,
        norm,
        norm,
        "float32",
        "float32",
        dtype,
        dtype,
    ]
    x, y = tf.random.normal([16, 4]), tf.random.normal([16, 1])
    manager = mindspore_amp.DynamicLossScaleManager(1024)
    loss_fn = keras.losses.MeanSquaredError()
    train = mindspore_amp.build_train_network(
        model, optimizer, loss_fn, "O2", loss_scale_manager=manager
    )
    losses = [float(train(x, y)[0]) for _ in range(15)]
    assert losses[-1] < losses[0] * 0.8


def test_torchs_examples():
    torchs_example("tensorflow", lambda a, b: a @ b, *(tf.random.uniform([8, 8]) for _ in range(4)))
    with cpu.amp.autocast():
        assert (
            keras.layers.Conv2D(128, 3, strides=2, use_bias=False)(
                tf.random.uniform([2, 14, 14, 64])
            ).dtype
            == BF16
        )
    w, optimizer, scaler = (
        tf.Variable([1.0] * 3),
        keras.optimizers.SGD(0.5),
        torch_amp.GradScaler("cpu", 8.0),
    )
    with tf.GradientTape() as tape:
        loss = scaler.scale(tf.reduce_sum(w * 2))
    optimizer.build([w])
    scaler.step(optimizer, gradients=tape.gradient(loss, [w]))
    scaler.update()
    assert w.numpy().tolist() == [0.0] * 3


def test_regions_in_a_tf_function():
    def by_torch(x):
        with torch_amp.autocast("cpu", dtype="float16"):
            return x @ x

    def by_paddle(x):
        with paddle_amp.auto_cast(dtype="bfloat16"):
            return x @ x

    x = tf.random.uniform([4, 4])
    for function, dtype in (
        (by_torch, F16),
        (by_paddle, BF16),
        (torch_amp.autocast("cpu")(lambda x: x @ x), BF16),
    ):
        assert tf.function(function)(x).dtype == function(x).dtype == dtype


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_mindspores_example(level):
    network = keras.Sequential([keras.layers.Dense(8), keras.layers.ReLU(), keras.layers.Softmax()])
    network.build((None, 8))
    mindspores_example(
        "tensorflow", network, tf.random.uniform([2, 8]), level, "float16", {"relu", "linear"}
    )


def test_mindspores_train_network():
    def made():
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential(
            [layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dense(1)]
        )
        return model, keras.optimizers.SGD(0.05)

    x, y = tf.random.normal([16, 4]), tf.round(tf.random.uniform([16, 1]))
    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)  # takes the label first
    model, optimizer = made()
    plain = mindspore_amp.build_train_network(model, optimizer, loss_fn)
    own, own_optimizer = made()
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, own(x, training=True))
        own_optimizer.apply(tape.gradient(loss, own.trainable_variables), own.trainable_variables)
        assert float(plain(x, y)) == pytest.approx(float(loss), rel=1e-5)
    for a, b in zip(model.variables, own.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    manager = mindspore_amp.DynamicLossScaleManager(1024, 2, 1)
    train = mindspore_amp.build_train_network(
        model, optimizer, loss_fn, "O2", loss_scale_manager=manager
    )
    assert train(x, y)[1:] == (False, 1024.0)
    before = [v.numpy() for v in model.trainable_variables]
    assert train(x * math.inf, y)[1:] == (True, 2048.0)
    assert all(
        np.array_equal(a, b.numpy()) for a, b in zip(before, model.trainable_variables, strict=True)
    )


def test_a_policy_that_was_made_before_keras_was_imported():
    program = """
import sys
from unamp.dialects.keras import mixed_precision
policy = mixed_precision.DTypePolicy("mixed_bfloat16")
assert "keras" not in sys.modules
import keras
mixed_precision.set_global_policy(policy)
assert keras.config.dtype_policy().name == "mixed_bfloat16"
assert type(keras.config.dtype_policy()) is keras.DTypePolicy
"""
    python("-c", program)
