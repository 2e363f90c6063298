"""Plain numbers beside low arrays take their dtype in functions of `jax.lax`.

Functions that a primitive carries are tested, too.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import unamp

X = jax.random.normal(jax.random.key(0), (4, 8))

CALLS = {
    "add": lambda y: lax.add(y, 1.0),
    "mul": lambda y: lax.mul(2.0, y),
    "max": lambda y: lax.max(y, 0.0),
    "of NumPy": lambda y: lax.sub(y, np.float32(0.5)),
    "weakly typed": lambda y: lax.mul(y, jnp.asarray(2.0)),
    "traced": lambda y: jax.jit(lax.mul)(y, 2.0),
    "clamp": lambda y: lax.clamp(-0.5, y, 0.5),
    "by name": lambda y: lax.clamp(min=-0.5, x=y, max=0.5),
    "pad": lambda y: lax.pad(y, 0.0, [(0, 1, 0), (0, 0, 0)]),
    "a primitive": lambda y: lax.max_p.bind(y, 0.5),
    "no operand": lambda y: y.at[jnp.array([9])].get(mode="fill", fill_value=0.5),
}


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
@pytest.mark.parametrize("name", CALLS)
def test_a_plain_number_takes_the_dtype_of_what_it_meets(name, level):
    call = CALLS[name]
    wanted = call(X)
    with unamp.autocast(level=level, dtype="bfloat16"):
        y = X @ jnp.eye(8)
        found, compiled = call(y), jax.jit(call)(y)
        gradient = jax.grad(lambda x: call(x @ jnp.eye(8)).astype(jnp.float32).sum())(X)
    assert found.dtype == compiled.dtype
    assert found.dtype == y.dtype or level == "OD"  # at OD, float32 except for the allow list
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, atol=0.03)
    np.testing.assert_allclose(np.asarray(compiled, np.float32), wanted, atol=0.03)
    assert gradient.dtype == jnp.float32


SCATTERS = {
    "set": lambda x: x.at[0].set(x[1]),
    "mul": lambda x: x.at[0].mul(x[1]),
    "min": lambda x: x.at[0].min(x[1]),
    "max": lambda x: x.at[0].max(x[1]),
    "subtract": lambda x: x.at[0].subtract(x[1]),
    "add": lambda x: x.at[0].add(x[1]),
    "divide": lambda x: x.at[0].divide(2.0),
    "power": lambda x: x.at[0].power(2.0),
    "apply": lambda x: x.at[0].apply(lambda v: jnp.sin(v) * 2),
    "segment_prod": lambda x: jax.ops.segment_prod(x, jnp.array([0, 0, 1, 1]), 2),
    "segment_max": lambda x: jax.ops.segment_max(x, jnp.array([0, 0, 1, 1]), 2),
    "a reduction from a number": lambda x: lax.reduce(x, jnp.float32(1), lax.add, (0,)),
    "two reductions": lambda x: lax.reduce(
        (x, x), (jnp.float32(0), jnp.float32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)
    )[1],
}  # fmt: skip


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
@pytest.mark.parametrize(
    ("name", "low"),
    [
        (name, low)
        for name in SCATTERS
        for low in (False, True)
        if not (low and name == "two reductions")
    ],
)  # the initial values of two reductions are float32
def test_a_function_that_combines_numbers_keeps_their_dtype(name, low, level):
    call = SCATTERS[name]
    wanted, x = call(X), X.astype(jnp.bfloat16) if low else X
    with unamp.autocast(level=level, dtype="bfloat16"):
        found, compiled = call(x), jax.jit(call)(x)
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, atol=0.06)
    np.testing.assert_allclose(np.asarray(compiled, np.float32), wanted, atol=0.06)


CHANGES = ["set", "mul", "min", "max", "subtract", "add", "divide", "power", "apply"]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_array_that_is_changed_at_an_index_keeps_its_dtype(name, level):
    call = SCATTERS[name]
    wanted = call(X)
    with unamp.autocast(level=level, dtype="bfloat16"):
        found, compiled, low = call(X), jax.jit(call)(X), call(X.astype(jnp.bfloat16))
    assert (found.dtype, compiled.dtype, low.dtype) == (jnp.float32, jnp.float32, jnp.bfloat16)
    # the numbers at other indices have not been rounded
    np.testing.assert_array_equal(found[2:], wanted[2:])
    np.testing.assert_array_equal(compiled[2:], wanted[2:])


def test_an_array_keeps_numbers_that_no_low_dtype_holds():
    counts, changed = jnp.array([1e6, 3.0, 70001.0]), jax.jit(lambda x: x.at[1].set(5.0))
    with unamp.autocast(level="O2", dtype="float16"), unamp.trace() as trace:
        found, compiled = counts.at[1].set(5.0), changed(counts)
    assert found.tolist() == compiled.tolist() == changed(counts).tolist() == [1e6, 5.0, 70001.0]
    assert {(each.op, each.compute) for each in trace.records} == {("scatter", "float32")}


def test_adding_at_an_index_of_a_low_array_follows_its_rule():
    ones = jnp.ones(1000, jnp.bfloat16)
    for level, total in (("O1", 1000), ("O3", 256)):  # in bfloat16 a sum of ones stops at 256
        with unamp.autocast(level=level, dtype="bfloat16"):
            found = jnp.zeros(1, jnp.bfloat16).at[jnp.zeros(1000, int)].add(ones)
        assert found.dtype == jnp.bfloat16
        assert found.tolist() == [total]


@pytest.mark.parametrize("name", ["divide", "power"])
def test_a_low_array_takes_float32_values_at_an_index_without_a_warning(name):
    x, values = jnp.full((4,), 3.0, jnp.bfloat16), jnp.float32(2)
    with warnings.catch_warnings(), unamp.autocast(level="O2", dtype="bfloat16"):
        warnings.simplefilter("error")
        found = getattr(x.at[0], name)(values)
    assert found.dtype == jnp.bfloat16
    assert found.tolist() == [{"divide": 1.5, "power": 9.0}[name], 3.0, 3.0, 3.0]


@pytest.mark.parametrize("name", ["mul", "max", "subtract", "divide"])
def test_what_combines_numbers_has_a_gradient(name):
    call = SCATTERS[name]
    wanted = jax.grad(lambda x: call(x).sum())(X)
    with unamp.autocast(level="O2", dtype="bfloat16"):
        found = jax.grad(lambda x: call(x).astype(jnp.float32).sum())(X)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=0.03)
