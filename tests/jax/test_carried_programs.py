"""A policy reaches programs that a primitive carries: loops, solvers, unknown primitives.

Each is compared with the same computation in plain JAX.
"""

from __future__ import annotations

import gc
import weakref

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax._src import core
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.jet import jet
from jax.experimental.ode import odeint
from jax.interpreters import mlir
from jax.scipy.sparse.linalg import bicgstab, gmres
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import unamp

X = jax.random.normal(jax.random.key(0), (8, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) / 4
TWO = jnp.stack([X, X])
A = 4 * jnp.eye(8) + W


def agree(plain, low, bound=0.1):
    """Check that two results have one structure, the same shapes, and close numbers."""
    assert jax.tree.structure(plain) == jax.tree.structure(low)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(low), strict=True):
        scale = np.abs(np.float32(one)).max() + 1e-6
        assert np.abs(np.float32(one) - np.float32(other)).max() / scale < bound


# --- programs of the user's -----------------------------------------------------------------------


@jax.custom_batching.custom_vmap
def ruled(x):
    return x @ W


@ruled.def_vmap
def _ruled_batch(size, batched, x):
    return jnp.einsum("bij,jk->bik", x, W), batched[0]


@jax.custom_batching.sequential_vmap
def sequential(x):
    return x @ W


@pytest.mark.parametrize("function", [ruled, sequential], ids=["custom_vmap", "sequential_vmap"])
@pytest.mark.parametrize(
    "transform",
    [
        jax.vmap,
        lambda f: jax.jit(jax.vmap(f)),
        lambda f: lambda x: jax.jvp(jax.vmap(f), (x,), (x,))[1],
        lambda f: jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[1]),
    ],
    ids=["vmap", "jit of vmap", "jvp of vmap", "vmap of jvp"],
)
def test_a_batching_rule_of_the_users_follows_the_policy(function, transform):
    plain = transform(function)(TWO)
    with unamp.autocast(dtype="bfloat16"):
        low = transform(function)(TWO)
    assert low.dtype == jnp.bfloat16
    agree(plain, low)
    assert transform(function)(TWO).dtype == jnp.float32


def test_a_batching_rule_ends_in_the_dtypes_of_its_function():
    @jax.custom_batching.custom_vmap
    def function(x):
        return (x @ W).astype(jnp.float32)

    @function.def_vmap
    def rule(size, batched, x):
        return x @ W, True

    with unamp.autocast(dtype="bfloat16"):
        assert jax.vmap(function)(TWO).dtype == jnp.float32


def test_a_partitioned_function_follows_the_policy():
    @custom_partitioning
    def product(x, w):
        return x @ w

    def partition(mesh, arguments, result):
        places = tuple(each.sharding for each in arguments)
        return mesh, lambda x, w: x @ w, result.sharding, places

    product.def_partition(
        partition=partition, sharding_rule="i j, j k -> i k", need_replication_factors=("j", "k"),
        infer_sharding_from_operands=lambda mesh, arguments, shape: arguments[0].sharding,
    )  # fmt: skip
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("d",))
    spread = jax.device_put(X, NamedSharding(mesh, PartitionSpec("d", None)))
    whole = jax.device_put(W, NamedSharding(mesh, PartitionSpec(None, None)))
    plain = jax.jit(product)(spread, whole)
    with unamp.autocast(dtype="bfloat16"):
        low, mixed = (
            jax.jit(product)(spread, whole),
            product((spread @ whole).astype(jnp.bfloat16), whole),
        )
    assert low.dtype == mixed.dtype == jnp.bfloat16
    agree(plain, low)


def test_a_function_that_is_not_inlined_follows_the_policy():
    product = eqxi.noinline(lambda v: v @ W)
    plain = product(X)
    with unamp.autocast(dtype="bfloat16"):
        low = product(X)
    assert plain.dtype == product(X).dtype == jnp.float32
    assert low.dtype == jnp.bfloat16
    agree(plain, low)


class Operator(eqx.Module):
    """A module that converts a function when it is made, as linear operators do."""

    function: object
    start: jax.Array

    def __init__(self, function):
        self.function = eqx.filter_closure_convert(function, X)
        self.start = X @ W


