"""Products of sparse matrices: those by `@`, and those by functions of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import sparse

import unamp

X = jax.random.normal(jax.random.key(0), (8, 8))
LEFT = sparse.BCOO.fromdense(jnp.triu(X))


def product(left, right):
    return sparse.bcoo_dot_general(left, right, dimension_numbers=(((1,), (0,)), ((), ())))


PRODUCTS = {
    "bcoo_dot_general": lambda: product(LEFT, X),
    "of two sparse matrices": lambda: product(LEFT, LEFT).todense(),
    "compiled": lambda: jax.jit(product)(LEFT, X),
    "csr": lambda: sparse.CSR.fromdense(jnp.triu(X)) @ X,
    "csr, a vector": lambda: sparse.CSR.fromdense(jnp.triu(X)) @ X[0],
    "coo": lambda: sparse.COO.fromdense(jnp.triu(X)) @ X,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_a_sparse_matrix_follows_its_rule(name):
    call = PRODUCTS[name]
    wanted = call()
    for own, dtype in (({}, "float32"), ({"level": "O2"}, "bfloat16")):
        with unamp.autocast(dtype="bfloat16", **own):
            assert call().dtype == dtype
    with unamp.autocast(dtype="bfloat16", allow=["sparse_mm"]):
        low = call()
    assert low.dtype == jnp.bfloat16
    assert 0 < jnp.abs(low.astype(jnp.float32) - wanted).max() < 0.1
    assert (call() == wanted).all()


@pytest.mark.parametrize("right", [X, LEFT], ids=["dense", "sparse"])
def test_a_product_by_an_operator_is_one_operation(right):
    with unamp.autocast(dtype="bfloat16"), unamp.trace() as trace:
        result = LEFT @ right
    assert result.dtype == jnp.bfloat16
    assert [(each.op, each.compute) for each in trace.records] == [("matmul", "bfloat16")]
    text = str(jax.make_jaxpr(unamp.autocast(dtype="bfloat16")(lambda a, b: a @ b))(LEFT, right))
    assert "reduce_precision" not in text  # nothing low is widened again


def test_another_thread_and_a_finished_program_follow_no_rule():
    finished = jax.jit(product).lower(LEFT, X).compile()
    with ThreadPoolExecutor(1) as pool, unamp.autocast(level="O2", dtype="bfloat16"):
        there = pool.submit(lambda: (product(LEFT, X), LEFT @ X, X.at[0].set(0.0))).result()
        assert finished(LEFT, X).dtype == jnp.float32
    for found, wanted in zip(there, (product(LEFT, X), LEFT @ X, X.at[0].set(0.0)), strict=True):
        assert found.dtype == jnp.float32
        assert (found == wanted).all()
