"""`paddle.distribution` draws the same numbers and probabilities in a region as outside."""

from contextlib import suppress

import paddle
import pytest
from paddle import distribution, nn
from threaded import open_in_another_thread

import unamp
from unamp import Policy, policy_region

POLICIES = [
    Policy("O2", "bfloat16"),
    Policy("O2", "float16"),
    Policy("O3", "float16"),
    Policy("O1", "bfloat16", allow=["log", "log1p"]),
]

A, B = paddle.to_tensor([0.6, 1.1, 1.4]), paddle.to_tensor([1.3, 0.7, 0.9])
P = paddle.to_tensor([0.3, 0.5, 0.2])

#: Distributions and their parameters. In a low dtype, many drew infinities, or only a few numbers.
MADE = {
    "Bernoulli": (distribution.Bernoulli, (P,)),
    "Beta": (distribution.Beta, (A, B)),
    "Binomial": (lambda p: distribution.Binomial(paddle.to_tensor(20), p), (P,)),
    "Categorical": (distribution.Categorical, (A,)),
    "Cauchy": (distribution.Cauchy, (A, B)),
    "Chi2": (distribution.Chi2, (A,)),
    "ContinuousBernoulli": (distribution.ContinuousBernoulli, (P,)),
    "Dirichlet": (distribution.Dirichlet, (A,)),
    "Exponential": (distribution.Exponential, (A,)),
    "Gamma": (distribution.Gamma, (A, B)),
    "Geometric": (distribution.Geometric, (P,)),
    "Gumbel": (distribution.Gumbel, (A, B)),
    "Independent": (
        lambda a, b: distribution.Independent(distribution.Normal(a, b), 1),
        (300 * A, B),
    ),
    "Laplace": (distribution.Laplace, (A, B)),
    "LogNormal": (distribution.LogNormal, (A, B)),
    "Multinomial": (lambda p: distribution.Multinomial(10, p), (P,)),
    "MultivariateNormal": (distribution.MultivariateNormal, (A, paddle.diag(B))),
    "Normal": (distribution.Normal, (A, B)),
    "Poisson": (distribution.Poisson, (300 * A,)),
    "StudentT": (distribution.StudentT, (3 * A, A, B)),
    "Uniform": (distribution.Uniform, (-A, B)),
}


def _drawn(name, dtype=paddle.float32):
    """Return a draw from a distribution, its probabilities, the entropy, and a divergence."""
    make, values = MADE[name]
    paddle.seed(0)
    made = make(*(value.astype(dtype) for value in values))
    results = [made.sample([2000])]
    for more in (
        lambda: made.log_prob(results[0]),
        lambda: made.prob(results[0]),
        lambda: made.rsample([2000]),
        made.entropy,
        lambda: distribution.kl_divergence(made, made),
    ):
        with suppress(NotImplementedError):
            results.append(more())
    return results


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", MADE)
def test_draws_and_their_probabilities_are_those_outside_of_the_region(name, policy):
    outside = _drawn(name)
    with policy_region(policy):
        inside = _drawn(name)
    for number, (mine, theirs) in enumerate(zip(inside, outside, strict=True)):
        if name == "LogNormal" and number == 1:
            # A transformed distribution adds up the results of its transforms, under the policy.
            assert paddle.allclose(mine.astype("float32"), theirs, rtol=0.05, atol=0.1)
            continue
        assert mine.dtype == theirs.dtype
        assert paddle.equal_all(mine, theirs)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", ["Bernoulli", "Gumbel", "Laplace", "Normal", "StudentT"])
def test_a_distribution_of_low_parameters_is_float32(name, level):
    expected = [value.astype("float16").astype("float32") for value in MADE[name][1]]
    paddle.seed(0)
    expected = MADE[name][0](*expected).sample([2000])
    with unamp.autocast("cpu", level=level, dtype="float16"):
        drawn, probability, *_ = _drawn(name, "float16")
    assert paddle.equal_all(drawn, expected)
    assert probability.dtype == paddle.float32
    assert paddle.isfinite(probability).all()


def test_a_distribution_that_was_made_outside_of_the_region_computes_in_float32():
    prior, low = distribution.Laplace(paddle.zeros([3]), paddle.ones([3])), A.astype("bfloat16")
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        probability = prior.log_prob(low)
        divergence = distribution.kl_divergence(prior, prior)
    assert paddle.equal_all(probability, prior.log_prob(low.astype("float32")))
    assert probability.dtype == divergence.dtype == paddle.float32


def test_it_is_the_dtype_of_its_parameters_where_no_policy_reaches_it():
    low = A.astype("bfloat16")
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        with unamp.autocast("cpu", enabled=False):
            assert distribution.Normal(low, low).sample([2]).dtype == paddle.bfloat16
        assert distribution.Normal(low, low).sample([2]).dtype == paddle.float32


@pytest.mark.parametrize("method", ["sample", "prob"])
def test_what_a_program_makes_of_a_distribution_follows_the_policy(method):
    class Coupling(distribution.Transform):
        def __init__(self):
            super().__init__()
            self.network, self.seen = nn.Linear(3, 3), None

        def _forward(self, x):
            result = self.network(x)
            self.seen = result.dtype
            return result

    class Judging(distribution.Distribution):
        def __init__(self):
            super().__init__()
            self.network = nn.Linear(3, 1)

        def log_prob(self, value):
            result = self.network(value)
            self.seen = result.dtype
            return result

    coupling, judging = Coupling(), Judging()
    base = distribution.Independent(distribution.Normal(paddle.zeros([3]), paddle.ones([3])), 1)
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        coupling.forward(base.sample())
        judging.prob(A)
    assert coupling.seen == judging.seen == paddle.bfloat16


def test_nothing_of_it_stands_outside_of_regions_nor_in_other_threads():
    method, make = distribution.Laplace.rsample, distribution.Laplace.__init__
    before = method.__code__, make.__code__
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        assert method.__code__ is not before[0]
        with unamp.autocast("cpu", level="O3", dtype="float16"):
            pass
        assert method.__code__ is not before[0]
    assert (method.__code__, make.__code__) == before

    low = A.astype("bfloat16")
    with open_in_another_thread(Policy("O2", "bfloat16"), lambda: None):
        assert method.__code__ is not before[0]
        assert distribution.AffineTransform(low, low).loc.dtype == paddle.bfloat16


def _judged(a, b):
    made, prior = distribution.Laplace(a, b), distribution.Laplace(b, a)
    normal = distribution.Normal(a, b)
    return (
        made.log_prob(b), made.cdf(b), distribution.kl_divergence(made, prior), normal.log_prob(a),
        normal.prob(b), paddle.matmul(a, b),
    )  # fmt: skip


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("full_graph", [True, False])
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
def test_compiled_probabilities_of_low_tensors_are_float32(inside, full_graph, level):
    a, b = A.astype("bfloat16"), B.astype("bfloat16")
    region = unamp.autocast("cpu", level=level, dtype="bfloat16")
    function = region(_judged) if inside else _judged
    compiled = paddle.jit.to_static(function, full_graph=full_graph)
    if inside:
        *results, product = compiled(a, b)
    else:
        with region:
            *results, product = compiled(a, b)
    assert product.dtype == paddle.bfloat16
    *expected, _ = _judged(a.astype("float32"), b.astype("float32"))
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.dtype == paddle.float32
        assert paddle.allclose(mine, theirs)
