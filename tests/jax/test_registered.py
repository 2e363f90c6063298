"""Registered operations of a user on JAX keep the promises of the module `registered`."""

import equinox as eqx
import jax
import pytest
import registered
from flax import nnx
from registered import test_promises  # noqa: F401

import unamp


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
            _, rows = jax.lax.scan(
                lambda carry, row: (carry, registered.product(row[None], w)), 0, x
            )
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


@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, x, w):
        self.x, self.w = x, w

    def tree_flatten(self):
        return (self.x, self.w), None

    @classmethod
    def tree_unflatten(cls, metadata, children):
        return cls(*children)


class Module(eqx.Module):
    x: jax.Array
    w: jax.Array


@pytest.mark.parametrize("container", [Pair, Module])
def test_arrays_in_pytrees_are_cast(container):
    registered.a_container_is_opened("jax", container)


def test_compiled_calls_with_pytrees():
    operation = unamp.register_operation("unamp_tests::pytree", rule="low")
    product = operation(lambda pair: Pair(pair.x @ pair.w, None))
    x, w = jax.numpy.asarray(registered.X), jax.numpy.asarray(registered.W)
    calls = jax.jit(lambda pair: product(pair))
    with unamp.autocast(dtype="bfloat16"):
        assert calls(Pair(x, w)).x.dtype == "bfloat16"
        gradient = jax.grad(lambda pair: product(pair).x.astype("float32").sum())(Pair(x, w))
    assert calls(Pair(x, w)).x.dtype == "float32"
    assert (gradient.x.dtype, float(gradient.x[0, 0])) == ("float32", 2.0)
    operation.undo()


def test_state_that_would_be_lost_is_refused():
    operation = unamp.register_operation("unamp_tests::module", rule="low")
    call = operation(lambda module, x: module(x))
    x = jax.numpy.ones((4, 4))
    linear, norm = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    before = norm.mean[...]
    with unamp.autocast(dtype="bfloat16"):
        assert call(linear, x).dtype == "bfloat16"
        with pytest.raises(unamp.NotExpressible, match="changes an argument in place"):
            call(norm, x)
    assert norm.mean[...] is before
    call(norm, x)
    operation.undo()
    assert norm.mean[...] is not before
