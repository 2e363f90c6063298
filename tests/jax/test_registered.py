"""Operations of one's own on JAX: see `registered`."""

from collections.abc import Callable

import jax
import pytest
import registered

import unamp


@pytest.mark.parametrize("promise", registered.promises("jax"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()


@jax.custom_vjp
def doubled(x):
    return x + x


doubled.defvjp(lambda x: (x + x, None), lambda _, gradient: (2 * gradient,))


def test_compiled_and_transformed_functions():
    calls = jax.jit(lambda x, w: registered.product(x, w) + 0)
    with registered.registered("jax", "low") as ops:
        x, w = ops.tensor(registered.X), ops.tensor(registered.W)
        assert calls(x, w).dtype == "float32"
        with unamp.autocast(dtype="bfloat16"):
            assert calls(x, w).dtype == "bfloat16"
            assert jax.vmap(lambda row: registered.product(row[None], w))(x).dtype == "bfloat16"
            _, rows = jax.lax.scan(lambda carry, row: (carry, registered.product(row[None], w)), 0, x)
            assert rows.dtype == "bfloat16"
            gradient = jax.grad(lambda x: registered.product(x, w).astype("float32").sum())(x)
            assert gradient.dtype == "float32"
        with unamp.autocast(dtype="bfloat16", deny=registered.NAME):
            assert calls(x, w).dtype == "float32"


def test_a_function_with_a_gradient_of_its_own():
    registration = unamp.register_operation("unamp_tests::doubled", doubled, rule="low")
    x = jax.numpy.full(4, 1 + 2.0**-9)
    with unamp.autocast(dtype="bfloat16"):
        low = doubled(x)
        gradient = jax.grad(lambda x: doubled(x).astype("float32").sum())(x)
    registration.undo()
    assert (low.dtype, float(low[0])) == ("bfloat16", 2.0)
    assert (gradient.dtype, float(gradient[0])) == ("float32", 2.0)
    assert isinstance(doubled, jax.custom_vjp)
