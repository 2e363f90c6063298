"""What a layer of Keras states about its dtype: float32 under a global policy of mixed precision."""

from __future__ import annotations

import pytest
import tensorflow as tf

import unamp
from unamp import Policy, policy_region
from unamp.adapter.keras_policies import states_float32

keras = tf.keras


@pytest.fixture
def mixed():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def network():
    return keras.Sequential(
        [keras.layers.Dense(8, activation="relu", name="body"), keras.layers.Dense(4, dtype="float32", name="head")]
    )


def test_the_last_layer_of_a_mixed_model_stays_float32(mixed):
    model, x = network(), tf.random.normal([2, 8])
    plain = model(x)
    assert plain.dtype == tf.float32
    for call in (model, tf.function(model)):
        for level in ("O1", "O2", "O3"):
            with policy_region(Policy(level, "bfloat16")):
                body, found = model.layers[0](x), call(x)
            assert body.dtype == tf.bfloat16
            assert found.dtype == tf.float32
            # What the head is given is rounded, what it computes is not: as Keras' own mixed precision does it.
            head = model.layers[1]
            exact = tf.matmul(tf.cast(body, tf.float32), head.kernel) + head.bias
            tf.debugging.assert_near(found, exact, rtol=1e-5, atol=1e-5)


def test_a_trace_says_so(mixed):
    model = network()
    with unamp.autocast(dtype="bfloat16"), unamp.trace() as trace:
        model(tf.random.normal([2, 8]))
    rows = {record.layer.rpartition(".")[2]: record for record in trace.records if record.op == "linear"}
    assert (rows["body"].native, rows["body"].compute) == ("Dense.call", "bfloat16")
    assert (rows["head"].native, rows["head"].compute) == ("Dense.call(dtype=float32)", "float32")


def test_a_layer_rule_overrules_it(mixed):
    model, x = network(), tf.random.normal([2, 8])
    model(x)
    with unamp.layer_policies(model, {"head": Policy("O1", "bfloat16")}), unamp.autocast(dtype="bfloat16"):
        assert model(x).dtype == tf.bfloat16


def test_under_a_global_policy_of_float32_no_layer_states_it():
    model = network()
    with unamp.autocast(dtype="bfloat16"):
        assert model(tf.random.normal([2, 8])).dtype == tf.bfloat16
    assert not states_float32(model.layers[1])


def test_what_a_layer_is_made_of_and_layers_of_a_users_own(mixed):
    class Squared(keras.layers.Layer):
        def call(self, x):
            return tf.matmul(x, x)

    x = tf.random.normal([2, 3, 8])
    attention = keras.layers.MultiHeadAttention(2, 4, dtype="float32")
    with policy_region(Policy("O3", "bfloat16")):
        assert attention(x, x).dtype == tf.float32
        assert keras.layers.MultiHeadAttention(2, 4)(x, x).dtype == tf.bfloat16
        assert Squared(dtype="float32")(tf.ones([2, 2])).dtype == tf.float32
        assert Squared()(tf.ones([2, 2])).dtype == tf.bfloat16
        assert keras.layers.Dense(2, dtype=keras.DTypePolicy("float32"))(x).dtype == tf.float32


def test_a_model_computes_nothing_itself(mixed):
    class Whole(keras.Model):
        def __init__(self):
            super().__init__(dtype="float32")
            self.inner = keras.layers.Dense(3)

        def call(self, x):
            return self.inner(x)

    with unamp.autocast(dtype="bfloat16"):
        assert Whole()(tf.ones([2, 2])).dtype == tf.bfloat16


def test_its_training(mixed):
    model = network()
    with tf.GradientTape() as tape, unamp.autocast(dtype="float16"):
        loss = tf.reduce_mean(model(tf.random.normal([2, 8])))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert [gradient.dtype for gradient in gradients] == [tf.float32] * 4
