"""`float32_results` on TensorFlow widens a function's results: eager, graphs, XLA, gradients."""

from __future__ import annotations

import pytest
import tensorflow as tf

import unamp


@pytest.mark.parametrize(
    "compiled",
    [lambda f: f, tf.function, tf.function(jit_compile=True)],
    ids=["eager", "graph", "xla"],
)
def test_float32_leaves_a_function_that_computes_low(compiled):
    kernel, seen = tf.Variable(tf.ones([4, 4])), []

    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def predict(x):
        if tf.reduce_sum(x) > 0:  # noqa: SIM108 - AutoGraph converts what is decorated
            y = tf.matmul(x, kernel)
        else:
            y = tf.matmul(-x, kernel)
        seen.append(y.dtype)
        return {"y": y, "n": tf.constant(3)}

    with tf.GradientTape() as tape:
        result = compiled(predict)(tf.ones([2, 4]))
    assert (result["y"].dtype, result["n"].dtype, set(seen)) == (
        tf.float32,
        tf.int32,
        {tf.bfloat16},
    )
    assert tape.gradient(result["y"], kernel).numpy().tolist() == [[2.0] * 4] * 4
