"""`unamp.trace` keeps every framework's promises on JAX; JAX's words for devices are known."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import traced
from absent import test_devices_that_are_not_there  # noqa: F401
from flax import nnx
from traced import (  # noqa: F401
    test_a_float32_run_and_a_low_one_are_compared,
    test_asking_for_operations_leaves_no_record,
    test_other_threads_are_not_recorded,
    test_the_first_infinity_is_found_where_it_comes_from,
    test_underflow_is_seen,
    test_values_are_those_of_the_result,
    test_without_values_no_number_is_looked_at,
)
from unamp_jax import adapter

import unamp

HAS, ABSENT, LIMITS = "jax has cpu", ("tpu:0", "rocm", "gpu", "cuda:0"), {"framework": "jax"}


def r(*shape):
    return jax.random.uniform(jax.random.key(0), shape)


def made():
    return jax.jit(lambda a: (a @ a) @ a), r(4, 4)


def test_the_work_of_operations_is_counted():
    image, attended = r(2, 9, 9, 4), (r(2, 4, 3, 5), r(2, 6, 3, 5), r(2, 6, 3, 5))
    linear, conv = (
        nnx.Linear(5, 6, rngs=nnx.Rngs(0)),
        nnx.Conv(4, 6, (3, 3), strides=2, padding="VALID", rngs=nnx.Rngs(0)),
    )
    rows, a, b, c, d = r(3, 7, 5), r(2, 3, 4, 5), r(3, 5, 6), r(3, 4, 5), r(4, 5, 6)
    traced.work_is_counted(
        {
            "linear": (lambda: linear(rows), 3 * 7 * 5 * 6),
            "matmul": (lambda: jnp.matmul(a, b), 2 * 3 * 4 * 5 * 6),
            "einsum": (lambda: jnp.einsum("bij, bjk -> bik", c, b), 3 * 4 * 5 * 6),
            "tensordot": (lambda: jnp.tensordot(a[:, 0], d, 2), 2 * 4 * 5 * 6),
            "conv2d": (lambda: conv(image), 2 * 6 * 4 * 4 * 4 * 9),
            "scaled_dot_product_attention": (
                lambda: jax.nn.dot_product_attention(*attended),
                2 * 3 * 4 * 6 * 10,
            ),
        }
    )


def test_devices_are_named_in_jaxs_words(matrix):
    (cpu,) = matrix.devices()
    for device in ("cpu", "cpu:0", cpu):
        with unamp.autocast(device, dtype="bfloat16", framework="jax"):
            assert (matrix @ matrix).dtype == jnp.bfloat16
    assert adapter.device_of(matrix) == "cpu"
    assert jax.jit(lambda x: x * (adapter.device_of(x) == "cpu"))(2) == 2


# --- the names of layers in equinox' transformations ----------------------------------------------


class _Block(eqx.Module):
    wi: eqx.nn.Linear
    wo: eqx.nn.Linear

    def __init__(self, key):
        self.wi, self.wo = eqx.nn.Linear(4, 4, key=key), eqx.nn.Linear(4, 4, key=key)

    def __call__(self, x):
        return self.wo(self.wi(x))


class _Stack(eqx.Module):
    blocks: _Block  # two blocks in one, for a loop
    head: eqx.nn.LayerNorm

    def __init__(self):
        self.blocks = eqx.filter_vmap(_Block)(jax.random.split(jax.random.key(0), 2))
        self.head = eqx.nn.LayerNorm(4)

    def __call__(self, x):
        arrays, rest = eqx.partition(self.blocks, eqx.is_array)
        x, _ = jax.lax.scan(lambda x, block: (eqx.combine(block, rest)(x), None), x, arrays)
        return eqx.filter_checkpoint(lambda head, x: head(x))(self.head, x)


STACK, ROW = _Stack(), jnp.ones(4)


FOREIGN = eqx.nn.Linear(4, 4, key=jax.random.key(1))


class _Head(eqx.Module):
    lin: eqx.nn.Linear

    def __call__(self, x):
        return self.lin(x) + FOREIGN(x)


def test_a_layer_of_another_network_has_no_name_of_this_one():
    with unamp.trace() as trace:
        _Head(eqx.nn.Linear(4, 4, key=jax.random.key(0)))(ROW)
    assert [record.layer for record in trace.records if record.op == "linear"] == [
        "_Head.lin",
        "_Head.Linear",
    ]


@pytest.mark.parametrize(
    "run",
    [
        lambda: STACK(ROW),
        lambda: eqx.filter_jit(STACK)(ROW),
        lambda: eqx.filter_jit(lambda net, x: net(x))(STACK, ROW),
        lambda: eqx.filter_vmap(STACK)(ROW[None]),
        lambda: eqx.filter_checkpoint(STACK)(ROW),
        lambda: eqx.filter_grad(lambda net, x: net(x).sum())(STACK, ROW),
        lambda: eqx.Partial(STACK, ROW)(),
    ],
    ids=["eager", "jit", "jit with the network given", "vmap", "checkpoint", "grad", "partial"],
)
def test_what_equinox_wraps_a_function_in_is_no_layer_and_a_copy_has_the_name_of_its_layer(run):
    with unamp.trace() as trace:
        run()
    found = [record.layer for record in trace.records if record.op in ("linear", "layer_norm")]
    assert found == [*["_Stack.blocks.wi", "_Stack.blocks.wo"] * 2, "_Stack.head"]
