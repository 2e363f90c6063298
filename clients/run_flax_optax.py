"""flax with optax: training steps of a convolutional network of nnx.

The native way is flax's `dtype=`.
"""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import optax
from client import measure
from flax import nnx


class Net(nnx.Module):
    def __init__(self, dtype, rngs):
        self.conv, self.norm = (
            nnx.Conv(3, 32, (3, 3), dtype=dtype, rngs=rngs),
            nnx.BatchNorm(32, dtype=dtype, rngs=rngs),
        )
        self.attention = nnx.MultiHeadAttention(4, 32, dtype=dtype, decode=False, rngs=rngs)
        self.head = nnx.Linear(32, 10, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.conv(x))).reshape(x.shape[0], -1, 32)
        return self.head(self.attention(x).mean(1))


def build(region, dtype=None):
    model = Net(dtype, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    x, labels = jax.random.normal(jax.random.key(1), (8, 16, 16, 3)), jnp.arange(8)

    @nnx.jit
    def train(model, optimizer):
        def loss(model):
            with region():
                logits = model(x)
            return optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), labels
            ).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return lambda: float(train(model, optimizer))


measure(build, lambda: build(nullcontext, jnp.bfloat16))
