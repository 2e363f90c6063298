"""State that Keras keeps, on every backend: in a region it is float32.

State that the program computes is the same as outside of a region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from unamp import Policy, policy_region

POLICIES = [Policy("O2", "float16"), Policy("O2", "bfloat16"), Policy("O3", "float16")]


def numbers(value: Any) -> np.ndarray[Any, Any]:
    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    return np.asarray(keras.ops.convert_to_numpy(value))


def counted() -> Any:
    total = keras.Variable(np.full(2, 256, "float32"))  # what bfloat16 counts to, one by one
    for _ in range(44):
        total.assign_add(keras.ops.ones(2))
        total.assign_sub(keras.ops.full((2,), 1e-3))
    return total


def squared_error() -> Any:
    metric = keras.metrics.RootMeanSquaredError()
    metric.update_state(keras.ops.full((4, 3), 600.0), keras.ops.zeros((4, 3)))
    return metric.result()


def wrapped_error() -> Any:
    metric = keras.metrics.MeanMetricWrapper(
        lambda wanted, found: keras.ops.sum(keras.ops.square(wanted - found), -1)
    )
    metric.update_state(keras.ops.full((4, 3), 600.0), keras.ops.zeros((4, 3)))
    return metric.result()


def precision_at_recall() -> Any:
    metric = keras.metrics.PrecisionAtRecall(0.5)
    metric.update_state(keras.ops.ones(3), keras.ops.convert_to_tensor([0.1, 0.6, 0.7]))
    metric.update_state(keras.ops.zeros(3), keras.ops.convert_to_tensor([0.8, 0.6, 0.7]))
    return metric.result()


def learning_rate() -> Any:
    return keras.optimizers.schedules.CosineDecayRestarts(0.1, 1000)(70_001)


def learning_rate_of_an_optimizer() -> Any:
    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return 0.1 * keras.ops.cast(step, "float32") / 140_002.0

    optimizer = keras.optimizers.SGD(Halved())
    optimizer.build([keras.Variable(np.zeros(2, "float32"))])
    optimizer.iterations.assign(70_001)
    return optimizer.learning_rate


def orthogonal() -> Any:
    return keras.initializers.Orthogonal(seed=1)((4, 4))


def identity() -> Any:
    return keras.initializers.Identity(gain=1.001)((3, 3))


def variance_of_data() -> Any:
    layer = keras.layers.Normalization()
    layer.adapt(
        keras.ops.convert_to_tensor(np.linspace(-1000, 1000, 64, dtype="float32").reshape(16, 4))
    )
    return layer.variance


def regularized() -> Any:
    return keras.regularizers.L2(0.5)(keras.ops.full((400, 400), 1.001))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    "compute",
    [
        counted, squared_error, wrapped_error, precision_at_recall, learning_rate,
        learning_rate_of_an_optimizer, orthogonal, identity, variance_of_data, regularized,
    ],
)  # fmt: skip
def test_what_is_kept_in_a_region_comes_to_the_same_bits_as_outside(
    compute: Callable[[], Any], policy: Policy
) -> None:
    known = numbers(compute())
    with policy_region(policy):
        found = numbers(compute())
    np.testing.assert_array_equal(found, known, strict=True)


@pytest.mark.parametrize("policy", [Policy("O1", "float16"), *POLICIES], ids=str)
@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "compiled"])
def test_metrics_of_low_predictions_are_float32(policy: Policy, eagerly: bool) -> None:
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dense(3, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(0.0), "mae", metrics=["mse"], run_eagerly=eagerly)
    mean = keras.metrics.MeanSquaredError()
    with policy_region(policy):
        found = model.fit(np.ones((8, 2)), np.full((8, 3), 600.0), verbose=0).history["mse"]
        mean.update_state(keras.ops.full((4, 3), 600.0), model(np.ones((4, 2), "float32")))
    assert found == [360_000.0]  # more than float16 holds
    assert float(mean.result()) == 360_000.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_data_are_normalized_by_float32_statistics(compiled: bool) -> None:
    layer = keras.layers.Normalization()
    data = np.linspace(-1000, 1000, 64, dtype="float32").reshape(16, 4)
    layer.adapt(keras.ops.convert_to_tensor(data))  # a variance that float16 cannot hold
    model = keras.Sequential([keras.layers.Input((4,)), layer])

    def normalized() -> Any:
        found = model.predict(data, verbose=0) if compiled else layer(data)
        return keras.ops.convert_to_numpy(found).astype("float32")

    known = normalized()
    for policy in (Policy("O1", "float16"), *POLICIES):
        with policy_region(policy):
            found = normalized()
        np.testing.assert_allclose(found, known, rtol=0.01, atol=0.01, err_msg=str(policy))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("einsum", [False, True], ids=["Dense", "EinsumDense"])
def test_products_of_int8_come_to_the_same_bits_as_outside(einsum: bool, compiled: bool) -> None:
    layers = keras.layers
    layer = layers.EinsumDense("ab,bc->ac", 4) if einsum else layers.Dense(4)
    model = keras.Sequential([layers.Input((64,)), layer])
    layer.kernel.assign(np.full((64, 4), 0.5))
    layer.quantize("int8")
    ones = np.ones((2, 64), "float32")  # products of 127 * 127, of which float16 can hold four

    def quantized() -> Any:
        found = model.predict(ones, verbose=0) if compiled else numbers(layer(ones))
        return np.asarray(found)

    known = quantized()
    np.testing.assert_allclose(known, 32.0, rtol=1e-3)
    for policy in (Policy("O1", "float16"), *POLICIES):
        with policy_region(policy):
            found = quantized()
        np.testing.assert_array_equal(found, known, str(policy), strict=True)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_low_rank_adapter_beside_int8_learns_from_low_activations(policy: Policy) -> None:
    layers = keras.layers
    model = keras.Sequential([layers.Input((6,)), layers.Embedding(20, 8), layers.Dense(4)])
    for layer in model.layers:
        layer.enable_lora(2)
    model.layers[1].quantize("int8")
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    before = [numbers(weight) for weight in model.trainable_variables]
    ones = np.ones((8, 6), "float32")
    with policy_region(policy):
        # Two gradients meet in the activation: that of the int8 product, and the adapter's.
        model.fit(ones, np.ones((8, 6, 4), "float32"), verbose=0)
    after = [numbers(weight) for weight in model.trainable_variables]
    assert all(np.isfinite(weight).all() for weight in after)
    assert any((mine != theirs).any() for mine, theirs in zip(after, before, strict=True))


@pytest.mark.parametrize("policy", [Policy("O1", "float16"), *POLICIES], ids=str)
def test_low_activations_are_regularized_in_float32(policy: Policy) -> None:
    layer = keras.layers.Dense(400, kernel_initializer="ones", activity_regularizer="l2")
    with policy_region(policy):
        layer(keras.ops.ones((16, 20)))
    # The squares add up to 2,560,000, which float16 cannot hold; then comes the factor, 0.01 / 16.
    np.testing.assert_allclose(float(layer.losses[0]), 1600.0, rtol=1e-2)


def test_a_metric_of_low_predictions_knows_their_mask() -> None:
    layer, metric = (
        keras.layers.Dense(2, kernel_initializer="ones"),
        keras.metrics.MeanSquaredError(),
    )
    masked = keras.layers.Masking()(keras.ops.convert_to_tensor([[[1.0, 1.0], [0.0, 0.0]]]))
    with policy_region(Policy("O1", "bfloat16")):
        found = layer(masked)
        assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
        metric.update_state(keras.ops.zeros((1, 2, 2)), found)
    assert float(metric.result()) == 4.0  # of both places it would be 2


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (keras.losses.MeanSquaredError, 360_000.0),
        (keras.losses.MeanAbsolutePercentageError, 100_000.0),
        (keras.losses.CosineSimilarity, -1.0),
    ],
)
def test_a_loss_at_o2_is_float32_from_its_beginning(loss: Any, wanted: float) -> None:
    far = loss is not keras.losses.CosineSimilarity
    targets, found = (
        (0.6, 600.6)
        if loss is keras.losses.MeanAbsolutePercentageError
        else (0.0 if far else 500.0, 600.0)
    )
    with policy_region(Policy("O2", "float16")):
        value = loss()(keras.ops.full((4, 3), targets), keras.ops.full((4, 3), found))
    np.testing.assert_allclose(float(value), wanted, rtol=1e-3)


@pytest.mark.parametrize("policy", [Policy("O1", "bfloat16"), *POLICIES[:2]], ids=str)
@pytest.mark.parametrize(
    "move",
    [
        lambda image: keras.layers.RandomRotation(0.3, seed=1)(image, training=True),
        lambda image: keras.layers.RandomTranslation(0.3, 0.3, seed=1)(image, training=True),
        lambda image: keras.ops.image.perspective_transform(
            image,
            keras.ops.convert_to_tensor([[0.0, 0.0], [299.0, 0.0], [0.0, 7.0], [299.0, 7.0]]),
            keras.ops.convert_to_tensor([[3.0, 1.0], [290.0, 0.0], [1.0, 7.0], [280.0, 6.0]]),
        ),
        lambda image: keras.ops.image.affine_transform(
            image, keras.ops.convert_to_tensor([1.0, 0.1, -3.0, 0.02, 1.1, 2.0, 0.0, 0.0])
        ),
    ],
    ids=["rotation", "translation", "perspective", "affine"],
)
def test_a_pixel_is_moved_to_the_place_that_it_has_outside(
    policy: Policy, move: Callable[[Any], Any]
) -> None:
    image = keras.ops.convert_to_tensor(
        np.sin(np.arange(8 * 300) / 3).reshape(8, 300, 1).astype("float32")
    )
    expected = numbers(move(image))
    with policy_region(policy):
        found = move(image)
    np.testing.assert_array_equal(numbers(found), expected)