def test_a_function_that_a_module_converts_as_it_is_made_follows_the_policy():
    weight = W + 0  # a closed-over variable: equinox traces functions with one

    def function(x):
        return x @ weight

    plain = Operator(function).function(X)
    with unamp.autocast(dtype="bfloat16"):
        low, made = Operator(function).function(X), Operator(function)
        assert made.start.dtype == jnp.float32  # an initial value stays float32
    assert low.dtype == jnp.bfloat16
    agree(plain, low)
    assert Operator(function).function(X).dtype == jnp.float32


# --- primitives that nobody knows -----------------------------------------------------------------


def primitive(check):
    made = core.Primitive("somebodys_attention")

    def abstract(q, statistics):
        check(q, statistics)
        return core.ShapedArray(q.shape, q.dtype)

    made.def_abstract_eval(abstract)
    made.def_impl(lambda q, statistics: q)
    mlir.register_lowering(made, mlir.lower_fun(lambda q, statistics: q, multiple_results=False))
    return made


def flash(q, statistics):
    if (q.dtype, statistics.dtype) != (jnp.bfloat16, jnp.float32):
        raise TypeError(f"wants bfloat16 and float32, got {q.dtype} and {statistics.dtype}")


def equal(q, statistics):
    assert q.dtype == statistics.dtype


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_an_unknown_primitive_gets_what_it_was_given(level):
    attention = primitive(flash)
    with unamp.autocast(level=level, dtype="float16"):
        for call in (attention.bind, jax.jit(attention.bind)):
            assert call(X.astype(jnp.bfloat16), X).dtype == jnp.bfloat16


def test_operands_that_an_unknown_primitive_refuses_are_widened():
    pair = primitive(equal)
    with unamp.autocast(dtype="bfloat16"):
        assert pair.bind(X @ W, X).dtype == jnp.float32
        with pytest.raises(TypeError, match="wants bfloat16"):
            jax.jit(primitive(flash).bind)(X, X @ W)


# --- loops, solvers, reductions -------------------------------------------------------------------


def until_three(kind, x):
    step = lambda value: (value[0] + 1, value[1] @ W)  # noqa: E731
    return eqxi.while_loop(lambda value: value[0] < 3, step, (0, x), kind=kind, max_steps=4)[1]


def spectral():
    layer, state = eqx.nn.make_with_state(eqx.nn.SpectralNorm)(
        eqx.nn.Linear(8, 8, key=jax.random.key(0)), "weight", key=jax.random.key(1)
    )
    return layer(X[0], state)[0]


def scanned_module():
    module = nnx.Linear(8, 8, use_bias=False, rngs=nnx.Rngs(0))

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def run(carry, x):
        module, state = carry
        state = module(state) / 3 + x
        return (module, state), state

    return run((module, X), TWO)[1]


def recurrent(kind):
    return lambda: nnx.RNN(kind(8, 8, rngs=nnx.Rngs(0)))(X[None])


def strictly():
    with jax.numpy_dtype_promotion("strict"):
        return jnp.zeros((8, 8)).at[0].set((X @ W)[0])


