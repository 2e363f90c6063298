"""Losses of Keras on TensorFlow, and TensorFlow's own, have float32 sums in a region."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from keras_losses import *  # noqa: F403

import unamp

SUMS = ("compute_average_loss", "scale_regularization_loss")


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_losses_go_beyond_float16(name: str, level: Any) -> None:
    losses = tf.fill([40], 65_000.0)
    with unamp.autocast(level=level, dtype="float16"):
        total = getattr(tf.nn, name)(losses)
        low = getattr(tf.nn, name)(tf.cast(losses, tf.float16))
    assert (total.dtype, low.dtype) == (tf.float32, tf.float32)
    assert float(total) == float(getattr(tf.nn, name)(losses))
    assert float(low) == pytest.approx(float(total), rel=1e-3)


#: The losses of TensorFlow 1, each with the arguments beside two tensors of one shape.
LOSSES_OF_VERSION_1 = {
    "absolute_difference": {},
    "compute_weighted_loss": {},
    "cosine_distance": {"axis": 1},
    "hinge_loss": {},
    "huber_loss": {},
    "log_loss": {},
    "mean_pairwise_squared_error": {},
    "mean_squared_error": {},
    "sigmoid_cross_entropy": {},
    "softmax_cross_entropy": {},
    "sparse_softmax_cross_entropy": {},
}


def test_no_loss_of_version_1_is_forgotten() -> None:
    kept = (
        "add_loss",
        "get_losses",
        "get_regularization_loss",
        "get_regularization_losses",
        "get_total_loss",
    )
    assert {name for name in dir(tf.compat.v1.losses) if name.islower() and name[0] != "_"} - {
        *kept
    } == {*LOSSES_OF_VERSION_1}


@pytest.mark.parametrize("name", LOSSES_OF_VERSION_1)
def test_losses_of_version_1_are_float32(name: str) -> None:
    found = tf.random.stateless_uniform([8, 4], [1, 2], 0.1, 0.9) * (
        1 if name == "log_loss" else 1000
    )
    wanted = tf.range(8) % 4 if name.startswith("sparse") else tf.one_hot(tf.range(8) % 4, 4)
    given = (found,) if name == "compute_weighted_loss" else (wanted, found)

    @tf.function
    def loss() -> Any:
        return getattr(tf.compat.v1.losses, name)(*given, **LOSSES_OF_VERSION_1[name])

    plain = loss()
    with unamp.autocast(level="O2", dtype="float16"):
        computed = loss()
    assert computed.dtype == tf.float32
    assert float(computed) == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["psnr", "ssim"])
def test_images_are_compared_in_float32(name: str, dtype: Any, level: Any) -> None:
    image = tf.nn.avg_pool2d(tf.random.stateless_uniform([2, 32, 32, 3], [1, 2]), 5, 1, "SAME")
    noisy = image + tf.random.stateless_normal(image.shape, [3, 4]) / 50
    plain = getattr(tf.image, name)(image, noisy, 1.0)
    with unamp.autocast(level=level, dtype=dtype):
        computed = getattr(tf.image, name)(image, noisy, 1.0)
    assert computed.dtype == tf.float32
    tf.debugging.assert_near(computed, plain, rtol=1e-6)


def test_a_total_variation_goes_beyond_float16() -> None:
    stripes = tf.tile(tf.constant([0.0, 1.0])[None, :, None], [400, 200, 1])
    with unamp.autocast(level="O2", dtype="float16"):
        assert float(tf.image.total_variation(stripes)) == 400 * 399
