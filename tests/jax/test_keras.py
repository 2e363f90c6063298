"""A layer of Keras on JAX with a mixed dtype is a float32 layer in a region.

Its activation follows a rule of its own.
"""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras_mixed import *  # noqa: F403
from keras_mixed import LARGE, MIXED

import unamp
from unamp.tracing import work_of

layers = keras.layers
COMPILERS: list[object] = []  # a layer is built before it is compiled


@pytest.mark.parametrize("of", MIXED)
def test_what_the_policy_wants_in_float32_is_not_rounded(of):
    x = jnp.asarray(LARGE)
    norm, softmax = layers.LayerNormalization(dtype=of), layers.Softmax(dtype=of)
    norm(x)
    with unamp.autocast(dtype="bfloat16", deny=["layer_norm", "softmax"]):
        normed, chances = norm(x), softmax(x / 1e5)
    assert normed.dtype == chances.dtype == jnp.float32
    np.testing.assert_allclose(chances, jax.nn.softmax(x / 1e5), rtol=1e-6)
    wide = np.asarray(x, "float64")
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(normed, want, rtol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: layers.Dense(4, **options),
        lambda **options: layers.EinsumDense(
            "abcd,de->abce", (None, None, 5), bias_axes="e", **options
        ),
        lambda **options: layers.Conv2D(4, 3, **options),
        lambda **options: layers.Conv2DTranspose(4, 3, **options),
        lambda **options: layers.DepthwiseConv2D(3, **options),
        lambda **options: layers.SeparableConv2D(4, 3, **options),
    ],
    ids=["linear", "einsum", "conv2d", "conv_transpose2d", "depthwise_conv2d", "separable_conv2d"],
)
def test_the_activation_is_an_operation_of_its_own(make, request):
    op, x = request.node.callspec.id, jax.random.normal(jax.random.key(0), (1, 6, 6, 3))
    bare, activated = (
        make(bias_initializer="ones"),
        make(bias_initializer="ones", activation="softmax"),
    )
    bare(x), activated(x)
    activated.set_weights(bare.get_weights())
    with unamp.autocast(dtype="bfloat16"):
        low, got = bare(x), activated(x)
    assert low.dtype == jnp.bfloat16
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, jax.nn.softmax(low.astype("float32")))
    with unamp.autocast(dtype="bfloat16", deny=[op], allow=["softmax"]):
        wide, got = bare(x), activated(x)
    assert wide.dtype == jnp.float32
    np.testing.assert_array_equal(wide, bare(x))
    assert got.dtype == jnp.bfloat16


def test_a_compiled_function_follows_the_region_it_is_called_in():
    dense, norm = (
        layers.Dense(4, dtype="mixed_float16"),
        layers.LayerNormalization(dtype="mixed_float16"),
    )
    plain = layers.Dense(4), layers.LayerNormalization()
    x = jnp.asarray(LARGE / 1e5)
    for mixed, float32 in zip((dense, norm), plain, strict=True):
        mixed(x), float32(x)
        float32.set_weights(mixed.get_weights())
    compiled, twin = jax.jit(lambda x: norm(dense(x))), jax.jit(lambda x: plain[1](plain[0](x)))
    for _ in range(2):
        assert compiled(x).dtype == jnp.float16
        with unamp.autocast(dtype="bfloat16", deny=["layer_norm"]):
            got, want = compiled(x), twin(x)
        assert got.dtype == want.dtype == jnp.float32
        np.testing.assert_array_equal(got, want)


def test_a_trace_alone_changes_nothing_and_shows_what_ran():
    dense, norm, x = (
        layers.Dense(4, dtype="mixed_bfloat16"),
        layers.LayerNormalization(dtype="mixed_bfloat16"),
        jnp.ones((2, 4)),
    )
    want = norm(dense(x))
    with unamp.trace() as trace:
        got = norm(dense(x))
    assert got.dtype == want.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, want)
    assert [(each.op, each.rule.name, each.output) for each in trace.records] == [
        ("linear", "UNTOUCHED", "bfloat16"),
        ("layer_norm", "UNTOUCHED", "bfloat16"),
    ]
    with unamp.trace() as trace, unamp.autocast(dtype="float16"):
        norm(dense(x))
    assert trace.records[0].rule.name == "LOW"
    assert trace.records[0].compute == "float16"


@pytest.mark.parametrize(
    ("make", "shape", "products"),
    [
        (lambda: layers.Dense(3), (2, 5, 8), 2 * 5 * 8 * 3),
        (
            lambda: layers.EinsumDense("abc,cd->abd", (None, 6), bias_axes="d"),
            (2, 5, 8),
            2 * 5 * 8 * 6,
        ),
        (lambda: layers.Conv2D(6, 3), (2, 8, 8, 4), 2 * 6 * 6 * 6 * 3 * 3 * 4),
        (lambda: layers.Conv2DTranspose(6, 3), (2, 8, 8, 4), 2 * 8 * 8 * 4 * 3 * 3 * 6),
        (
            lambda: layers.DepthwiseConv2D(3, depth_multiplier=2),
            (2, 8, 8, 4),
            2 * 6 * 6 * 8 * 3 * 3,
        ),
        (lambda: layers.LSTM(7), (2, 5, 8), 2 * 5 * 4 * 7 * (8 + 7)),
        (lambda: layers.Dense(3, dtype="mixed_bfloat16", trainable=False), (2, 8), 2 * 8 * 3),
    ],
    ids=["Dense", "EinsumDense", "Conv2D", "Conv2DTranspose", "DepthwiseConv2D", "LSTM", "frozen"],
)
def test_a_layer_is_the_work_that_its_weights_make(make, shape, products):
    layer, x = make(), jnp.ones(shape)
    layer(x)
    for compiled in (layer, jax.jit(layer)):
        with unamp.trace() as trace:
            compiled(x)
        (record,) = trace.records
        assert work_of(record).products == products, record


def test_an_embedding_is_reported_and_follows_its_rule():
    table = layers.Embedding(10, 4)
    table(jnp.ones((2, 3), int))
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16", allow=["embedding"]):
        found = table(jnp.ones((2, 3), int))
    assert found.dtype == jnp.bfloat16
    assert [(each.op, each.rule.name, each.input_shapes) for each in trace.records] == [
        ("embedding", "LOW", ((10, 4),))
    ]


def test_other_threads_are_not_affected_and_nothing_stays():
    dense, x, found = layers.Dense(4, dtype="mixed_float16"), jnp.ones((2, 4)), []
    dense(x)
    hooked = keras.DTypePolicy.convert_input, keras.DTypePolicy.compute_dtype.fget
    own = [each.__code__ for each in hooked]
    with unamp.autocast(dtype="bfloat16"):
        assert all(each.__code__ is not code for each, code in zip(hooked, own, strict=True))
        worker = threading.Thread(
            target=lambda: found.extend([dense(x).dtype, dense.compute_dtype])
        )
        worker.start()
        worker.join()
        assert dense(x).dtype == jnp.bfloat16
    assert found == [jnp.float16, "float16"]
    assert dense.compute_dtype == "float16"
    assert [each.__code__ for each in hooked] == own
