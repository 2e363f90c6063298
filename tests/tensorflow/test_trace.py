"""What ran, as it ran."""

from __future__ import annotations

import pytest
import tensorflow as tf

import unamp
from unamp import Rule


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
    assert [(r.op, r.rule, r.compute, r.emulated) for r in trace.records if r.op in ("matmul", "linalg_inv")] == [
        ("matmul", Rule.UNTOUCHED, "float32", False),
        ("linalg_inv", Rule.LOW, "bfloat16", True),
    ]


def test_graphs_are_not_reported_while_they_are_traced(matrix):
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        tf.function(lambda x: tf.matmul(x, x))(matrix)
    assert trace.records == []


def test_explain():
    told = unamp.explain(unamp.Policy("O1", "bfloat16", allow="linalg_cholesky"), "tensorflow", "cpu")
    how = {op: told[op].how["tensorflow", "cpu"].value for op in ("matmul", "linalg_cholesky", "relu", "conv_tbc", "linear")}
    assert how == {
        "matmul": "intercepted", "linalg_cholesky": "emulated", "relu": "native", "conv_tbc": "absent", "linear": "intercepted",
    }  # fmt: skip
