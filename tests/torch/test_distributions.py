"""`torch.distributions` draws the same numbers and probabilities in a region as outside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import FunctionType

import pytest
import torch
from threaded import open_in_another_thread
from torch import Tensor, distributions, nn

import unamp
from unamp import Policy, policy_region

POLICIES = [
    Policy("O2", "bfloat16"),
    Policy("O2", "float16"),
    Policy("O3", "float16"),
    Policy("O1", "bfloat16", allow=["log", "log1p"]),
]

A, B = torch.tensor([0.6, 1.1, 1.4]), torch.tensor([1.3, 0.7, 0.9])

#: Distributions and their parameters. Computed in bfloat16, most drew infinities, raised, or gave
#: probabilities above 1.
MADE: dict[str, tuple[Callable[..., distributions.Distribution], tuple[Tensor, ...]]] = {
    "Beta": (distributions.Beta, (A, B)),
    "Categorical": (distributions.Categorical, (A / A.sum(),)),
    "Dirichlet": (distributions.Dirichlet, (A,)),
    "Gumbel": (distributions.Gumbel, (A, B)),
    "Independent": (
        lambda a, b: distributions.Independent(distributions.Normal(a, b), 1),
        (300 * A, B),
    ),
    "Kumaraswamy": (distributions.Kumaraswamy, (A, B)),
    "Laplace": (distributions.Laplace, (A, B)),
    "LogisticNormal": (distributions.LogisticNormal, (A, B)),
    "MultivariateNormal": (distributions.MultivariateNormal, (A, torch.diag(B))),
    "Poisson": (distributions.Poisson, (300 * A,)),
    "RelaxedBernoulli": (distributions.RelaxedBernoulli, (A, B / 2)),
    "StudentT": (distributions.StudentT, (3 * A, B)),
    "Uniform": (distributions.Uniform, (-A, B)),
    "Weibull": (distributions.Weibull, (A, B)),
}


def _drawn(name: str, low: torch.dtype = torch.float32) -> list[Tensor]:
    """Return a draw from a distribution, its log probability, the entropy, and gradients."""
    make, values = MADE[name]
    parameters = [value.to(low, copy=True).requires_grad_() for value in values]
    torch.manual_seed(0)
    made = make(*parameters)
    drawn = made.rsample((5000,)) if made.has_rsample else made.sample((5000,))
    results = [drawn, made.log_prob(drawn.detach())]
    with suppress(NotImplementedError):
        results.append(made.entropy())
    differentiable = [result.sum() for result in results if result.requires_grad]
    torch.autograd.backward(differentiable)
    return [*results, *(p.grad for p in parameters if p.grad is not None)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", MADE)
def test_draws_and_their_probabilities_are_those_outside_of_the_region(
    name: str, policy: Policy
) -> None:
    outside = _drawn(name)
    with policy_region(policy):
        inside = _drawn(name)
    # A transformed distribution adds up the results of its transforms, under the policy.
    transformed = isinstance(MADE[name][0](*MADE[name][1]), distributions.TransformedDistribution)
    for mine, theirs in zip(inside, outside, strict=True):
        assert torch.isfinite(mine).all()
        if not transformed:
            assert torch.equal(mine, theirs)
            assert mine.dtype is theirs.dtype
    if transformed:
        assert torch.equal(inside[0], outside[0])
        torch.testing.assert_close(inside[1].float(), outside[1], rtol=0.05, atol=0.1)


@pytest.mark.parametrize("name", ["Beta", "Gumbel", "Laplace", "Poisson", "StudentT"])
def test_a_distribution_of_low_parameters_is_float32(name: str) -> None:
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        drawn, probability, *_ = _drawn(name, torch.bfloat16)
    assert drawn.dtype is torch.float32
    assert torch.isfinite(drawn).all()
    assert torch.isfinite(probability).all()


def test_a_distribution_that_was_made_outside_of_the_region_computes_in_float32() -> None:
    prior = distributions.Laplace(torch.zeros(3), torch.ones(3))
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        probability = prior.log_prob(A.bfloat16())
        divergence = distributions.kl_divergence(prior, prior)
    assert torch.equal(probability, prior.log_prob(A.bfloat16().float()))
    assert probability.dtype is divergence.dtype is torch.float32


def test_it_is_the_dtype_of_its_parameters_where_no_policy_reaches_it() -> None:
    low = A.bfloat16()
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        with unamp.autocast("cpu", enabled=False):
            assert distributions.Normal(low, low).rsample().dtype is torch.bfloat16
        with unamp.autocast("cpu", dtype="bfloat16"):
            assert distributions.Normal(low, low).rsample().dtype is torch.bfloat16
        assert distributions.Normal(low, low).rsample().dtype is torch.float32


def test_a_transform_of_a_program_s_own_follows_the_policy() -> None:
    class Coupling(distributions.Transform):
        domain = codomain = distributions.constraints.real_vector
        bijective = True

        def __init__(self) -> None:
            super().__init__()
            self.network, self.seen = nn.Linear(3, 3), torch.float32

        def _call(self, x: Tensor) -> Tensor:
            result: Tensor = self.network(x)
            self.seen = result.dtype
            return result

    coupling, base = Coupling(), distributions.Normal(torch.zeros(3), torch.ones(3))
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        distributions.TransformedDistribution(distributions.Independent(base, 1), coupling).sample()
    assert coupling.seen is torch.bfloat16


def test_nothing_of_it_stands_outside_of_regions() -> None:
    method = distributions.Laplace.rsample
    before = method.__code__
    with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
        assert method.__code__ is not before
        with unamp.autocast("cpu", level="O3", dtype="float16"):
            pass
        assert method.__code__ is not before
    assert method.__code__ is before


@pytest.mark.parametrize(
    "function",
    [distributions.Laplace.rsample, nn.utils.parameters_to_vector],
    ids=lambda function: function.__qualname__,
)
def test_code_that_somebody_gives_a_function_between_regions_stays(
    function: FunctionType,
) -> None:
    def instead(*args: object, **kwargs: object) -> str:
        return "other code"

    region, before = unamp.autocast("cpu", level="O2", dtype="bfloat16"), function.__code__
    with region:
        pass
    function.__code__ = instead.__code__
    try:
        with region:
            assert function() == "other code"
        assert function.__code__ is instead.__code__
    finally:
        function.__code__ = before


@pytest.mark.beside_kernels
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
def test_compiled_draws_and_probabilities_are_those_outside_of_the_region(inside: bool) -> None:
    def compute(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = distributions.Laplace(a, b, validate_args=False)
        prior = distributions.Laplace(b, a, validate_args=False)
        return made.log_prob(b), made.cdf(b), distributions.kl_divergence(made, prior)

    def under(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
            return compute(a, b)

    function = under if inside else compute
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    if inside:
        results = compiled(A, B)
    else:
        with unamp.autocast("cpu", level="O2", dtype="bfloat16"):
            results = compiled(A, B)
    for mine, theirs in zip(results, compute(A, B), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.beside_kernels
@pytest.mark.parametrize("elsewhere", [False, True], ids=["on an island", "in another thread"])
def test_a_compiled_function_draws_by_the_policy_that_is_in_force_for_it(elsewhere: bool) -> None:
    a, b = A.bfloat16(), B.bfloat16()

    def judged(a: Tensor, b: Tensor) -> Tensor:
        return distributions.Gumbel(a, b, validate_args=False).log_prob(b)

    def on_an_island(a: Tensor, b: Tensor) -> Tensor:
        with unamp.autocast(enabled=False):
            return judged(a, b)

    compiled = torch.compile(
        judged if elsewhere else on_an_island, backend="aot_eager", fullgraph=True
    )
    low = Policy("O2", "bfloat16")
    with open_in_another_thread(low, lambda: None) if elsewhere else policy_region(low):
        assert compiled(a, b).dtype is torch.bfloat16
    assert compiled(a, b).dtype is torch.bfloat16
