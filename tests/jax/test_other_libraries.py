"""Libraries on JAX that do not know unamp compute low in a region, close to float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optimistix
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.optim import SGD

import unamp
from unamp.tracing.work import work_of

U = 2.0**-8  # bfloat16's unit roundoff
X, Y = (
    np.asarray(jax.random.normal(jax.random.key(1), (32, 8))),
    np.linspace(-1, 1, 32, dtype=np.float32),
)


def products(step: Callable[[], Any]) -> set[tuple[str, str]]:
    """Return the operations in which a step multiplies, with the dtype of each.

    The step runs in a region in bfloat16.
    """
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        step()
    return {
        (record.op, record.compute)
        for record in trace.records
        if (work := work_of(record)) is not None and work.products
    }


def regression(x: jax.Array, y: jax.Array) -> None:
    w1 = numpyro.sample("w1", dist.Normal(0, 1).expand([8, 16]).to_event(2))
    w2 = numpyro.sample("w2", dist.Normal(0, 1).expand([16, 1]).to_event(2))
    numpyro.sample("y", dist.Normal((jnp.tanh(x @ w1) @ w2)[:, 0], 1.0), obs=y)


def bound_of_means(w1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    """Return the largest error of the means of `regression` with products in bfloat16.

    To the first order, a product of two rounded matrices is off by 2u of the sum of the magnitudes.
    Rounding the float32 sum adds u of the product. 3.1u of the sum of the magnitudes covers both.
    tanh does not enlarge an error, and rounds once more.
    """
    hidden = 3.1 * U * np.abs(X) @ np.abs(w1) + 2 * U
    return ((hidden @ np.abs(w2)) + 3.1 * U * np.abs(np.tanh(X @ w1)) @ np.abs(w2))[:, 0]


def test_variational_inference_of_numpyro() -> None:
    inference = SVI(regression, AutoDelta(regression), SGD(1e-3), Trace_ELBO())
    start = inference.init(jax.random.key(0), X, Y)
    w1, w2 = (np.asarray(inference.get_params(start)[f"{name}_auto_loc"]) for name in ("w1", "w2"))

    def update(state: Any) -> Any:
        return inference.update(state, X, Y)

    def trained(region: Callable[[], Any]) -> tuple[list[float], Any]:
        state, losses = start, []
        step = jax.jit(update)
        for _ in range(10):
            with region():
                state, loss = step(state)
            losses.append(float(loss))
        return losses, inference.get_params(state)

    exact, _ = trained(nullcontext)
    low, parameters = trained(lambda: unamp.autocast(dtype="bfloat16"))
    off = bound_of_means(w1, w2)
    away = np.abs(Y - (np.tanh(X @ w1) @ w2)[:, 0])
    # The loss is half the sum of squared distances to the means, and 32 times log(sqrt(2 pi)),
    # which is below 1.
    assert 0 < abs(low[0] - exact[0]) <= np.sum(away * off + off**2 / 2) + 32 * U
    assert low == sorted(low, reverse=True)
    assert {str(each.dtype) for each in parameters.values()} == {"float32"}
    assert products(lambda: update(start)) == {("matmul", "bfloat16")}


def test_a_differential_equation_of_diffrax() -> None:
    field = eqx.nn.Linear(4, 4, use_bias=False, key=jax.random.key(0))
    # the weight's norm is 1, so an error grows by a factor of e at most, over a time of 1
    weight = field.weight / jnp.abs(field.weight).sum(1).max()
    field = eqx.tree_at(lambda layer: layer.weight, field, weight)
    start = jnp.asarray([1.0, -0.5, 0.25, 0.75])

    def solved(field: Any) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, arguments: field(y))
        return diffrax.diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 0.1, start).ys[-1]

    def squares(field: Any) -> jax.Array:
        return jnp.sum(solved(field).astype(jnp.float32) ** 2)

    exact, gradient = eqx.filter_jit(solved)(field), eqx.filter_grad(squares)(field).weight
    with unamp.autocast(dtype="bfloat16"):
        low, low_gradient = eqx.filter_jit(solved)(field), eqx.filter_grad(squares)(field).weight
    # Each slope is off by 3.1u of a state, whose magnitudes add up to e at most. The error grows by
    # a factor of e - 1.
    assert 0 < np.abs(low.astype(np.float32) - exact).max() <= 3.1 * U * np.e * (np.e - 1)
    assert low_gradient.dtype == jnp.float32
    # The gradient is a product of two solutions and the slope: three times as many errors, each
    # multiplied with magnitudes below e.
    assert np.abs(low_gradient - gradient).max() <= 3 * 2 * np.e * 3.1 * U * np.e * (np.e - 1)
    # The solver adds its slopes in a product, and states the highest precision: float32.
    assert products(lambda: solved(field)) == {("linear", "bfloat16"), ("tensordot", "float32")}


#: A contraction by a half, whose numbers bfloat16 has.
MATRIX = np.asarray([[0.25, -0.25], [0.125, 0.375]], np.float32)
VECTOR = np.asarray([1.0, -0.5], np.float32)
STRUCTURE = jax.ShapeDtypeStruct((2,), jnp.float32)


def fixed_point(matrix: jax.Array) -> jax.Array:
    solver = optimistix.FixedPointIteration(1e-2, 1e-2)
    found = optimistix.fixed_point(lambda y, _: matrix @ y + VECTOR, solver, jnp.asarray(VECTOR))
    return found.value


def least_squares(matrix: jax.Array) -> jax.Array:
    solver = optimistix.LevenbergMarquardt(1e-2, 1e-2)
    found = optimistix.least_squares(
        lambda y, _: y - matrix @ y - VECTOR, solver, jnp.asarray(VECTOR)
    )
    return found.value


def linear_solve(matrix: jax.Array) -> jax.Array:
    operator = lineax.FunctionLinearOperator(lambda y: y - matrix @ y, STRUCTURE)
    return lineax.linear_solve(operator, jnp.asarray(VECTOR)).value


def jacobian_solve(matrix: jax.Array) -> jax.Array:
    operator = lineax.JacobianLinearOperator(lambda y, _: y - matrix @ y, jnp.asarray(VECTOR))
    return lineax.linear_solve(operator, jnp.asarray(VECTOR)).value


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("solve", [fixed_point, least_squares, linear_solve, jacobian_solve])
def test_solvers_take_functions_that_multiply_low(solve: Any, level: str) -> None:
    """The solvers are those of optimistix and lineax, which compare dtypes strictly."""
    matrix = jnp.asarray(MATRIX)
    exact = np.linalg.solve(np.eye(2) - MATRIX, VECTOR)
    for run in (solve, jax.jit(solve)):
        with unamp.autocast(level=level, dtype="bfloat16"):
            found = run(matrix)
        assert found.dtype == jnp.float32
        # The solver's tolerance is 1e-2, relative and absolute. The inverse at most doubles an
        # error, and roundings are a few hundredths.
        np.testing.assert_allclose(found, exact, rtol=0.05, atol=0.05)
        plain = run(matrix)  # outside of the region
        np.testing.assert_allclose(plain, exact, rtol=0.03, atol=0.03)
    assert ("matmul", "bfloat16") in products(lambda: solve(matrix))


@pytest.mark.parametrize("solve", [fixed_point, least_squares, linear_solve, jacobian_solve])
def test_gradients_of_solutions_are_float32(solve: Any) -> None:
    def total(matrix: jax.Array) -> jax.Array:
        return solve(matrix).sum()

    exact = jax.grad(total)(jnp.asarray(MATRIX))
    with unamp.autocast(dtype="bfloat16"):
        found = jax.grad(total)(jnp.asarray(MATRIX))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=0.1, atol=0.1)


def test_a_solver_traces_its_function_once_for_a_policy() -> None:
    traced = []

    def function(y: jax.Array, _: object) -> jax.Array:
        traced.append(y.dtype)
        return jnp.asarray(MATRIX) @ y + VECTOR

    solver, start = optimistix.FixedPointIteration(1e-2, 1e-2), jnp.asarray(VECTOR)
    counts = []
    for _ in range(3):
        with unamp.autocast(dtype="bfloat16"):
            optimistix.fixed_point(function, solver, start)
        counts.append(len(traced))
    assert counts[0] == counts[1] == counts[2]
