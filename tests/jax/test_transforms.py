"""Every transformation of JAX works around a region and inside; no trace is stale."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import unamp

KEY = jax.random.key(1)
W = jax.random.normal(KEY, (8, 8)) / 3
X = jax.random.normal(jax.random.key(2), (4, 8))


def network(w, x):
    """Return the sum of a low product and a float32 softmax."""
    h = jnp.tanh(x @ w)
    return jnp.float32((jax.nn.softmax(h @ w) + h).sum() + (h * h).mean())


TRANSFORMED = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "jit of grad of jit": lambda f: jax.jit(jax.grad(jax.jit(f))),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "jit of grad of checkpoint of jit": lambda f: jax.jit(jax.grad(jax.checkpoint(jax.jit(f)))),
    "jacrev": jax.jacrev,
    "hessian": lambda f: lambda w, x: jax.hessian(lambda v: f(w * v, x))(jnp.float32(1.0)),
    "vmap": lambda f: lambda w, x: jax.vmap(f, (None, 0))(w, x[:, None]),
    "vmap of grad": lambda f: lambda w, x: jax.vmap(jax.grad(f), (None, 0))(w, x[:, None]),
    "grad of vmap": lambda f: jax.grad(lambda w, x: jax.vmap(f, (None, 0))(w, x[:, None]).sum()),
    "jit of vmap of grad of jit": lambda f: jax.jit(
        lambda w, x: jax.vmap(jax.grad(jax.jit(f)), (None, 0))(w, x[:, None])
    ),
    "jvp": lambda f: lambda w, x: jax.jvp(lambda w: f(w, x), (w,), (w,)),
    "linearize": lambda f: lambda w, x: jax.linearize(lambda w: f(w, x), w)[1](w),
    "vjp": lambda f: lambda w, x: jax.vjp(f, w, x)[1](jnp.float32(1.0)),
}


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, "O1") for name in TRANSFORMED),
        ("grad", "O2"),
        ("jit of vmap of grad of jit", "O2"),
        ("hessian", "O2"),
        ("vjp", "O2"),
    ],
)
def test_transformations_agree_with_float32_within_the_dtype_and_differ_from_it(name, level):
    function = TRANSFORMED[name](network)
    plain = jax.tree.leaves(function(W, X))
    with unamp.autocast(level=level, dtype="bfloat16"):
        inside = jax.tree.leaves(function(W, X))
        around = jax.tree.leaves(TRANSFORMED[name](network)(W, X))
    opened = jax.tree.leaves(
        TRANSFORMED[name](unamp.autocast(level=level, dtype="bfloat16")(network))(W, X)
    )
    after = jax.tree.leaves(function(W, X))
    for p, i, a, o, b in zip(plain, inside, around, opened, after, strict=True):
        assert np.array_equal(p, b)
        assert i.dtype == a.dtype == o.dtype == jnp.float32
        scale = np.abs(p).max()
        for low in (i, a, o):
            error = np.abs(np.float32(low) - p).max() / scale
            assert 1e-6 < error < 0.15


@pytest.mark.parametrize("order", ["policy first", "no policy first"])
def test_a_jitted_function_has_one_program_for_each_policy(order):
    f = jax.jit(lambda a: a @ a)
    policies = [None, unamp.autocast(dtype="bfloat16"), unamp.autocast(dtype="float16")]
    expected = [jnp.float32, jnp.bfloat16, jnp.float16]
    pairs = list(zip(policies, expected, strict=True))
    for policy, dtype in [*(pairs if order == "no policy first" else pairs[::-1])] * 2:
        if policy is None:
            assert f(W).dtype == dtype
        else:
            with policy:
                assert f(W).dtype == dtype
    assert f._cache_size() == 3


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_tangents_take_the_dtypes_of_their_primals(matrix, level):
    def products(x):
        value, tangent = jax.jvp(jnp.sin, (x,), (x @ matrix,))
        _, pushed = jax.linearize(jnp.sin, x)
        return value, tangent, jax.jvp(jnp.sin, (x @ matrix,), (x,))[1], pushed(x @ matrix)

    plain, size = products(matrix), jnp.abs(matrix)
    # A product is off by 3.1u of the magnitudes that it adds up; what else is rounded, each by u:
    # the argument of a sine or cosine, its result, and the product of that with the tangent.
    bound = 8 * 2**-8 * (1 + (size @ size).max()) * (1 + size.max())
    for run in (products, jax.jit(products)):
        with unamp.autocast(level=level, dtype="bfloat16"):
            found = run(matrix)
        assert found[0].dtype == found[1].dtype == found[3].dtype
        for one, other in zip(found, plain, strict=True):
            assert np.abs(np.float32(one) - other).max() <= bound


def test_a_pullback_is_the_same_outside_its_region_and_inside_another():
    def made():
        with unamp.autocast(dtype="bfloat16"):
            return jax.vjp(network, W, X)[1]

    one = jnp.float32(1.0)
    outside = made()(one)
    with unamp.autocast(level="O2", dtype="float16"):
        inside = made()(one)
    for a, b in zip(outside, inside, strict=True):
        assert a.dtype == jnp.float32
        assert np.array_equal(a, b)


def body(carry, x):
    carry = jnp.tanh(carry @ W + x)
    return carry, carry.sum()


LOOPS = {
    "scan": lambda x: lax.scan(body, x, jnp.arange(3.0))[0],
    "while_loop": lambda x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ W), (0, x)
    )[1],
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda n, c: c @ W, x),
    "map": lambda x: lax.map(lambda row: row @ W, x),
    "associative_scan": lambda x: (
        lax.associative_scan(jnp.matmul, jnp.stack([W, W, W]))[-1] * x.sum()
    ),
    "cond": lambda x: lax.cond(x.sum() > -1e9, lambda x: x @ W, lambda x: x, x),
    "switch": lambda x: lax.switch(1, [lambda x: x, lambda x: x @ W, lambda x: jnp.exp(x)], x),
}


@pytest.mark.parametrize(("jit", "level"), [(False, "O2"), (True, "O1")], ids=["eager", "jit"])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_branches_keep_their_dtypes(name, level, jit):
    loop = jax.jit(LOOPS[name]) if jit else LOOPS[name]
    plain = loop(X)
    with unamp.autocast(level=level, dtype="bfloat16"):
        low = loop(X)
        if name not in ("while_loop", "fori_loop"):  # these have no reverse-mode gradient
            gradient = jax.grad(lambda x: jnp.float32(loop(x)).sum())(X)
            assert gradient.dtype == jnp.float32
    error = np.abs(np.float32(low) - plain).max() / np.abs(plain).max()
    assert 1e-6 < error < 0.1


def test_custom_rules_run_under_the_policy_of_their_forward():
    @jax.custom_jvp
    def scaled(a):
        return a @ a

    @scaled.defjvp
    def _(primals, tangents):
        (a,), (t,) = primals, tangents
        return scaled(a), a @ t + t @ a

    @jax.custom_vjp
    def product(a, b):
        return a @ b

    dtypes = []

    def forward(a, b):
        return product(a, b), (a, b)

    def backward(residual, cotangent):
        a, b = residual
        dtypes.append((cotangent @ b.T).dtype)
        return cotangent @ b.T, a.T @ cotangent

    product.defvjp(forward, backward)
    with unamp.autocast(dtype="bfloat16"):
        assert scaled(W).dtype == jnp.bfloat16
        assert jax.grad(lambda a: jnp.float32(scaled(a)).sum())(W).dtype == jnp.float32
        pullback = jax.vjp(lambda a: jnp.float32(product(a, a)).sum(), W)[1]
    assert pullback(jnp.float32(1.0))[0].dtype == jnp.float32
    assert dtypes == [jnp.bfloat16]
    with unamp.autocast(dtype="bfloat16"):
        assert (
            jax.jit(jax.vmap(jax.grad(lambda a: jnp.float32(product(a, a)).sum())))(W[None]).dtype
            == jnp.float32
        )


@jax.custom_jvp
def float32_by_a_low_rule(a):
    return jnp.logaddexp(a @ W, 0.0)


@float32_by_a_low_rule.defjvp
def _(primals, tangents):
    y = primals[0] @ W
    return jnp.maximum(y, 0.0), (tangents[0] @ W) * (y > 0)


@jax.custom_jvp
def low_by_a_float32_rule(a):
    return a @ W


@low_by_a_float32_rule.defjvp
def _(primals, tangents):
    return primals[0] @ W + jnp.zeros((8, 8)), tangents[0] @ W


@jax.custom_vjp
def float32_by_a_low_forward(a):
    return jnp.logaddexp(a @ W, 0.0)


def low_forward(a):
    y = a @ W
    return jnp.maximum(y, 0.0), y > 0


float32_by_a_low_forward.defvjp(low_forward, lambda positive, t: ((t * positive) @ W.T,))

RULED = [float32_by_a_low_rule, low_by_a_float32_rule, float32_by_a_low_forward]


@pytest.mark.parametrize("ruled", RULED, ids=lambda function: function.__name__)
def test_the_result_of_a_rule_has_the_dtype_of_its_function(ruled):
    losses = (
        lambda a: jnp.float32(jax.jit(ruled)(a)).sum(),
        lambda a: jnp.float32(lax.scan(lambda c, _: (ruled(c), c), a, None, length=2)[0]).sum(),
        lambda a: jnp.float32(jax.checkpoint(ruled)(a)).sum(),
    )
    for loss in losses:
        plain = jax.grad(loss)(W)
        with unamp.autocast(dtype="bfloat16"):
            low = jax.grad(loss)(W)
        assert low.dtype == jnp.float32
        # two products, of which each rounds its operands and its result: 3.1u of the magnitudes
        magnitudes = np.ones((8, 8)) @ np.abs(W).T
        bound = 2 * 3.1 * 2**-8 * np.maximum(magnitudes, magnitudes @ np.abs(W).T)
        assert (np.abs(low - plain) <= bound).all()


def test_a_function_that_is_traced_late_for_remat_follows_the_policy():
    def losses():
        for late in (True, False):
            product = jax.custom_vjp(lambda a, b: a @ b)
            product.defvjp(
                lambda a, b: (a @ b, (a, b)),
                lambda saved, t: (t @ saved[1].T, saved[0].T @ t),
                optimize_remat=late,
            )
            yield lambda a, product=product: (jnp.float32(product(a, W)) ** 2).sum()

    for change in (jax.checkpoint, jax.jit, lambda function: function):
        for level in ("O1", "O2"):
            with unamp.autocast(level=level, dtype="bfloat16"):
                late, early = (jax.value_and_grad(change(loss))(W) for loss in losses())
            assert late[0] == early[0] != jnp.sum((W @ W) ** 2)
            np.testing.assert_array_equal(late[1], early[1])


def test_branches_for_platforms_agree():
    def chosen(a):
        return lax.platform_dependent(a, cpu=lambda a: a @ W, default=lambda a: a * 1.0)

    plain = chosen(W)
    with unamp.autocast(dtype="bfloat16"):
        low = jax.jit(chosen)(W)
        gradient = jax.jit(jax.grad(lambda a: chosen(a).sum()))(W)
    assert low.dtype == gradient.dtype == jnp.float32
    assert 0 < np.abs(low - plain).max() < 3.1 * 2**-8 * (np.abs(W) @ np.abs(W)).max()


def test_library_functions_with_rules_of_their_own_take_keywords(matrix):
    with unamp.autocast(level="O2", dtype="bfloat16"):
        assert jax.nn.relu(x=matrix).dtype == jnp.bfloat16
        assert jax.nn.silu(x=matrix).dtype == jnp.bfloat16
        assert jax.grad(lambda x: jnp.float32(jax.nn.relu(x)).sum())(matrix).dtype == jnp.float32


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_replicas_are_in_the_region_of_their_caller(jit):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def loss(w, x):
        return lax.pmean(jnp.float32(jnp.tanh(x @ w)).mean(), "i")

    spread = jax.shard_map(
        loss, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec()
    )
    step = jax.value_and_grad(spread)
    step = jax.jit(step) if jit else step
    plain = step(W, X)
    with unamp.autocast(dtype="bfloat16"):
        low = step(W, X)
    assert low[1].dtype == jnp.float32
    assert 1e-6 < np.abs(low[1] - plain[1]).max() / np.abs(plain[1]).max() < 0.05
    copies = jax.pmap(lambda x: x @ W)
    with unamp.autocast(dtype="bfloat16"):
        assert copies(X[:, None]).dtype == jnp.bfloat16
    assert copies(X[:, None]).dtype == jnp.float32


def test_what_is_compiled_or_exported_carries_its_policy():
    from jax import export

    shape = jax.ShapeDtypeStruct(W.shape, W.dtype)
    f = jax.jit(lambda a: jnp.exp(a @ a) @ a)
    with unamp.autocast(dtype="bfloat16"):
        traced, exported, compiled = (
            f.trace(shape),
            export.export(f)(shape),
            f.lower(shape).compile(),
        )
        low = f(W)
    again = export.deserialize(exported.serialize())
    with unamp.autocast(level="O2", dtype="float16"):
        found = [traced.lower().compile()(W), exported.call(W), again.call(W), compiled(W)]
    for each in found:
        assert each.dtype == jnp.bfloat16
        assert np.array_equal(each, low)


def test_a_low_result_that_feeds_float32_is_rounded_under_jit(matrix):
    def f(a):
        return jax.nn.softmax(a @ a)

    with unamp.autocast(dtype="bfloat16"):
        eager, compiled = f(matrix), jax.jit(f)(matrix)
        with unamp.policy_region(unamp.Policy("O1", "bfloat16", widen_results=True)):
            product = jax.jit(lambda a: a @ a)(matrix)
    assert np.abs(eager - compiled).max() < 1e-6
    assert product.dtype == jnp.float32
    assert np.array_equal(product, product.astype(jnp.bfloat16).astype(jnp.float32))


def test_a_dtype_of_the_users_own_keeps_its_meaning(matrix):
    half = matrix.astype(jnp.float16)
    with unamp.autocast(dtype="bfloat16"):
        assert jnp.matmul(matrix, matrix, preferred_element_type=jnp.float32).dtype == jnp.float32
        wide = jnp.matmul(matrix, matrix, preferred_element_type="float32")
        # the operands are low
        assert np.array_equal(
            wide, MATMUL(matrix.astype(jnp.bfloat16), preferred_element_type="float32")
        )
        assert jnp.sum(half, dtype=jnp.float16).dtype == jnp.float16
        assert jax.nn.one_hot(jnp.arange(3), 3, dtype=jnp.float16).dtype == jnp.float16
        assert matrix.astype(jnp.float16).dtype == jnp.float16


def MATMUL(a, **stated):  # noqa: N802
    with unamp.autocast(enabled=False):
        return jnp.matmul(a, a, **stated)


def test_pallas_kernels_callbacks_and_references_are_left_alone(matrix):
    from jax.experimental import pallas as pl

    def kernel(x, o):
        o[...] = jnp.exp(x[...]) @ x[...]

    call = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(matrix.shape, matrix.dtype), interpret=True
    )
    plain = call(matrix)
    with unamp.autocast(level="O2", dtype="bfloat16"):
        assert np.array_equal(call(matrix), plain)
        assert (
            jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4, 4), jnp.float32), matrix).dtype
            == jnp.float32
        )
        box = jax.new_ref(jnp.zeros((4, 4)))
        box[...] = matrix @ matrix
        assert box[...].dtype == jnp.float32


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_reference_in_a_compiled_function_keeps_its_dtype(level):
    def rows(box, w):
        def body(n, _):
            box[n] = jnp.exp(box[n] + w[n])

        lax.fori_loop(0, 3, body, None)

    def found():
        given, made = jax.new_ref(jnp.zeros((4, 8))), []

        def loss(w):
            box = jax.new_ref(jnp.zeros((4, 8)))
            rows(box, w)
            return jnp.float32(box[...]).sum()

        @jax.jit
        def store(w):
            rows(given, w)

        store(W)
        made += [given[...], jax.grad(loss)(W), jax.jit(jax.grad(loss))(W)]
        return made

    plain = found()
    with unamp.autocast(level=level, dtype="float16"):
        low = found()
    for one, other in zip(low, plain, strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=5e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_attention_is_low_in_compiled_functions_too(dtype, jit):
    heads = jax.random.normal(KEY, (2, 6, 2, 4))

    def attend(x):
        return jax.nn.dot_product_attention(x, x, x, is_causal=True)

    step = jax.value_and_grad(lambda x: jnp.float32(attend(x)).sum())
    attend, step = (jax.jit(attend), jax.jit(step)) if jit else (attend, step)
    plain = step(heads)[1]
    with unamp.autocast(dtype=dtype):
        assert attend(heads).dtype == dtype
        gradient = step(heads)[1]
    assert gradient.dtype == jnp.float32
    assert 1e-6 < np.abs(gradient - plain).max() / np.abs(plain).max() < 0.05