CALLS = {
    **{
        f"while_loop, {kind}": lambda kind=kind: until_three(kind, X)
        for kind in ("lax", "checkpointed", "bounded")
    },
    **{
        f"gradient of while_loop, {kind}": lambda kind=kind: jax.grad(
            lambda x: jnp.float32(until_three(kind, x)).sum()
        )(X)
        for kind in ("checkpointed", "bounded")
    },
    "scan, checkpointed": lambda: eqxi.scan(
        lambda c, x: (c @ W, c @ x), X, TWO, kind="checkpointed"
    ),
    "SpectralNorm": spectral,
    "gmres": lambda: gmres(lambda v: A @ v, X[0])[0],
    "gradient of gmres": lambda: jax.grad(lambda b: gmres(lambda v: A @ v, b)[0].sum())(X[0]),
    "bicgstab": lambda: bicgstab(lambda v: A @ v, X[0])[0],
    "custom_root": lambda: lax.custom_root(
        lambda x: A @ x - X[0],
        X[1],
        lambda f, x: x - f(x @ W) / 4,
        lambda g, y: jnp.linalg.solve(A, y),
    ),
    "gradient of odeint": lambda: jax.grad(
        lambda y, w: odeint(lambda y, t, w: jnp.tanh(w @ y), y, jnp.array([0.0, 0.1]), w).sum(),
        (0, 1),
    )(X[0], W),
    "linear_transpose": lambda: jax.linear_transpose(lambda x: x @ W, X)(X),
    "vjp": lambda: jax.vjp(lambda x: x @ W, X)[1](X),
    "reduce": lambda: lax.reduce(X @ W, jnp.float32(0), lambda a, b: a + b * 1, (0,)),
    "reduce of a plain number": lambda: lax.reduce(X @ W, 0.0, lambda a, b: a + b * 1, (0,)),
    "reduce of low and float32": lambda: lax.reduce(
        (X @ W, X), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,)
    ),
    "reduce of lax.add": lambda: lax.reduce(X @ W, jnp.float32(0), lax.add, (0,)),
    "reduce_window": lambda: lax.reduce_window(
        X @ W, jnp.float32(1), lambda a, b: a + b * 1, (2, 2), (1, 1), "VALID"
    ),
    "strict promotion": strictly,
    "pure_callback": lambda: jax.pure_callback(np.sin, X, X @ W),
    "pure_callback of a batch": lambda: jax.vmap(
        lambda x: jax.pure_callback(np.sin, x, x @ W, vmap_method="sequential")
    )(X),
    "io_callback": lambda: io_callback(lambda *, x: (np.cos(x), x), (X, X), x=X @ W),
    "jet": lambda: jet(lambda x: jnp.exp(x @ W), (X,), ([X, X],)),
    "nnx.scan": scanned_module,
    "nnx.RNN of GRUCell": recurrent(nnx.GRUCell),
    "nnx.RNN of SimpleCell": recurrent(nnx.SimpleCell),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_plain_jax_makes_run_in_a_region(name):
    plain = CALLS[name]()
    for level in ("O1", "O2"):
        with unamp.autocast(level=level, dtype="bfloat16"):
            low = CALLS[name]()
        agree(plain, low, 0.2)
        found = [np.float32(leaf) for leaf in jax.tree.leaves(low)]
        assert any(
            not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(plain), found, strict=True)
        )


# --- compiled once --------------------------------------------------------------------------------


def step(carry, x):
    return carry @ W + x, carry


def halved(x):
    return x @ W


LOOPS = {
    "scan": lambda: lax.scan(step, X, TWO),
    "while_loop": lambda: lax.while_loop(less, further, (0, X)),
    "fori_loop": lambda: lax.fori_loop(0, 3, onward, X),
    "cond": lambda: lax.cond(True, halved, same, X),
    "switch": lambda: lax.switch(1, (halved, same), X),
    "custom_root": lambda: lax.custom_root(residual, X, newton, linear),
    "pure_callback": lambda: jax.pure_callback(np.sin, X, X @ W),
}


def less(value):
    return value[0] < 3


def further(value):
    return value[0] + 1, value[1] @ W


def onward(index, value):
    return value @ W


def same(x):
    return x


def residual(x):
    return x @ A - W


def newton(function, guess):
    return guess - function(guess) / 4


def linear(function, y):
    return y / 4


@pytest.mark.parametrize("branch", ["cond", "switch"])
def test_branches_are_traced_once_for_each_policy(branch):
    traced = []

    def low(x):
        traced.append(x)
        return x @ W

    def call():
        return lax.cond(True, low, same, X) if branch == "cond" else lax.switch(0, (low, same), X)

    call()
    with unamp.autocast(dtype="bfloat16"):
        call()
        seen = len(traced)
        call(), call()
    with unamp.autocast(dtype="bfloat16"):
        call()
    assert len(traced) == seen


