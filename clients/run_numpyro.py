"""numpyro: steps of variational inference in a Bayesian neural network."""

import jax
import numpyro
import numpyro.distributions as dist
from client import measure
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import SGD

X = jax.random.normal(jax.random.key(1), (64, 16))


def network(x, y=None):
    w1 = numpyro.sample("w1", dist.Normal(0, 1).expand([16, 32]).to_event(2))
    w2 = numpyro.sample("w2", dist.Normal(0, 1).expand([32, 1]).to_event(2))
    mean = (jax.nn.tanh(x @ w1) @ w2)[:, 0]
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def build(region):
    inference = SVI(network, AutoNormal(network), SGD(1e-5), Trace_ELBO())
    state = [inference.init(jax.random.key(0), X, X[:, 0])]

    @jax.jit
    def update(state):
        with region():
            return inference.update(state, X, X[:, 0])

    def step():
        state[0], loss = update(state[0])
        return float(loss)

    return step


measure(build)
