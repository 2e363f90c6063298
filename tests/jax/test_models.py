"""Models in the style of Hugging Face's flax modules run low with float32's results.

They are an encoder, a decoder and a model for images, with random weights. Each hands a dtype down
to every layer. At least nine tenths of the products are low, and the results agree with float32's
within the dtype's roundings.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

import unamp

HEADS = 4
PRODUCTS = {"linear", "matmul", "einsum", "bmm", "conv2d", "dot_general"}


class Projections(nn.Module):
    """Queries, keys and values of attention, in the dtype that the model hands down."""

    width: int
    bias: bool = True
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        made = [
            nn.Dense(self.width, use_bias=self.bias, dtype=self.dtype, name=name)(x)
            for name in ("query", "key", "value")
        ]
        return [each.reshape(*each.shape[:2], HEADS, -1) for each in made]


class BertLayer(nn.Module):
    """Attention, then a perceptron; each is added to its input and normalised after."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x, mask):
        width = x.shape[-1]
        query, key, value = Projections(width, dtype=self.dtype)(x)
        bias = lax.select(
            mask > 0, jnp.full(mask.shape, 0.0), jnp.full(mask.shape, jnp.finfo(self.dtype).min)
        )[:, None, None]
        weights = nn.dot_product_attention_weights(query, key, bias=bias, dtype=self.dtype)
        attended = jnp.einsum("...hqk,...khd->...qhd", weights, value).reshape(x.shape)
        x = nn.LayerNorm(dtype=self.dtype)(nn.Dense(width, dtype=self.dtype)(attended) + x)
        hidden = nn.gelu(nn.Dense(2 * width, dtype=self.dtype)(x), approximate=False)
        return nn.LayerNorm(dtype=self.dtype)(nn.Dense(width, dtype=self.dtype)(hidden) + x)


class Bert(nn.Module):
    """An encoder of words, with a pooled answer."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, words):
        x = nn.Embed(50, 32, dtype=self.dtype)(words)
        x = nn.LayerNorm(dtype=self.dtype)(
            x + nn.Embed(16, 32, dtype=self.dtype)(jnp.arange(words.shape[1])[None])
        )
        for _ in range(2):
            x = BertLayer(dtype=self.dtype)(x, jnp.ones(words.shape))
        return jnp.tanh(nn.Dense(32, dtype=self.dtype)(x[:, 0]))


class RootMeanSquare(nn.Module):
    """The norm of Llama; its own code computes the squares in float32."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        weight = self.param("weight", lambda _, shape: jnp.ones(shape), x.shape[-1])
        variance = jnp.power(jnp.asarray(x, dtype=jnp.float32), 2).mean(-1, keepdims=True)
        return weight * jnp.asarray(x / jnp.sqrt(variance + 1e-6), dtype=self.dtype)


def rotated(x):
    """Return the two halves of each head, rotated by the position."""
    angles = jnp.arange(x.shape[1])[:, None] / 100.0 ** (jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    sine, cosine = (jnp.concatenate([f(angles)] * 2, -1)[None, :, None] for f in (jnp.sin, jnp.cos))
    first, second = jnp.split(x, 2, -1)
    return x * cosine + jnp.concatenate([-second, first], -1) * sine


class LlamaLayer(nn.Module):
    """Causal attention with rotated positions, then a gated perceptron, each after a norm."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        dense = lambda size: nn.Dense(size, use_bias=False, dtype=self.dtype)  # noqa: E731
        query, key, value = Projections(width, bias=False, dtype=self.dtype)(
            RootMeanSquare(dtype=self.dtype)(x)
        )
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]), dtype="bool")
        bias = lax.select(
            mask, jnp.full(mask.shape, 0.0), jnp.full(mask.shape, jnp.finfo(self.dtype).min)
        )
        weights = nn.dot_product_attention_weights(
            rotated(query), rotated(key), bias=bias, dtype=self.dtype
        )
        x = x + dense(width)(jnp.einsum("...hqk,...khd->...qhd", weights, value).reshape(x.shape))
        normed = RootMeanSquare(dtype=self.dtype)(x)
        return x + dense(width)(dense(2 * width)(normed) * nn.silu(dense(2 * width)(normed)))


class Llama(nn.Module):
    """A decoder of words."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, words):
        x = nn.Embed(50, 32, dtype=self.dtype)(words)
        for _ in range(2):
            x = LlamaLayer(dtype=self.dtype)(x)
        return nn.Dense(50, use_bias=False, dtype=self.dtype)(RootMeanSquare(dtype=self.dtype)(x))


class ViT(nn.Module):
    """Patches of an image, encoded."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, image):
        patches = nn.Conv(32, (4, 4), strides=(4, 4), padding="VALID", dtype=self.dtype)(image)
        x = patches.reshape(image.shape[0], -1, 32)
        first = self.param("first", nn.initializers.zeros, (1, 1, 32))
        x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, 32)), x], 1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], 32))
        for _ in range(2):
            x = BertLayer(dtype=self.dtype)(x, jnp.ones(x.shape[:2]))
        return nn.Dense(10, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)[:, 0])


WORDS = jax.random.randint(jax.random.key(0), (2, 8), 0, 50)
NETWORKS = {
    "Bert": (Bert, WORDS),
    "Llama": (Llama, WORDS),
    "ViT": (ViT, jax.random.normal(jax.random.key(1), (2, 16, 16, 3))),
}


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_nine_tenths_of_the_products_are_low(name, level):
    made, given = NETWORKS[name]
    network = made()
    variables = network.init(jax.random.key(2), given)
    plain = network.apply(variables, given)
    with unamp.trace() as trace, unamp.autocast(level=level, dtype="bfloat16"):
        jax.eval_shape(network.apply, variables, given)
    computed = [each.compute for each in trace.records if each.op in PRODUCTS]
    assert len(computed) >= 17
    assert computed.count("bfloat16") >= 0.9 * len(computed)
    with unamp.autocast(level=level, dtype="bfloat16"):
        low = np.float32(jax.jit(network.apply)(variables, given))
    error = np.abs(low - plain).max() / np.abs(plain).max()
    assert 0 < error < 0.06  # some sixteen roundings of 2**-8 in a row


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_float32_and_agree(name):
    made, given = NETWORKS[name]
    network = made()
    variables = network.init(jax.random.key(2), given)

    def loss(variables):
        return jnp.float32(network.apply(variables, given) ** 2).mean()

    plain = jax.grad(loss)(variables)
    with unamp.autocast(dtype="bfloat16"):
        low = jax.jit(jax.grad(loss))(variables)
    assert {leaf.dtype for leaf in jax.tree.leaves(low)} == {np.dtype("float32")}

    def norm(tree):
        return np.sqrt(sum(np.square(np.float64(leaf)).sum() for leaf in jax.tree.leaves(tree)))

    assert 0 < norm(jax.tree.map(lambda a, b: a - b, low, plain)) / norm(plain) < 0.06
