"""equinox with diffrax: training steps of a neural differential equation."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from client import measure


def build(region):
    field = eqx.nn.MLP(4, 4, 64, 2, activation=jax.nn.softplus, key=jax.random.key(0))
    optimizer = optax.sgd(1e-3)
    state = [field, optimizer.init(eqx.filter(field, eqx.is_array))]
    y0 = jax.random.normal(jax.random.key(1), (16, 4))

    def solved(field, y):
        term = diffrax.ODETerm(lambda t, y, args: field(y))
        return diffrax.diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 0.1, y).ys[-1]

    @eqx.filter_jit
    def train(field, moments):
        def loss(field):
            with region():
                ends = jax.vmap(lambda y: solved(field, y))(y0)
            return jnp.mean((ends.astype(jnp.float32) - 1) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(field)
        updates, moments = optimizer.update(gradients, moments)
        return value, eqx.apply_updates(field, updates), moments

    def step():
        value, *state[:] = train(*state)
        return float(value)

    return step


measure(build)
