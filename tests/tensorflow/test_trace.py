"""Traces record TensorFlow's operations as they ran."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
import traced
from elsewhere import forked
from traced import *  # noqa: F403

import unamp
from unamp import Policy, Rule


def test_a_trace_says_what_was_computed_in(matrix):
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        tf.nn.gelu(matrix @ matrix) + matrix
        tf.nn.softmax(matrix)
    lines = [(r.op, r.native, r.rule, r.inputs, r.compute, r.output) for r in trace.records]
    assert lines == [
        ("matmul", "matmul", Rule.LOW, ("float32", "float32"), "bfloat16", "bfloat16"),
        ("gelu", "nn.gelu", Rule.WIDEST, ("bfloat16",), "bfloat16", "bfloat16"),
        ("add", "AddV2", Rule.WIDEST, ("bfloat16", "float32"), "float32", "float32"),
        ("softmax", "nn.softmax", Rule.FP32, ("float32",), "float32", "float32"),
    ]


def test_a_layer_is_one_line():
    layer = tf.keras.layers.Dense(3, activation="softmax")
    x = tf.ones([2, 4])
    layer(x)
    with unamp.trace() as trace, unamp.autocast(dtype="float16"):
        layer(x)
    assert [(r.op, r.compute) for r in trace.records] == [("linear", "float16")]


def test_a_trace_by_itself_changes_nothing(matrix):
    low, product = tf.cast(matrix, tf.bfloat16), tf.function(lambda x: tf.matmul(x, x))
    product(matrix)
    with unamp.trace():
        product(matrix)
        tf.nn.gelu(low)
        with pytest.raises(tf.errors.InvalidArgumentError):
            low + matrix
    assert product.experimental_get_tracing_count() == 1


def test_outside_regions_and_for_emulation(matrix):
    with unamp.trace() as trace:
        matrix @ matrix
        with unamp.autocast(dtype="bfloat16", allow="linalg_inv"):
            tf.linalg.inv(matrix + 4.0 * tf.eye(4))
    assert [
        (r.op, r.rule, r.compute, r.emulated)
        for r in trace.records
        if r.op in ("matmul", "linalg_inv")
    ] == [
        ("matmul", Rule.UNTOUCHED, "float32", False),
        ("linalg_inv", Rule.LOW, "bfloat16", True),
    ]


def test_explain():
    told = unamp.explain(
        unamp.Policy("O1", "bfloat16", allow="linalg_cholesky"), "tensorflow", "cpu"
    )
    how = {op: told[op].how["tensorflow", "cpu"].value for op in told}
    assert {
        op: how[op]
        for op in ("matmul", "linalg_cholesky", "relu", "conv_tbc", "linear", "zeros", "eq")
    } == {
        "matmul": "intercepted", "linalg_cholesky": "emulated", "relu": "native",
        "conv_tbc": "absent", "linear": "intercepted", "zeros": "native", "eq": "native",
    }  # fmt: skip


# --- layers, casts, values ------------------------------------------------------------------------


def network():
    layers = tf.keras.layers
    inner = tf.keras.Sequential(
        [
            layers.Dense(8, name="wide"),
            layers.ReLU(name="bend"),
            layers.LayerNormalization(name="norm"),
        ]
    )
    net = tf.keras.Sequential(
        [inner, layers.Reshape((1, 8)), layers.LSTM(8, name="rnn"), layers.Dense(2, name="head")]
    )
    inner.name = "body"
    net(tf.zeros([3, 8]))
    return net


def made():
    return network(), tf.random.uniform([3, 8])


PLACES = [
    ("linear", "Sequential.body.wide"), ("relu", "Sequential.body.bend"),
    ("layer_norm", "Sequential.body.norm"), ("lstm", "Sequential.rnn"),
    ("linear", "Sequential.head"),
]  # fmt: skip


def test_a_layer_that_raises_is_left_and_the_hook_is_undone():
    net, own = network(), tf.keras.layers.Layer.__call__
    with unamp.trace() as trace:
        assert tf.keras.layers.Layer.__call__ is not own
        with pytest.raises(ValueError, match="shape"):
            net(tf.zeros([3, 7]))
        tf.exp(tf.zeros([3]))
    assert tf.keras.layers.Layer.__call__ is own
    assert trace.records[-1].layer is None


def test_casts_are_counted_with_what_they_move(matrix):
    dense = tf.keras.layers.Dense(4)
    given = tf.random.uniform([3, 8])
    dense(given)
    low = tf.cast(given, tf.bfloat16)
    with unamp.trace() as trace:
        dense(given)
        with unamp.autocast(dtype="bfloat16"):
            dense(given)
            low + given
            tf.nn.softmax(low)
        with unamp.policy_region(Policy("O1", "bfloat16", widen_results=True)):
            tf.matmul(given, given, transpose_b=True)
    assert [(r.op, r.casts, r.cast_bytes) for r in trace.records] == [
        ("linear", 0, 0), ("linear", 3, 6 * (24 + 32 + 4)), ("add", 1, 6 * 24),
        ("softmax", 1, 6 * 24), ("matmul", 3, 6 * (24 + 24 + 9)),
    ]  # fmt: skip


def test_values_and_gradients_do_not_depend_on_being_traced():
    net, given = network(), tf.random.uniform([3, 8])

    def run(trace):
        with unamp.autocast(dtype="bfloat16"), tf.GradientTape() as tape:
            with trace:
                out = net(given)
            loss = tf.reduce_sum(tf.cast(out, tf.float32) ** 2)
        return [each.numpy() for each in (out, *tape.gradient(loss, net.trainable_variables))]

    traced.results_do_not_depend_on_a_trace(run)


def test_a_network_in_a_graph_is_neither_changed_nor_reported():
    net, given = network(), tf.random.uniform([3, 8])
    step = tf.function(net)
    before = step(given)
    with unamp.trace() as trace:
        during = step(given)
        fresh = tf.function(lambda x: net(x))(given)
    assert step.experimental_get_tracing_count() == 1
    assert np.array_equal(before, during)
    np.testing.assert_allclose(before, fresh, rtol=1e-6)
    assert trace.records == []


def test_a_graph_that_runs_in_a_trace_is_warned_of(monkeypatch, matrix):
    function = tf.function(lambda x: x @ x)
    said = r"a graph of tf\.function ran in a trace.*run_functions_eagerly"
    traced.a_graph_is_warned_of(lambda: function(matrix), said, monkeypatch)
    function(matrix)  # outside of traces no warning comes


# --- work -----------------------------------------------------------------------------------------


def test_the_work_of_operations_is_counted():
    r, layers = lambda *shape: tf.random.uniform(shape), tf.keras.layers
    image, attended = r(2, 9, 9, 4), (r(2, 4, 3, 5), r(2, 6, 3, 5), r(2, 6, 3, 5))
    traced.work_is_counted(
        {
            "linear": (lambda: layers.Dense(6)(r(3, 7, 5)), 3 * 7 * 5 * 6),
            "matmul": (
                lambda: tf.matmul(r(2, 3, 4, 5), r(3, 6, 5), transpose_b=True),
                2 * 3 * 4 * 5 * 6,
            ),
            "einsum": (lambda: tf.einsum("bij, bjk -> bik", r(3, 4, 5), r(3, 5, 6)), 3 * 4 * 5 * 6),
            "tensordot": (lambda: tf.tensordot(r(2, 4, 5), r(4, 5, 6), 2), 2 * 4 * 5 * 6),
            "conv1d": (lambda: tf.nn.conv1d(r(2, 9, 4), r(3, 4, 6), 1, "VALID"), 2 * 6 * 7 * 4 * 3),
            "conv2d": (lambda: layers.Conv2D(6, 3, strides=2)(image), 2 * 6 * 4 * 4 * 4 * 9),
            "depthwise_conv2d": (
                lambda: layers.DepthwiseConv2D(3, depth_multiplier=2)(image),
                2 * 8 * 7 * 7 * 9,
            ),
            "separable_conv2d": (
                lambda: layers.SeparableConv2D(6, 3)(image),
                2 * 7 * 7 * (4 * 9 + 4 * 6),
            ),
            "conv_transpose2d": (lambda: layers.Conv2DTranspose(6, 3)(image), 2 * 4 * 81 * 6 * 9),
            "scaled_dot_product_attention": (
                lambda: tf.keras.ops.dot_product_attention(*attended),
                2 * 3 * 4 * 6 * 10,
            ),
            "lstm": (lambda: layers.LSTM(6)(r(3, 4, 5)), 12 * 4 * 6 * 11),
        }
    )


def test_a_layer_that_is_an_einsum_tells_its_equation():
    with unamp.trace() as trace:
        tf.keras.layers.MultiHeadAttention(2, 3)(tf.ones([2, 4, 6]), tf.ones([2, 4, 6]))
    *_, last = trace.records
    assert (last.op, last.equation) == ("einsum", "abcd,cde->abe")
    assert trace.work.products == 8 * (4 * 6 * 6 + 2 * 4 * 6)


def test_a_float32_layer_after_a_low_one_is_reported_as_keras_computes_it():
    low = tf.keras.layers.Dense(3, dtype="mixed_float16")(tf.ones([2, 3, 3]))
    wide = [
        of(dtype="float32")
        for of in (
            functools.partial(tf.keras.layers.Dense, 2),
            tf.keras.layers.Softmax,
            tf.keras.layers.LayerNormalization,
        )
    ]
    expected = [layer(low) for layer in wide]
    with unamp.trace() as trace:
        found = [layer(low) for layer in wide]
    lines = [(r.op, r.compute, r.output) for r in trace.records]
    assert lines == [(op, "float32", "float32") for op in ("linear", "softmax", "layer_norm")]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


_COLD_EMBEDDING = """
import tensorflow as tf
import unamp
layer = tf.keras.layers.Embedding(5, 4)
index = tf.constant([1, 2])
layer(index)
for rules in ({}, {"level": "O2"}, {"deny": "embedding"}, {"allow": "embedding"}, {"level": "O2", "deny": "take"}):
    with unamp.trace() as trace, unamp.autocast(dtype="float16", **rules):
        layer(index)
    print(*(f"{r.op}:{r.compute}" for r in trace.records))
"""  # noqa: E501


def test_an_embedding_layer_is_an_embedding_from_the_first_region_of_a_process():
    low, wide = "embedding:float16", "embedding:float32"
    assert forked("tensorflow", _COLD_EMBEDDING).split("\n")[:-1] == [wide, low, wide, low, low]
