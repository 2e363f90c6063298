"""`unamp.decorate` on Keras models: low variables, and optimizers with master weights."""

import math
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from decorated import data, decorated, grads_of, made, values
from stepping import *  # noqa: F403
from stepping import same
from unamp_tensorflow import masters

import unamp

layers, optimizers = keras.layers, keras.optimizers


def test_variables_are_low_where_they_are():
    net = made("convolutions")
    kernel, held, names = (
        net.layers[1].kernel,
        list(net.variables),
        [each.path for each in net.variables],
    )
    before, optimizer = kernel.numpy(), optimizers.Adam(0.01)
    optimizer.build(net.trainable_variables)
    rate = optimizer.learning_rate
    assert unamp.decorate(net, optimizer, "O2", "bfloat16") == (net, optimizer)
    assert net.layers[1].kernel is kernel
    assert all(old is new for old, new in zip(held, net.variables, strict=True))
    assert [each.path for each in net.variables] == names
    assert kernel.dtype == "bfloat16" == tf.convert_to_tensor(kernel).dtype.name
    np.testing.assert_allclose(before, values([kernel])[0], rtol=2**-8)
    assert isinstance(optimizer, optimizers.Adam)
    assert optimizer.learning_rate is rate
    assert {each.dtype for each in optimizer.variables} == {"int64", "float32"}


def test_what_stays_as_it_is():
    for level in ("O0", "OD", "O1"):
        net, optimizer = made(), optimizers.SGD(0.1)
        unamp.decorate(net, optimizer, level)
        assert {each.dtype for each in net.variables} == {"float32"}
        assert type(optimizer) is optimizers.SGD
    net = made("attention")
    assert (
        unamp.decorate(net, level="O2", excluded_layers=[layers.LayerNormalization, net.layers[-1]])
        is net
    )
    assert [each.dtype for each in net.layers[2].variables] == ["float16"] * 2
    assert {each.dtype for each in net.variables[2:]} == {"float32"}


def test_unscaled_gradients_are_float32():
    optimizer, scaler = optimizers.SGD(0.1), unamp.GradScaler(1024.0)
    net = decorated(optimizer)
    _, gradients = grads_of(net, scaler)(0)
    unscaled = scaler.unscale_(optimizer, gradients)
    assert {each.dtype for each in unscaled} == {tf.float32}
    for mine, scaled in zip(unscaled, gradients, strict=True):
        np.testing.assert_array_equal(mine * 1024.0, tf.cast(scaled, tf.float32))


@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ("weights", "float16"),
        ("model", "float16"),
        ("model", "bfloat16"),
        ("checkpoint", "bfloat16"),
    ],
)
def test_a_resumed_run_ends_as_one_that_was_not_killed(how, dtype, tmp_path):
    def begun():
        optimizer = optimizers.AdamW(
            optimizers.schedules.ExponentialDecay(0.01, 4, 0.9), weight_decay=0.01, clipnorm=1.0
        )
        net = decorated(optimizer, "convolutions", dtype)
        net.compile(optimizer=optimizer, loss="mse")
        optimizer.build(net.trainable_variables)
        return net

    def run(net, epochs):
        with unamp.autocast(level="O2", dtype=dtype):
            net.fit(*data(0, 32), batch_size=8, epochs=epochs, shuffle=False, verbose=0)
        return values(net.variables) + values(net.optimizer.variables)

    net, path = begun(), str(tmp_path / "saved")
    run(net, 2)
    if how == "weights":
        net.save_weights(path + ".weights.h5")
    elif how == "model":
        net.save(path + ".keras")
    else:
        path = tf.train.Checkpoint(model=net, optimizer=net.optimizer).save(path)
    wanted = run(net, 2)
    resumed = keras.saving.load_model(path + ".keras") if how == "model" else begun()
    if how == "weights":
        resumed.load_weights(path + ".weights.h5")
    elif how == "checkpoint":
        tf.train.Checkpoint(model=resumed, optimizer=resumed.optimizer).restore(
            path
        ).assert_existing_objects_matched()
    assert resumed.variables[0].dtype == dtype
    assert same(wanted, run(resumed, 2))


def test_parameters_are_refreshed_from_an_optimizer_that_is_loaded():
    optimizer, other = optimizers.SGD(0.1), optimizers.SGD(0.1)
    net, fresh = decorated(optimizer), decorated(other)
    for each in (optimizer, other):
        each.build(net.trainable_variables if each is optimizer else fresh.trainable_variables)
    optimizer.apply([tf.ones_like(each) for each in net.trainable_variables])
    assert not same(values(net.variables), values(fresh.variables))
    other.set_weights([each.numpy() for each in optimizer.variables])
    assert same(values(net.variables), values(fresh.variables))