@pytest.mark.parametrize("name", LOOPS)
def test_an_eager_loop_is_compiled_once_for_each_policy(name):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: (
            compiled.append(event) if event.endswith("backend_compile_duration") else None
        )
    )
    try:
        LOOPS[name]()
        for dtype in ("bfloat16", "float16", "bfloat16"):
            with unamp.autocast(dtype=dtype):
                LOOPS[name]()
        seen = len(compiled)
        assert seen  # else the event has another name in this JAX
        for dtype in ("bfloat16", "float16", "bfloat16"):
            with unamp.autocast(dtype=dtype):
                LOOPS[name](), LOOPS[name]()
        LOOPS[name]()
        assert len(compiled) == seen
    finally:
        jax.monitoring.clear_event_listeners()


def test_a_body_is_not_kept_alive():
    def body(carry, x):
        return carry @ W + x, carry

    with unamp.autocast(dtype="bfloat16"):
        lax.scan(body, X, TWO)
    gone = weakref.ref(body)
    del body
    jax.clear_caches()
    gc.collect()
    assert gone() is None


# --- what is stated of one product ----------------------------------------------------------------

F32, BF16 = lax.DotAlgorithmPreset.F32_F32_F32, lax.DotAlgorithmPreset.BF16_BF16_F32
PRODUCTS = {
    "matmul": jnp.matmul,
    "einsum": lambda a, b, **stated: jnp.einsum("ij,jk->ik", a, b, **stated),
    "dot_general": lambda a, b, **stated: lax.dot_general(a, b, (((1,), (0,)), ((), ())), **stated),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("precision", ["highest", "high", lax.Precision.HIGHEST, F32], ids=str)
def test_a_product_of_a_stated_precision_is_float32(name, precision):
    product = PRODUCTS[name]
    plain = product(X, W, precision=precision)
    with unamp.trace() as trace, unamp.autocast(level="O2", dtype="bfloat16"):
        stated = product(X, W, precision=precision)
        assert product(X, W, precision="default").dtype == jnp.bfloat16
    assert stated.dtype == jnp.float32
    np.testing.assert_array_equal(stated, plain)
    assert trace.records[0].compute == "float32"
    with unamp.autocast(dtype="bfloat16"), jax.default_matmul_precision("highest"):
        np.testing.assert_array_equal(product(X, W), plain)


def test_an_algorithm_for_low_operands_leaves_them():
    with unamp.trace() as trace, unamp.autocast(dtype="float16"):
        jax.eval_shape(lambda: jnp.matmul(X, W, precision=BF16))
    assert [(each.rule.name, each.compute) for each in trace.records] == [("UNTOUCHED", "float32")]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_wide_result_has_low_operands(name):
    product = PRODUCTS[name]
    with unamp.autocast(dtype="bfloat16"):
        wide = product(X, W, preferred_element_type=jnp.float32)
    operands = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    np.testing.assert_array_equal(wide, product(*operands, preferred_element_type=jnp.float32))


def test_a_convolution_with_a_wide_result_has_a_gradient():
    image, kernel = jnp.ones((1, 3, 8, 8)), jnp.ones((4, 3, 3, 3)) / 3

    def loss(kernel):
        return lax.conv(image, kernel, (1, 1), "SAME", preferred_element_type=jnp.float32).sum()

    plain = jax.grad(loss)(kernel)
    with unamp.autocast(dtype="bfloat16"):
        assert (
            lax.conv(image, kernel, (1, 1), "SAME", preferred_element_type=jnp.float32).dtype
            == jnp.float32
        )
        agree(plain, jax.grad(loss)(kernel))


def test_a_layer_of_a_stated_precision_is_float32():
    stated, plain = (
        nnx.Linear(8, 4, precision=each, rngs=nnx.Rngs(0)) for each in ("highest", None)
    )
    others = jax.vmap(eqx.nn.Linear(8, 4, key=jax.random.key(0)))
    with unamp.autocast(dtype="bfloat16"):
        assert stated(X).dtype == jnp.float32
        assert plain(X).dtype == others(X).dtype == jnp.bfloat16
        with jax.default_matmul_precision("highest"):
            assert plain(X).dtype == others(X).dtype == jnp.float32
