"""Products in float8 on TensorFlow are not computed, and records say so."""

from __future__ import annotations

import pytest
import tensorflow as tf

import unamp


def test_what_is_not_computed_is_said():
    x = tf.ones([4, 4])
    with unamp.trace(shadow="float8_e4m3") as trace:
        tf.matmul(x, x)
        tf.keras.layers.Dense(3)(x)
        tf.exp(x)
    found = {record.op: record.shadow.left_out for record in trace.records}
    assert found.pop("exp") == "float8 is for products of two matrices"
    assert found.keys() >= {"matmul"}
    assert set(found.values()) <= {
        "this framework's adapter computes no product from float8",
        "float8 is for products of two matrices",
    }
    assert found["matmul"] == "this framework's adapter computes no product from float8"


def test_a_study_says_so_too():
    net = tf.keras.Sequential([tf.keras.layers.Dense(16)])
    with pytest.raises(
        unamp.NotExpressible,
        match="no layer of the network can be studied: this framework's adapter",
    ):
        unamp.tune(net, net, [tf.ones([2, 16])], dtype="float8_e4m3", tolerance=0.05)