@pytest.mark.parametrize(
    ("options", "scaled"),
    [({"run_eagerly": True}, False), ({"jit_compile": False}, True), ({"jit_compile": True}, True)],
)
def test_fit(options, scaled):
    losses = []
    for low in (False, True):
        optimizer = optimizers.Adam(0.01)
        if scaled:
            optimizer = optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
        net = decorated(optimizer) if low else made()
        net.compile(optimizer=optimizer, loss="mse", **options)
        with unamp.autocast(level="O2", dtype="float16", enabled=low):
            losses.append(
                net.fit(*data(0, 32), batch_size=8, epochs=3, shuffle=False, verbose=0).history[
                    "loss"
                ][-1]
            )
        assert {each.dtype for each in net.variables} == {"float16" if low else "float32"}
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert losses[1] != losses[0]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_loop_of_ones_own(jit_compile):
    optimizer = optimizers.SGD(0.05, momentum=0.9)
    net = decorated(optimizer, dtype="bfloat16")

    @tf.function(jit_compile=jit_compile)
    def step(x, y):
        with tf.GradientTape() as tape:
            with unamp.autocast(level="O2", dtype="bfloat16"):
                out = net(x)
            loss = tf.reduce_mean(tf.square(tf.cast(out, tf.float32) - y))
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        return loss

    losses = [float(step(*data(0))) for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
    assert {each.dtype for each in net.variables} == {"bfloat16"}


def test_before_it_is_built():
    optimizer = optimizers.SGD(2.0**-12)
    net = decorated(optimizer, "convolutions", build=False)
    assert not net.built
    net.compile(optimizer=optimizer, loss="mse")
    with unamp.autocast(level="O2", dtype="float16"):
        net.fit(*data(0, 32), batch_size=8, verbose=0)
    assert {each.dtype for each in net.layers[2].variables} == {"float32"}
    assert {
        each.dtype for layer in (net.layers[1], net.layers[-1]) for each in layer.variables
    } == {"float16"}
    low = [each for each in net.trainable_variables if each.dtype == "float16"]
    masters = [each for each in optimizer._trainable_variables if "master_weight" in each.path]
    assert same(values(low), values([tf.cast(each, tf.float16) for each in masters]))
    assert not same(values(low), values(masters))


def test_sparse_gradients():
    optimizer, scaler = optimizers.SGD(1.0), unamp.GradScaler(4.0)
    net = keras.Sequential([layers.Embedding(5, 3, embeddings_initializer="ones")])
    net.build((None, 2))
    unamp.decorate(net, optimizer, "O2", "float16")
    with tf.GradientTape() as tape:
        loss = scaler.scale(tf.reduce_sum(net(tf.constant([[1, 2]]))))
    gradients = tape.gradient(loss, net.trainable_variables)
    assert isinstance(gradients[0], tf.IndexedSlices)
    assert scaler.step(optimizer, net.trainable_variables, gradients=gradients)
    np.testing.assert_array_equal(values(net.variables)[0][:, 0], [1, 0, 0, 1, 1])


def test_exclusions_from_weight_decay_go_on():
    for before in (True, False):
        net, optimizer = made(), optimizers.AdamW(1.0, weight_decay=0.5)
        exclude = partial(optimizer.exclude_from_weight_decay, [net.layers[0].kernel], ["bias"])
        if before:
            exclude()
        unamp.decorate(net, optimizer, "O2", "float16")
        if not before:
            exclude()
        was = values(net.variables)
        optimizer.apply(
            [tf.zeros_like(each) for each in net.trainable_variables], net.trainable_variables
        )
        changed = [
            not same([old], [new]) for old, new in zip(was, values(net.variables), strict=True)
        ]
        assert changed == [False, False, True, False]


def test_a_step_that_fails_half_way_leaves_parameters_that_are_their_rounded_master_weights():
    stepped = []

    class Failing(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            stepped.append(variable)
            if len(stepped) == len(net.trainable_variables):
                raise ArithmeticError
            super().update_step(gradient, variable, learning_rate)

    optimizer = Failing(0.5)
    net = decorated(optimizer)
    gradients = [tf.ones_like(each) for each in net.trainable_variables]
    before = values(net.trainable_variables)
    with pytest.raises(ArithmeticError):
        optimizer.apply(gradients, net.trainable_variables)
    after = values(net.trainable_variables)
    assert not same(before[:1], after[:1])
    assert same(before[-1:], after[-1:])
    assert same(
        after, [exact.astype("float16") for exact in values(optimizer._trainable_variables)]
    )


@pytest.mark.parametrize("fewest", [1, 10**9], ids=["compared first", "written anew"])
@pytest.mark.parametrize("how", [None, {}, {"jit_compile": True}], ids=["eager", "graph", "XLA"])
def test_master_weights_follow_every_change(how, fewest, monkeypatch):
    monkeypatch.setattr(masters, "_LARGE", fewest)
    net = keras.Sequential([layers.Input((4,)), layers.Dense(6)])
    optimizer = optimizers.SGD(0.0)
    unamp.decorate(net, optimizer, "O2", "bfloat16")
    optimizer.build(net.trainable_variables)
    gradients = [tf.ones_like(each) for each in net.trainable_variables]

    def step(gradients):
        optimizer.apply(gradients)

    step = step if how is None else tf.function(step, **how)
    weight, master = net.layers[0].kernel, optimizer._trainable_variables[0]
    for change in (0.25, -0.0, math.nan, 1.0):
        step(gradients)
        before, rounded = values([master, weight])
        changed = rounded.copy()
        changed[2, 3] = change
        weight.assign(tf.cast(changed, tf.bfloat16))
        for _ in range(2):
            step(gradients)
            after, low = values([master, weight])
            assert np.array_equal(
                after, np.where(changed == rounded, before, changed), equal_nan=True
            )
            assert np.array_equal(low, changed, equal_nan=True)


def test_what_was_traced_before():
    net, x = made(), data(0)[0]
    net.compile(loss="mse", optimizer="sgd")
    net.predict(x, verbose=0)
    traced = tf.function(lambda x: net(x))
    traced(x)
    unamp.decorate(net, level="O2", dtype="float16")
    assert net.predict(x, verbose=0).dtype == np.float16
    with pytest.raises(tf.errors.InvalidArgumentError):
        traced(x)


def test_layers_of_a_network_that_is_refused_are_as_they_were():
    net = made()
    with pytest.raises(ValueError, match="kernel is float16 already"):
        unamp.decorate([net, decorated(None)], level="O2")
    assert {layer.variable_dtype for layer in net.layers} == {"float32"}
