"""Keras 3 on TensorFlow: layers follow the policy, models train and carry their policy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf  # first: the backend that Keras takes
from keras_mixed import *  # noqa: F403

import unamp
from unamp import Policy, policy_region
from unamp.adapter.registry import adapter_for

layers = tf.keras.layers
COMPILERS = [tf.function]


def model(*, plain=False):
    tf.keras.utils.set_random_seed(1)
    if plain:  # XLA is slow to compile
        return tf.keras.Sequential(
            [layers.Flatten(), layers.Dense(16, activation="relu"), layers.Dense(4)]
        )
    return tf.keras.Sequential(
        [
            layers.Input([8, 8, 3]),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(16, activation="gelu"),
            layers.LayerNormalization(),
            layers.Dropout(0.1),
            layers.Dense(4),
        ]
    )


def data():
    x = np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype("float32")
    return x, (x.sum(axis=(1, 2, 3)) > 0).astype("int32") + 2 * (x[:, 0, 0, 0] > 0)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("O1", "low low f32 f32 low"),
        ("OD", "low low f32 f32 low"),
        ("O2", "low low low f32 low"),
        ("O3", "low low low low low"),
    ],
)
def test_layers_follow_the_policy(low, level, expected):
    image = tf.random.normal([2, 6, 6, 3])
    conv, dense, soft, norm, rnn = (
        layers.Conv2D(4, 3), layers.Dense(4), layers.Softmax(), layers.LayerNormalization(),
        layers.LSTM(3)
    )  # fmt: skip
    with policy_region(Policy(level, low.name)):
        found = [conv(image), dense(image), soft(image), norm(image), rnn(image[0])]
    assert [each.dtype for each in found] == [
        low if word == "low" else tf.float32 for word in expected.split()
    ]
    for layer in (conv, dense, norm, rnn):
        assert {weight.dtype for weight in layer.weights} == {"float32"}


def test_a_dense_layer_computes_with_rounded_inputs(low):
    x, layer = tf.random.normal([4, 8]), layers.Dense(3, bias_initializer="normal")
    layer.build(x.shape)
    with policy_region(Policy("O1", low.name)):
        found = layer(x)
    product = tf.matmul(tf.cast(x, low), tf.cast(layer.kernel.value, low))
    expected = product + tf.cast(layer.bias.value, low)
    tf.debugging.assert_equal(tf.cast(found, tf.float32), tf.cast(expected, tf.float32))


def test_a_layers_activation_has_a_rule_of_its_own(low):
    x = tf.random.normal([4, 8])
    with policy_region(Policy("O1", low.name)):
        assert layers.Dense(3, activation="softmax")(x).dtype == tf.float32
        assert layers.Dense(3, activation="relu")(x).dtype == low


def test_an_activations_rule_holds_in_a_layer_that_is_left_alone(low):
    with policy_region(Policy("O1", low.name, preset="mindspore", allow="sigmoid")):
        assert layers.EinsumDense("ab,bc->ac", 3)(tf.ones([2, 4])).dtype == tf.float32
        assert (
            layers.EinsumDense("ab,bc->ac", 3, activation="sigmoid")(tf.ones([2, 4])).dtype == low
        )


def test_layers_pass_low_tensors_on(low):
    with policy_region(Policy("O1", low.name)):
        x = layers.Dense(4)(tf.ones([2, 4]))
        assert layers.ReLU()(x).dtype == low
        assert layers.Dropout(0.5)(x, training=True).dtype == low
        assert layers.Add()([x, x]).dtype == low


def test_a_layers_own_dtype_policy_still_counts_outside(matrix):
    layer = layers.Dense(3, dtype="mixed_bfloat16")
    assert layer(matrix).dtype == tf.bfloat16
    with policy_region(Policy("O1", "float16")):
        pass
    assert layer(matrix).dtype == tf.bfloat16
    assert layers.Dense(3)(matrix).dtype == tf.float32


def test_layers_made_inside_a_region_are_as_good_as_others(matrix):
    with policy_region(Policy("O2", "bfloat16")):
        inside = layers.Dense(64, kernel_initializer=tf.keras.initializers.GlorotUniform(3))
        inside(matrix)
    outside = layers.Dense(64, kernel_initializer=tf.keras.initializers.GlorotUniform(3))
    outside(matrix)
    tf.debugging.assert_equal(inside.kernel.value, outside.kernel.value)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_recurrent_layers_in_a_function_compute_what_they_do_eagerly(kind, jit):
    x, layer = tf.random.normal([2, 6, 8]), getattr(layers, kind)(4, return_sequences=True)
    layer(x)
    function = tf.function(layer, jit_compile=jit)
    for level in ("O1", "O3"):
        with policy_region(Policy(level, "bfloat16")):
            eager, graph = layer(x), function(x)
        assert eager.dtype == graph.dtype == tf.bfloat16
        tf.debugging.assert_near(tf.cast(eager, tf.float32), tf.cast(graph, tf.float32), atol=0.02)
    assert function(x).dtype == tf.float32


@pytest.mark.parametrize("inner", [False, True], ids=["layers", "layers and cells"])
def test_a_recurrent_convolution_trains_where_each_layers_call_opens_a_region(inner):
    tf.keras.utils.set_random_seed(1)
    net = tf.keras.Sequential(
        [
            layers.ConvLSTM2D(2, 3, return_sequences=True),
            layers.ConvLSTM2D(2, 3),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    x = np.random.default_rng(0).normal(size=(8, 3, 8, 8, 2)).astype("float32")
    net.build(x.shape)
    for layer in net._flatten_layers(include_self=False) if inner else net.layers:
        layer.call = unamp.autocast(dtype="bfloat16")(layer.call)
    net.compile("adam", "mse", jit_compile=False)
    losses = net.fit(x, x.mean((1, 2, 3, 4)), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert net.layers[1](net.layers[0](x)).dtype == tf.bfloat16


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_categories_are_the_same_in_a_region(level):
    # In a graph Keras makes float32 numbers of the categories; bfloat16 has no 4099.
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((2,), dtype="int32"), layers.CategoryEncoding(5000, "multi_hot")]
    )
    categories = np.array([[4097, 4099], [3, 2049]])
    known = model.predict(categories, verbose=0)
    with policy_region(Policy(level, "bfloat16")):
        found = model.predict(categories, verbose=0)
    np.testing.assert_array_equal(found, known)


@pytest.mark.parametrize("name", ["StringLookup", "TextVectorization"])
def test_words_are_weighed_as_outside_of_the_region(name):
    words, weights = [["a b"], ["a c"], ["a d"]] * 300, []
    for level in ("O0", "O2", "O3"):
        layer = getattr(tf.keras.layers, name)(output_mode="tf_idf")
        with policy_region(Policy(level, "bfloat16")):
            layer.adapt(words)
        weights.append(layer(words[:1]).numpy())
    np.testing.assert_array_equal(weights[1:], [weights[0]] * 2)


def test_keras_functions(low, matrix):
    x = tf.cast(matrix, low)
    ops = tf.keras.ops
    with policy_region(Policy("O1", low.name)):
        assert ops.matmul(matrix, matrix).dtype == low
        assert ops.exp(x).dtype == tf.float32
        assert ops.logsumexp(x).dtype == tf.float32
        assert ops.add(x, matrix).dtype == tf.float32
        assert tf.keras.losses.mse(x, x).dtype == tf.float32


def test_fit_with_loss_scaling():
    network, (x, y) = model(), data()
    optimizer = tf.keras.optimizers.LossScaleOptimizer(
        tf.keras.optimizers.SGD(0.05), initial_scale=2.0**15
    )
    network.compile(
        optimizer,
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    before = [weight.numpy() for weight in network.trainable_variables]
    with unamp.autocast(dtype="float16"):
        network.fit(x, y, epochs=1, batch_size=32, verbose=0)
        network.fit(x * np.float32(np.inf), y, epochs=1, batch_size=64, verbose=0)
    after = [weight.numpy() for weight in network.trainable_variables]
    assert all(np.isfinite(weight).all() for weight in after)
    assert any((a != b).any() for a, b in zip(before, after, strict=True))
    assert float(optimizer.dynamic_scale) == 2.0**14


def test_the_loss_scale_works_by_hand(matrix):
    weight = tf.keras.Variable(matrix.numpy())
    optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0))
    optimizer.build([weight])
    with tf.GradientTape() as tape, policy_region(Policy("O2", "float16")):
        loss = tf.reduce_mean(tf.matmul(matrix, weight.value))
        scaled = optimizer.scale_loss(loss)
    tf.debugging.assert_equal(tf.cast(scaled, tf.float32), tf.cast(loss, tf.float32) * 2.0**15)
    optimizer.apply(tape.gradient(scaled, [weight.value]), [weight])
    assert weight.dtype == "float32"
    assert not np.array_equal(weight.numpy(), matrix.numpy())


def test_one_policy_one_trace_of_a_train_function():
    network, x = model(), data()[0]
    network.compile(
        "sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    off = network.predict(x[:4], verbose=0)
    with unamp.autocast(dtype="bfloat16"):
        on = network.predict(x[:4], verbose=0)
    again = network.predict(x[:4], verbose=0)
    np.testing.assert_array_equal(off, again)
    assert str(on.dtype) == "bfloat16"


# --- models that carry their policy ---------------------------------------------------------------


def test_a_wrapped_model_computes_under_its_policy_and_returns_float32(low):
    adapter, network, x = adapter_for("tensorflow"), model(), data()[0]
    assert adapter.is_network(network)
    assert not adapter.is_network(layers.Dense(3))
    wrapped = adapter.wrap(network, Policy("O2", low.name))
    assert adapter.is_network(wrapped)
    found, plain = wrapped(x[:4]), network(x[:4])
    assert (found.dtype, plain.dtype) == (tf.float32, tf.float32)
    # the last layer's result was low
    tf.debugging.assert_equal(found, tf.cast(tf.cast(found, low), tf.float32))
    tf.debugging.assert_near(found, plain, atol=0.1)
    assert [v.path for v in wrapped.trainable_variables] == [
        v.path for v in network.trainable_variables
    ]
    assert unamp.current_policy() is None


def test_a_wrapped_model_trains_and_is_saved(tmp_path):
    network, (x, y) = model(), data()
    wrapped = adapter_for("tensorflow").wrap(network, Policy("O1", "bfloat16", deny="gelu"))
    wrapped.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses = wrapped.fit(x, y, epochs=5, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.95 * losses[0]
    wrapped.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert loaded.policy == wrapped.policy
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), wrapped.predict(x, verbose=0))


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("eagerly", [False, True])
def test_updates_and_metrics_are_float32_at_every_level(level, eagerly):
    network = tf.keras.Sequential(
        [layers.Input([4]), layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    network.compile(
        tf.keras.optimizers.SGD(0.001), "mean_absolute_error", metrics=["mse"], run_eagerly=eagerly
    )
    with policy_region(Policy(level, "bfloat16")):
        logs = network.fit(np.ones([2, 4]), np.zeros([2, 1]), epochs=1, verbose=0).history
    # In bfloat16 the learning rate would be 0.0010014.
    np.testing.assert_allclose(
        network.get_weights()[0], np.full([4, 1], 0.999), rtol=0.0, atol=2e-7
    )
    assert logs["loss"] == [4.0]

    mean = tf.keras.metrics.Mean()
    with policy_region(Policy(level, "bfloat16")):
        mean.update_state(1.0, sample_weight=256)  # where bfloat16 stops counting
        for _ in range(44):
            mean.update_state(1.0)
        assert mean.result().dtype == tf.float32
    assert float(mean.count) == 300.0


@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_is_float32_to_its_end(weighted):
    """There are more numbers here than float16 can count.

    In float16 the loss and its gradients would be zero.
    """
    logits, wanted = tf.Variable(tf.zeros([70_000, 2])), tf.zeros([70_000], tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape, policy_region(Policy("O2", "float16")):
        value = loss(wanted, logits, tf.ones([70_000]) if weighted else None)
    assert value.dtype == tf.float32
    np.testing.assert_allclose(float(value), np.log(2.0), rtol=1e-4)
    np.testing.assert_allclose(
        tape.gradient(value, logits)[0], [-0.5 / 70_000, 0.5 / 70_000], rtol=1e-4
    )


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_auto_mixed_precision_takes_a_model_of_keras(level, low):
    network, (x, _) = model(), data()
    mixed = unamp.auto_mixed_precision(network, level, low.name)
    assert isinstance(mixed, tf.keras.Model)
    found, plain = mixed(x[:4]), network(x[:4])
    assert found.dtype == plain.dtype == tf.float32
    assert not np.array_equal(found, plain), "nothing was rounded"
    np.testing.assert_allclose(found, plain, rtol=0.1, atol=0.1)
    assert all(variable.dtype == "float32" for variable in mixed.trainable_variables)


def test_auto_mixed_precision_at_o0_is_the_model_itself():
    network = model()
    assert unamp.auto_mixed_precision(network) is network
    with pytest.raises(ValueError, match="unknown amp_level 'O4'; valid: O0, O1, O2, O3"):
        unamp.auto_mixed_precision(network, "O4")
