"""A trace keeps calls of JAX, and each can be run again alone."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import replayed
from flax import linen, nnx


class Net(nnx.Module):
    """Layers and functions whose arguments are kept in different ways."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table, self.dense = nnx.Embed(5, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.norm, self.batch = (
            nnx.LayerNorm(8, rngs=rngs),
            nnx.BatchNorm(4, use_running_average=True, rngs=rngs),
        )
        self.conv = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.grouped = nnx.Conv(
            4, 4, (3, 1), padding=((1, 1), (0, 0)), feature_group_count=2, rngs=rngs
        )

    def __call__(self, index: jax.Array) -> jax.Array:
        x = self.table(index)
        h = jax.nn.gelu(jax.nn.gelu(self.norm(self.dense(x))), approximate=False)
        h = jax.nn.softmax(jnp.matmul(h, jnp.tanh(h).T) * 2.0, axis=0)
        images = self.grouped(self.batch(self.conv(x.reshape(4, 4, 4, 1))))
        pooled = nnx.max_pool(jax.nn.relu(images), (2, 2), (2, 2))
        return pooled.sum() + (2.0 ** (1.0 / (3.0 - h.mean(1, keepdims=True)))).sum()


class Linen(linen.Module):
    """The same layers in linen, whose parameters are outside of the layer."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = linen.LayerNorm()(linen.Dense(8)(x))
        images = linen.Conv(4, (2, 2), strides=(2, 1))(h.reshape(4, 2, 4, 1))
        return linen.BatchNorm(use_running_average=True)(images) + images**2


def run() -> None:
    Net(nnx.Rngs(0))(jnp.asarray([0, 3, 1, 2]))


@pytest.mark.parametrize("low", ["", "bfloat16"])
def test_every_operation_comes_out_as_in_the_run(low: str, tmp_path: Path) -> None:
    replayed.check_run(
        run, tmp_path / "run", low, "tensorflow", "batch_norm conv2d max_pool2d mean".split()
    )


def test_linens_layers_and_primitives_are_kept_also_in_jit_and_in_grad(tmp_path: Path) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 16)), jnp.float32)
    network = Linen()
    variables = network.init(jax.random.key(0), x)

    @jax.jit
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.tanh(network.apply(variables, x)))

    trace = replayed.kept(lambda: jax.grad(loss)(x), tmp_path / "run")
    replayed.check_every_call(
        trace, tmp_path / "run", "add batch_norm conv2d layer_norm linear pow sum tanh".split()
    )


def test_what_has_no_numbers_says_so(tmp_path: Path) -> None:
    def run() -> None:
        jax.vmap(jnp.exp)(jnp.ones((2, 3)))
        jnp.sum(jnp.ones(3), where=jnp.asarray([True, False, True]))

    trace = replayed.kept(run, tmp_path / "run")
    assert replayed.left_out(trace) == {
        "exp": "a transformation (jax.vmap, a custom rule) runs it without numbers",
        "sum": (
            "it has a mask or an initial value, "
            "for which the canonical signature has no argument here"
        ),
    }
