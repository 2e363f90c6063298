"""Models, steps and losses for the tests of loss scaling and `unamp.decorate`."""

import math
from functools import partial

import keras
import numpy as np
import tensorflow as tf

import unamp

LOW = {"float16": tf.float16, "bfloat16": tf.bfloat16}
layers, optimizers = keras.layers, keras.optimizers


def mlp():
    return keras.Sequential([layers.Dense(12, activation="tanh"), layers.Dense(1)])


def convolutions():
    parts = [
        layers.Reshape((2, 3, 1)),
        layers.Conv2D(3, 2),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Flatten(),
    ]
    return keras.Sequential([*parts, layers.Dense(1)])


def attention():
    x = keras.Input((6,))
    y = layers.Dense(4)(layers.Reshape((3, 2))(x))
    y = layers.LayerNormalization()(y + layers.Attention()([y, y]))
    return keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(y)))


NETWORKS = {"mlp": mlp, "convolutions": convolutions, "attention": attention}


def made(network="mlp", build=True):
    keras.utils.set_random_seed(3)
    net = NETWORKS[network]()
    if build and not net.built:
        net.build((None, 6))
    return net


def data(number, size=8):
    x = np.random.default_rng(number).standard_normal((size, 6), dtype="float32")
    return x, np.sin(x.sum(1, keepdims=True))


def grads_of(net, scaler, level="O2", dtype="float16", enabled=True, **options):
    """Return a function from a step's number to the loss and the scaled gradients."""

    @tf.function(**options)
    def graded(x, y, scale):
        with tf.GradientTape() as tape:
            with unamp.autocast(level=level, dtype=dtype, enabled=enabled):
                out = net(x, training=True)
            loss = tf.reduce_mean(tf.square(tf.cast(out, tf.float32) - y))
            scaled = loss * scale
        return loss, tape.gradient(scaled, net.trainable_variables)

    def step(number, *, overflow=False):
        x, y = data(number)
        return graded(
            x * np.float32(math.inf) if overflow else x, y, scaler.scale(tf.constant(1.0))
        )

    return step


def values(variables):
    return [np.array(tf.cast(each, tf.float32)) for each in variables]


def decorated(optimizer, network="mlp", dtype="float16", build=True, **options):
    net = made(network, build)
    unamp.decorate(net, optimizer, "O2", dtype, **options)
    return net


# --- what the tests that are MindSpore's too call -------------------------------------------------

_OPTIMIZERS = {
    **{
        name: partial(getattr(optimizers, name), 0.01)
        for name in (
            "RMSprop Adam Adadelta Adagrad Adamax Adafactor Nadam Ftrl Lion Lamb Muon"
        ).split()
    },
    "SGD": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.5),
    "AdamW": lambda: optimizers.AdamW(
        optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), weight_decay=0.1, global_clipnorm=1.0
    ),
    "averaged": lambda: optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "accumulated": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2, amsgrad=True),
}


def _built(optimizer, network):
    optimizer.build(network.trainable_variables)
    return optimizer


OPTIMIZERS = {
    name: lambda network, make=make: _built(make(), network) for name, make in _OPTIMIZERS.items()
}


def sgd(network, rate):
    return _built(optimizers.SGD(rate), network)


def adam(network, rate):
    return _built(optimizers.Adam(rate), network)


def momentum(network):
    return _built(optimizers.SGD(0.02, momentum=0.9), network)


def parameters(network):
    return network.variables


def trained(network):
    return network.trainable_variables


def masters(optimizer):
    return optimizer._trainable_variables


def held(optimizer):
    return optimizer.variables


def step_with(optimizer, gradients, network):
    optimizer.apply(gradients, network.trainable_variables)


def tensor(array, dtype):
    return tf.cast(np.asarray(array, "float32"), dtype)


def finish(optimizer, network):
    optimizer.finalize_variable_values(network.trainable_variables)


def put(network, variable, array):
    variable.assign(array)


def first_name(network, optimizer=None):
    """Return the name of the first variable, as the network or the optimizer calls it."""
    return network.trainable_variables[0].path
