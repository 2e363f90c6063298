"""`unamp.trace(shadow=...)` records the shadows of JAX's operations and of layers."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import shadowed
from flax import linen, nnx
from shadowed import *  # noqa: F403

import unamp

KEY = jax.random.key(3)
STATE = "it changes the state of its layer (running statistics, a seed)"


class Net(nnx.Module):
    """Layers with state, and with random numbers."""

    def __init__(self):
        rngs = nnx.Rngs(3)
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False)

    def __call__(self, x):
        h = self.drop(self.norm(self.first(x)))
        seen = self.attention(self.second(h)[None])
        return (
            jax.nn.log_softmax(seen, -1).mean()
            + jnp.einsum("bij,bik->jk", seen, seen).sum()
            + (jnp.exp(h) * x).sum()
        )


def left_out(trace):
    return {record.op: record.shadow.left_out for record in trace.records if record.shadow.left_out}


def compared(trace):
    return {line.op for line in trace.shadow_summary() if not line.left_out}


def test_a_shadow_changes_nothing():
    def run(trace):
        net, x = Net(), jax.random.normal(KEY, (6, 8))
        with jax.disable_jit(), trace:  # as a trace runs it in any case
            loss, grads = nnx.value_and_grad(lambda net, x: net(x), argnums=(0, 1))(net, x)
        return list(
            map(
                np.asarray,
                jax.tree.leaves((loss, grads, nnx.state(net, (nnx.BatchStat, nnx.RngCount)))),
            )
        )

    trace = shadowed.a_shadow_changes_nothing(run, "float8_e4m3")
    assert left_out(trace) == {"batch_norm": STATE}, trace.shadow_table()
    assert {"linear", "layer_norm", "log_softmax", "exp", "mul", "einsum"} <= compared(trace)


def test_a_shadow_changes_nothing_in_linen():
    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x):
            h = linen.BatchNorm(use_running_average=False)(linen.Dense(8)(x))
            return linen.LayerNorm()(h).max()

    net, x = Linen(), jax.random.normal(KEY, (6, 8))
    variables = net.init(KEY, x)

    def loss(params, x):
        return net.apply({**variables, "params": params}, x, mutable=["batch_stats"])

    def run(trace):
        with jax.disable_jit(), trace:  # as a trace runs it in any case
            found = jax.value_and_grad(loss, has_aux=True)(variables["params"], x)
        return list(map(np.asarray, jax.tree.leaves(found)))

    trace = shadowed.a_shadow_changes_nothing(run)
    assert left_out(trace)["batch_norm"] == STATE
    assert {"linear", "layer_norm"} <= compared(trace)


def test_a_shadow_changes_nothing_in_equinox():
    @eqx.nn.make_with_state
    class Equinox(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.StatefulLayer
        second: eqx.nn.LayerNorm

        def __init__(self):
            self.first = eqx.nn.Linear(8, 8, key=KEY)
            self.norm = eqx.nn.SpectralNorm(eqx.nn.Linear(8, 4, key=KEY), "weight", key=KEY)
            self.second = eqx.nn.LayerNorm(4)

        def __call__(self, x, state):
            h, state = self.norm(self.first(x), state)
            return self.second(h).max(), state

    def run(trace):
        net, state = Equinox()
        with jax.disable_jit(), trace:  # as a trace runs it in any case
            found = eqx.filter_value_and_grad(lambda net, x: net(x, state), has_aux=True)(
                net, jnp.linspace(-1, 2, 8)
            )
        return [np.asarray(leaf) for leaf in jax.tree.leaves(found)]

    trace = shadowed.a_shadow_changes_nothing(run)
    assert {"linear", "layer_norm", "amax"} <= compared(trace)


def test_a_shadow_changes_nothing_in_keras():
    def run(trace):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        net = keras.Sequential(
            [
                layers.Dense(8, activation="gelu"),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Dense(3),
            ]
        )
        x = jax.random.normal(KEY, (6, 8))
        net.build(x.shape)
        given = [
            [v.value for v in kind]
            for kind in (net.trainable_variables, net.non_trainable_variables)
        ]

        def loss(trainable, others):
            y, others = net.stateless_call(trainable, others, x, training=True)
            return jnp.exp(y).mean(), others

        with jax.disable_jit(), trace:  # as a trace runs it in any case
            found = jax.value_and_grad(loss, has_aux=True)(*given)
        return list(map(np.asarray, jax.tree.leaves(found)))

    trace = shadowed.a_shadow_changes_nothing(run)
    assert left_out(trace) == {"batch_norm": STATE}, trace.shadow_table()
    assert {"linear", "exp", "mean"} <= compared(trace)


def test_faults_lead():
    ones = nnx.initializers.ones
    first, last = (
        nnx.Linear(8, n, kernel_init=ones, use_bias=False, rngs=nnx.Rngs(0)) for n in (8, 4)
    )
    last.kernel[...] = last.kernel[...] * 2e3
    shadowed.faults_lead(
        jnp.asarray, jnp.exp, jnp.sum, nnx.Sequential(first, nnx.relu, last), "Sequential.layers.2"
    )


@pytest.mark.parametrize("exp", [jax.lax.exp, jax.jit(jnp.exp), lambda x: jax.vjp(jnp.exp, x)[0]])
def test_the_error_of_a_function_that_calls_it_is_that_of_numpy(exp):
    shadowed.error_is_that_of_numpy("jax", exp)


def shadow_of(call, op):
    with unamp.trace(shadow="float16") as trace:
        call()
    (found,) = {record.shadow for record in trace.records if record.op == op}
    return found


def test_a_region_reaches_no_shadow():
    x = jnp.linspace(0, 30, 64)
    with unamp.autocast(dtype="bfloat16", deny="exp"):
        inside = shadow_of(lambda: jnp.exp(x), "exp")
    assert inside == shadow_of(lambda: jnp.exp(x), "exp")


def test_what_cannot_be_computed_twice_is_said():
    x = jnp.ones((4, 4))
    assert "without numbers" in shadow_of(lambda: jax.vmap(jnp.exp)(x), "exp").left_out
    assert "named the dtype" in shadow_of(lambda: jnp.sum(x, dtype="float32"), "sum").left_out
    assert (
        "named the dtype"
        in shadow_of(lambda: jnp.matmul(x, x, precision="highest"), "matmul").left_out
    )
    (product,) = jax.make_jaxpr(lambda x: jax.lax.dot(x, x, precision="highest"))(x).eqns
    assert (
        "named the dtype"
        in shadow_of(lambda: product.primitive.bind(x, x, **product.params), "matmul").left_out
    )
    assert shadow_of(lambda: x.argmax(), "argmax").left_out == "it has no floating result"
