"""`nn.probability` draws the same numbers and probabilities in a region as outside."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.nn.probability import bijector, bnn_layers, distribution
from threaded import open_in_another_thread

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = mindspore.float32, mindspore.float16, mindspore.bfloat16

POLICIES = [
    Policy("O2", "bfloat16"),
    Policy("O2", "float16"),
    Policy("O3", "bfloat16"),
    Policy("O1", "bfloat16", allow=["log", "log1p"]),
]

VALUE, COUNT = Tensor([0.3, 0.6, 0.9], F32), Tensor([299.0, 301.0, 302.0], F32)
A, B = Tensor([0.6, 1.1, 1.4], F32), Tensor([1.3, 0.7, 0.9], F32)
RATE, CHANCE = Tensor([180.0, 330.0, 420.0], F32), Tensor([0.2, 0.3, 0.5], F32)

#: Cells, each with a method's name and the arguments of a call.
CALLED = {
    "Beta": (lambda: distribution.Beta(A, B), "log_prob", VALUE),
    "Beta.entropy": (lambda: distribution.Beta(A, B), "entropy"),
    "Categorical": (lambda: distribution.Categorical(CHANCE), "entropy"),
    "Gamma": (lambda: distribution.Gamma(A, B), "kl_loss", "Gamma", B, A),
    "Gumbel": (lambda: distribution.Gumbel(A, B), "sd"),
    "LogNormal": (lambda: distribution.LogNormal(A, B), "sample", (500,)),
    "Normal": (lambda: distribution.Normal(A, B), "log_cdf", VALUE),
    "Normal.sample": (lambda: distribution.Normal(RATE, B), "sample", (500,)),
    # in bfloat16 the logarithm was infinite, or the probability above 1
    "Poisson": (lambda: distribution.Poisson(RATE), "log_prob", COUNT),
    "StudentT": (lambda: distribution.StudentT(RATE, A, B), "prob", VALUE),
    "Uniform": (lambda: distribution.Uniform(CHANCE, B), "log_prob", VALUE),
    "TransformedDistribution": (
        lambda: distribution.TransformedDistribution(bijector.Exp(), distribution.Normal(A, B)),
        "log_prob",
        VALUE,
    ),
    "GumbelCDF": (lambda: bijector.GumbelCDF(), "inverse_log_jacobian", VALUE),
    "Invert": (lambda: bijector.Invert(bijector.Exp()), "forward", VALUE),
}

WAYS = ["method", "call", "graph", "graph of a method"]


def _computed(way, name):
    """Return the result of a call of a new cell."""
    make, method, *args = CALLED[name]
    mindspore.set_seed(0)
    cell = make()
    if way == "call":
        return cell(method, *args)
    if way == "graph of a method":
        return mindspore.jit(getattr(cell, method))(*args)

    def run():
        return getattr(cell, method)(*args)

    return mindspore.jit(run)() if way == "graph" else run()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("name", CALLED)
def test_draws_and_their_probabilities_are_those_outside_of_the_region(name, way, policy):
    outside = _computed(way, name)
    with policy_region(policy):
        inside = _computed(way, name)
    assert inside.dtype is F32
    assert np.isfinite(inside.asnumpy()).all()
    assert (inside.asnumpy() == outside.asnumpy()).all()


@pytest.mark.parametrize("way", WAYS[2:])
@pytest.mark.parametrize("name", ["Beta", "Poisson", "TransformedDistribution", "Invert"])
def test_they_are_in_a_graph_too(name, way):
    outside = _computed(way, name)
    with unamp.autocast(level="O2", dtype="bfloat16"):
        inside = _computed(way, name)
    assert inside.dtype is F32
    np.testing.assert_allclose(inside.asnumpy(), outside.asnumpy(), rtol=1e-6)


# MindSpore's bijectors refuse bfloat16, and in a graph unamp cannot widen it before the call.
@pytest.mark.parametrize(("compiled", "dtype"), [(False, BF16), (False, F16), (True, F16)])
def test_low_tensors_are_float32_first_and_their_gradients_are_low(compiled, dtype):
    exp, normal = bijector.Exp(), distribution.Normal(A, B)

    def probability(value):
        return normal.log_prob(exp.forward(value))

    run = mindspore.value_and_grad(probability)
    low = VALUE.astype(dtype)
    wide, of_wide = run(low.astype(F32))
    with unamp.autocast(level="O2", dtype=dtype):
        result, gradient = (mindspore.jit(run) if compiled else run)(low)
    assert (result.dtype, gradient.dtype) == (F32, dtype)
    np.testing.assert_allclose(result.asnumpy(), wide.asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(gradient.astype(F32).asnumpy(), of_wide.asnumpy(), rtol=2**-8)


def test_a_distribution_of_low_parameters_is_float32():
    low = A.astype(F16)
    with unamp.autocast(level="O2"):
        inside = distribution.Exponential(low).log_prob(VALUE)
    outside = distribution.Exponential(low.astype(F32)).log_prob(VALUE)
    assert (inside.asnumpy() == outside.asnumpy()).all()


def test_they_follow_the_dtypes_that_they_are_given_where_no_policy_reaches_them():
    low, exp = VALUE.astype(F16), bijector.Exp()
    assert exp.forward(low).dtype is F16
    with unamp.autocast(level="O2"):
        assert exp.forward(low).dtype is F32
        with unamp.autocast(enabled=False):
            assert exp.forward(low).dtype is F16
            assert mindspore.jit(exp.forward)(low).dtype is F16
    with open_in_another_thread(Policy("O2", "float16"), lambda: None):
        assert exp.forward(low).dtype is F16
    forward = bijector.Bijector.forward
    before = forward.__code__
    with unamp.autocast(level="O2"):
        assert forward.__code__ is not before
    assert forward.__code__ is before


class Coupling(bijector.Bijector):
    def __init__(self):
        super().__init__(name="coupling", dtype=F32, param={})
        self.network = nn.Dense(3, 3)

    def _forward(self, value):
        return self.network(value)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_bijector_of_a_program_s_own_follows_the_policy(compiled):
    coupling = Coupling()
    made = distribution.TransformedDistribution(coupling, distribution.Normal(A, B))

    def sample():
        return made.sample((2,))

    def forward():
        return coupling.forward(VALUE)

    with unamp.autocast(level="O2", dtype="bfloat16"):
        for run in (sample, forward):
            assert (mindspore.jit(run) if compiled else run)().dtype is BF16


def test_a_bayesian_layer_draws_float32_weights_and_computes_low():
    layer = bnn_layers.DenseReparam(3, 2)
    _, deviation = layer.weight_posterior("get_dist_args")
    with unamp.autocast(level="O2", dtype="bfloat16"):
        # In bfloat16, the logarithm of a number just above 1 was 0, or twice as large.
        _, inside = layer.weight_posterior("get_dist_args")
        assert layer(ops.ones((1, 3))).dtype is BF16
    assert inside.dtype is F32
    assert (inside.asnumpy() == deviation.asnumpy()).all()
