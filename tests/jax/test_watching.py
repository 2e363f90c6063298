"""The monitor on JAX follows modules of nnx and equinox, and pytrees, outside of jit."""

from __future__ import annotations

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from watched import finds_the_layer_that_underflows, swallowed

import unamp

X = jax.random.normal(jax.random.key(0), (16, 8))


class Net(nnx.Module):
    """A network whose layer `tiny` is behind a small factor.

    The factor makes the layer's gradient subnormal in float16.
    """

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.tiny, self.last = (nnx.Linear(8, size, rngs=rngs) for size in (8, 8, 4))

    def __call__(self, x):
        return self.last(self.first(x) + 1e-5 * self.tiny(x))


def test_a_layer_of_nnx_that_underflows_is_found_by_its_name() -> None:
    network = Net()
    optimizer, scaler = (
        nnx.Optimizer(network, optax.sgd(1e-2), wrt=nnx.Param),
        unamp.GradScaler(1.0),
    )
    watch = unamp.watch(network, optimizer, scaler=scaler, every=1)

    def scaled(network):
        with unamp.autocast(dtype="float16"):
            return scaler.scale(jnp.mean(network(X) ** 2))

    def step() -> None:
        gradients = nnx.grad(scaled)(network)
        with watch.step(gradients):
            scaler.step(optimizer, network, gradients=gradients)
            scaler.update()

    finds_the_layer_that_underflows(watch, 2, step)


def test_low_parameters_of_nnx_tell_what_rounding_swallows() -> None:
    network = Net()
    nnx.update(
        network, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), nnx.state(network, nnx.Param))
    )
    optimizer = nnx.Optimizer(network, optax.sgd(1e-3), wrt=nnx.Param)
    watch = unamp.watch(network, optimizer, dtype="bfloat16")
    gradients = nnx.grad(
        lambda network: jnp.mean(network(X.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)
    )(network)
    with watch.step(gradients):
        optimizer.update(network, gradients)
    assert all(
        0.0 < layer.swallowed < 1.0
        for layer in watch.history.samples[0].layers
        if layer.layer != "tiny"
    )


def test_parameters_that_are_values_are_told() -> None:
    parameters = {
        "dense": {
            "kernel": jnp.full((8, 8), 1.25, jnp.bfloat16),
            "bias": jnp.zeros(8, jnp.bfloat16),
        }
    }
    transformation = optax.sgd(1e-3)
    state = transformation.init(parameters)

    @jax.jit
    def gradients_of(parameters):
        return jax.grad(
            lambda p: jnp.mean(
                (X.astype(jnp.bfloat16) @ p["dense"]["kernel"] + p["dense"]["bias"]) ** 2
            )
        )(parameters)

    watch = unamp.watch(parameters, every=1, dtype="bfloat16")
    gradients = gradients_of(parameters)
    with watch.step(gradients, parameters=parameters, scale=jnp.float32(4.0)) as step:
        updates, state = transformation.update(gradients, state, parameters)
        updated = optax.apply_updates(parameters, updates)
        step.updated(updated)
    (sample,) = watch.history.samples
    (layer,) = sample.layers
    flat = [
        np.concatenate(
            [np.asarray(leaf, "float32").reshape(-1) for leaf in jax.tree.leaves(tree)]
        ).tolist()
        for tree in (parameters, gradients, updated)
    ]
    assert (sample.scale, layer.layer, layer.size) == (4.0, "dense", 72)
    assert layer.swallowed == pytest.approx(swallowed(*flat))
    assert 0.0 < layer.swallowed < 1.0
    with (
        pytest.raises(RuntimeError, match=r"say what became of them.*step\.updated"),
        watch.step(gradients, parameters=updated),
    ):
        pass
    with (
        pytest.raises(ValueError, match="of the form of the gradients"),
        watch.step(gradients, parameters={"other": X}),
    ):
        pass
    assert watch.steps == 1


def test_an_equinox_module_and_lists_have_names() -> None:
    import equinox as eqx

    network = eqx.nn.MLP(8, 8, 8, 1, key=jax.random.key(0))
    watch = unamp.watch(network)
    with watch.step(eqx.filter_grad(lambda network: jnp.mean(jax.vmap(network)(X) ** 2))(network)):
        pass
    assert [layer.layer for layer in watch.history.samples[0].layers] == ["layers.0", "layers.1"]


def test_what_cannot_be_looked_at() -> None:
    parameters = {"w": jnp.ones(3)}
    watch = unamp.watch(parameters)
    with pytest.raises(TypeError, match="gradients are values"):
        watch.step()

    def inside(gradients):
        with watch.step(gradients):
            return gradients

    with pytest.raises(unamp.NotExpressible, match="outside jit"):
        jax.jit(inside)(parameters)
    assert watch.steps == 0
    with watch.step(parameters):
        pass
    assert watch.steps == 1
