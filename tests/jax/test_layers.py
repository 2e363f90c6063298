"""A layer of nnx, linen, equinox or Keras is one operation, and a trace names its place."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import unamp
from unamp import amp_warnings

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 6, 8))
IMAGE = jax.random.normal(KEY, (2, 8, 8, 3))
IDS = jnp.arange(4)


def rngs():
    return nnx.Rngs(0)


def cell(made):
    return lambda: made.apply(
        made.init(KEY, made.initialize_carry(KEY, X[0].shape), X[0]), zeros(made), X[0]
    )[1]


def zeros(made):
    return made.initialize_carry(KEY, X[0].shape)


def applied(made, *args):
    return lambda: made.apply(made.init(KEY, *args), *args)


def nnx_cell(kind):
    def run():
        made = kind(8, 16, rngs=rngs())
        return made(made.initialize_carry(X[0].shape, rngs()), X[0])[1]

    return run


def attention():
    return nnx.MultiHeadAttention(2, 8, rngs=rngs(), decode=False)(X)


def equinox_batch_norm(mode, x):
    """The result and the state of a norm that has seen one batch."""
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(x.shape[1], "batch", mode=mode)
    return jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


def haiku_norm(name, x):
    """The result and the state of a norm of haiku's that has seen one batch of one sequence."""
    arguments, training = HAIKU[name]
    made = haiku.transform_with_state(lambda x: getattr(haiku, name)(*arguments)(x, *training))
    return made.apply(*made.init(KEY, X), None, x[None])


#: The norms of haiku with their arguments, when they are made and beside the input.
HAIKU = {
    "BatchNorm": ((True, True, 0.9), (True,)),
    "GroupNorm": ((2,), ()),
    "InstanceNorm": ((True, True), ()),
    "LayerNorm": ((-1, True, True), ()),
    "RMSNorm": ((-1,), ()),
}
LOW = {
    "nnx.Linear": lambda: nnx.Linear(8, 4, rngs=rngs())(X),
    "nnx.LinearGeneral": lambda: nnx.LinearGeneral(8, (2, 3), rngs=rngs())(X),
    "nnx.Einsum": lambda: nnx.Einsum("abc,cd->abd", (8, 4), (4,), rngs=rngs())(X),
    "nnx.Conv": lambda: nnx.Conv(3, 4, (3, 3), rngs=rngs())(IMAGE),
    "nnx.ConvTranspose": lambda: nnx.ConvTranspose(3, 4, (3, 3), rngs=rngs())(IMAGE),
    "nnx.MultiHeadAttention": attention,
    "nnx.LSTMCell": nnx_cell(nnx.LSTMCell),
    "nnx.OptimizedLSTMCell": nnx_cell(nnx.OptimizedLSTMCell),
    "nnx.GRUCell": nnx_cell(nnx.GRUCell),
    "linen.Dense": applied(linen.Dense(4), X),
    "linen.Conv": applied(linen.Conv(4, (3, 3)), IMAGE),
    "linen.LSTMCell": cell(linen.LSTMCell(16)),
    "linen.GRUCell": cell(linen.GRUCell(16)),
    "linen.MultiHeadDotProductAttention": applied(linen.MultiHeadDotProductAttention(2), X, X),
    "equinox.nn.Linear": lambda: jax.vmap(eqx.nn.Linear(8, 4, key=KEY))(X[0]),
    "equinox.nn.Conv2d": lambda: eqx.nn.Conv2d(3, 4, 3, key=KEY)(IMAGE[0].T),
    "equinox.nn.MultiheadAttention": lambda: eqx.nn.MultiheadAttention(2, 8, key=KEY)(
        X[0], X[0], X[0]
    ),
    "equinox.nn.GRUCell": lambda: eqx.nn.GRUCell(8, 4, key=KEY)(X[0, 0], jnp.zeros(4)),
}
FP32 = {
    "nnx.LayerNorm": lambda: nnx.LayerNorm(8, rngs=rngs())(X),
    "nnx.RMSNorm": lambda: nnx.RMSNorm(8, rngs=rngs())(X),
    "nnx.BatchNorm": lambda: nnx.BatchNorm(8, rngs=rngs())(X),
    "nnx.GroupNorm": lambda: nnx.GroupNorm(8, num_groups=2, rngs=rngs())(X),
    "linen.LayerNorm": applied(linen.LayerNorm(), X),
    "equinox.nn.LayerNorm": lambda: eqx.nn.LayerNorm(8)(X[0, 0]),
    **{
        f"equinox.nn.BatchNorm, {mode}": lambda mode=mode: equinox_batch_norm(mode, X[0])[0]
        for mode in ("batch", "ema")
    },
    **{f"haiku.{name}": lambda name=name: haiku_norm(name, X[0])[0] for name in HAIKU},
}
#: Norms that would gather statistics in the dtype of their input.
GATHERING = {
    **{mode: partial(equinox_batch_norm, mode) for mode in ("batch", "ema")},
    **{name: partial(haiku_norm, name) for name in HAIKU},
    "standardize": lambda x: (jax.nn.standardize(x), ()),
}


@pytest.mark.parametrize("name", LOW)
def test_layers_that_are_listed_compute_low_bias_and_all(name):
    plain = LOW[name]()
    with unamp.autocast(dtype="bfloat16"):
        low = LOW[name]()
    assert low.dtype == jnp.bfloat16
    error = np.abs(np.float32(low) - plain).max() / np.abs(plain).max()
    assert 1e-6 < error < 0.05


@pytest.mark.parametrize("name", FP32)
def test_norms_keep_their_parameters(name):
    plain = FP32[name]()
    with unamp.autocast(dtype="bfloat16"):
        assert FP32[name]().dtype == jnp.float32
    with unamp.autocast(level="O3", dtype="bfloat16"):
        low = FP32[name]()
    assert low.dtype == jnp.bfloat16
    assert np.abs(np.float32(low) - plain).max() / np.abs(plain).max() < 0.05


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", GATHERING)
def test_statistics_of_low_numbers_are_gathered_in_float32(name, level):
    norm = GATHERING[name]
    x = 800 + 400 * jax.random.normal(KEY, (64, 8))  # float16 does not hold their squares
    result, state = norm(x)
    with unamp.autocast(level=level, dtype="float16"):
        found, statistics = norm(x.astype(jnp.float16))
        compiled, _ = jax.jit(lambda x: (norm(x)[0], 0))(x.astype(jnp.float16))
        gradient = jax.grad(lambda x: norm(x)[0].astype(float)[0].sum())(x)
    # at O1 batch and instance norms follow their input
    following = name in ("batch", "ema", "BatchNorm", "InstanceNorm")
    wide = level == "O2" or (level == "O1" and not following)
    assert found.dtype == compiled.dtype == (jnp.float32 if wide else jnp.float16)
    np.testing.assert_allclose(np.float32(found), result, atol=0.01)
    np.testing.assert_allclose(np.float32(compiled), result, atol=0.01)
    for one, other in zip(jax.tree.leaves(statistics), jax.tree.leaves(state), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=0.001)
    assert gradient.dtype == jnp.float32
    assert np.isfinite(gradient).all()


def test_a_shadow_does_not_move_the_averages_of_haiku():
    _, state = haiku_norm("BatchNorm", X[0])
    with unamp.trace(shadow="bfloat16") as trace, unamp.autocast(dtype="bfloat16"):
        _, found = haiku_norm("BatchNorm", X[0])
    assert [record.op for record in trace.records] == ["batch_norm"]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_what_is_made_inside_a_region_is_made_as_outside(level):
    def made():
        layer = nnx.Linear(8, 4, rngs=rngs())
        return [
            layer.kernel.get_value(), eqx.nn.Linear(8, 4, key=KEY).weight,
            linen.Dense(4).init(KEY, X)["params"]["kernel"], jax.random.normal(KEY, (3,)),
            jax.random.gumbel(KEY, (3,)),
        ]  # fmt: skip

    outside = made()
    with unamp.autocast(level=level, dtype="bfloat16"):
        inside = made()
    for a, b in zip(outside, inside, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


def test_a_layer_whose_dtype_is_named_keeps_it():
    layer = nnx.Linear(8, 4, dtype=jnp.float16, rngs=rngs())
    with unamp.autocast(dtype="bfloat16"):
        assert layer(X).dtype == jnp.float16


class Net(nnx.Module):
    def __init__(self):
        self.first, self.rest = (
            nnx.Linear(8, 8, rngs=rngs()),
            nnx.List([nnx.LayerNorm(8, rngs=rngs())]),
        )

    def __call__(self, x):
        return self.rest[0](nnx.relu(self.first(x)))


class Flat(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3, name="out")(linen.relu(linen.Dense(4)(x)))


class Twin(eqx.Module):
    layers: list

    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_a_trace_names_layers_and_has_every_call_with_its_numbers(jit):
    net, flat = Net(), Flat()
    variables = flat.init(KEY, X)
    twin = Twin([eqx.nn.Linear(8, 8, key=KEY), eqx.nn.Linear(8, 8, key=KEY)])
    run = (lambda f: jax.jit(f)) if jit else (lambda f: f)
    calls = [run(net), run(lambda x: flat.apply(variables, x)), run(lambda x: twin(x[0, 0]))]
    for call in calls:
        call(X)
    with unamp.trace(values=True) as trace, unamp.autocast(dtype="bfloat16"):
        for call in (calls[0], *calls):
            call(X)
    found = [(record.layer, record.op, record.compute) for record in trace.records]
    of_net = [
        ("Net.first", "linear", "bfloat16"),
        ("Net", "relu", "bfloat16"),
        ("Net.rest.0", "layer_norm", "float32"),
    ]
    assert found == [
        *of_net,
        *of_net,
        ("Flat.Dense_0", "linear", "bfloat16"),
        ("Flat", "relu", "bfloat16"),
        ("Flat.out", "linear", "bfloat16"),
        ("Twin.layers.0", "linear", "bfloat16"),
        ("Twin", "relu", "bfloat16"),
        ("Twin.layers.1", "linear", "bfloat16"),
        ("Twin", "relu", "bfloat16"),
    ]
    assert all(record.values is not None and record.values.norm > 0 for record in trace.records)


def test_a_trace_sees_into_gradients_and_named_scopes():
    def f(x):
        with jax.named_scope("head"):
            return jax.nn.softmax(x @ x).sum()

    with unamp.trace(values=True) as trace:
        jax.grad(jax.jit(f))(X[0, :, :6])
    assert [(r.layer, r.op) for r in trace.records] == [
        ("head", "matmul"),
        ("head", "softmax"),
        ("head", "sum"),
    ]
    assert trace.records[2].values.norm == pytest.approx(6.0)


def test_auto_mixed_precision_wraps_modules_and_shares_their_parameters():
    net, flat, twin = Net(), Flat(), Twin([eqx.nn.Linear(8, 8, key=KEY)])
    variables = flat.init(KEY, X)
    for level in ("O1", "O2", "O3"):
        wrapped = unamp.auto_mixed_precision(net, level, "bfloat16")
        assert wrapped(X).dtype == jnp.float32
        assert wrapped.first.kernel is net.first.kernel
        assert not np.array_equal(wrapped(X), net(X))
        mixed = unamp.auto_mixed_precision(flat, level, "bfloat16").apply(variables, X)
        assert mixed.dtype == jnp.float32
        assert not np.array_equal(mixed, flat.apply(variables, X))
        assert unamp.auto_mixed_precision(twin, level, "bfloat16")(X[0, 0]).dtype == jnp.float32


def test_keras_computes_with_jax_under_a_policy():
    import keras

    inputs = keras.Input((8, 8, 3))
    h = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    h = keras.layers.BatchNormalization()(h)
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(h)))
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        out = model(IMAGE)
    assert out.dtype == jnp.bfloat16
    ran = {record.op: record.compute for record in trace.records}
    assert (ran["conv2d"], ran["batch_norm"], ran["linear"]) == ("bfloat16", "bfloat16", "bfloat16")
    model.compile("adam", "mse")
    with unamp.autocast(dtype="bfloat16"):
        model.fit(IMAGE, np.zeros((2, 2)), epochs=2, verbose=0)
    assert {str(v.dtype) for v in model.variables if "float" in str(v.dtype)} == {"float32"}
    assert model(IMAGE).dtype == jnp.float32


# --- dtypes that layers state ---------------------------------------------------------------------


def stating(dtype):
    """Return calls of flax's layers that state a dtype."""
    dense, cell = linen.Dense(4, dtype=dtype), nnx.SimpleCell(8, 4, dtype=dtype, rngs=rngs())
    attend = linen.MultiHeadDotProductAttention(2, dtype=dtype)
    return {
        "linen.Dense": lambda: dense.apply(dense.init(KEY, X), X),
        "nnx.Linear": lambda: nnx.Linear(8, 4, dtype=dtype, rngs=rngs())(X),
        "nnx.Conv": lambda: nnx.Conv(3, 4, (3, 3), dtype=dtype, rngs=rngs())(IMAGE),
        "nnx.SimpleCell": lambda: cell(jnp.zeros((6, 4), dtype), X[0])[1],
        "linen.MultiHeadDotProductAttention": lambda: attend.apply(attend.init(KEY, X, X), X, X),
    }


@pytest.mark.parametrize("name", stating(jnp.float32))
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_stated_float32_is_decided_by_the_policy(name, level):
    plain = stating(jnp.float32)[name]()
    assert plain.dtype == jnp.float32
    with unamp.trace() as trace, unamp.autocast(level=level, dtype="bfloat16"):
        low = stating(jnp.float32)[name]()
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(low), plain, atol=0.1, rtol=0.1)
    (row, *_) = [
        each for each in trace.records if each.rule.name == "LOW" and "dtype=float32" in each.native
    ]
    assert row.compute == "bfloat16"
    with unamp.autocast(level=level, dtype="bfloat16", deny="*"):
        assert stating(jnp.float32)[name]().dtype == jnp.float32


@pytest.mark.parametrize("name", ["linen.Dense", "nnx.Linear", "nnx.Conv"])
def test_another_stated_dtype_is_kept_with_a_row_and_a_warning(name, monkeypatch):
    monkeypatch.setattr(amp_warnings, "_given", set())  # each warning comes once in a process
    plain = stating(jnp.float16)[name]()
    region = unamp.autocast(dtype="bfloat16")
    with (
        pytest.warns(unamp.AmpWarning, match="computes in bfloat16"),
        unamp.trace() as trace,
        region,
    ):
        kept = stating(jnp.float16)[name]()
    assert kept.dtype == jnp.float16
    np.testing.assert_array_equal(kept, plain)
    row = [each for each in trace.records if "dtype=float16" in each.native][-1]
    assert (row.rule.name, row.compute, row.output) == ("UNTOUCHED", "float16", "float16")


def attentions():
    made = linen.MultiHeadDotProductAttention(2)
    variables, module = (
        made.init(KEY, X, X),
        nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs()),
    )
    return {"linen": lambda: made.apply(variables, X, X), "nnx": lambda: module(X)}


@pytest.mark.parametrize("library", attentions())
@pytest.mark.parametrize("deny", [(), ("softmax",)], ids=str)
def test_attention_has_a_float32_softmax_between_low_products(library, deny):
    call = attentions()[library]
    plain = call()
    with unamp.autocast(dtype="bfloat16", deny=deny):
        low = call()
        program = str(jax.make_jaxpr(call)())
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(low), plain, atol=0.05)
    products = [line for line in program.splitlines() if "dot_general" in line]
    exponents = [line for line in program.splitlines() if " exp " in line]
    assert len(products) >= 6 or "jit" in program
    assert exponents
    assert all("f32" in line.split("=")[0] for line in exponents)
    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16", deny=deny):
        call()
    rows = {each.op: each.compute for each in trace.records}
    assert all(
        rows[op] == "bfloat16"
        for op in rows
        if op in ("linear", "einsum", "matmul", "scaled_dot_product_attention")
    )
    assert rows.get("softmax", "float32") == "float32"


@pytest.mark.parametrize(
    "made",
    [nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Linear(8, 4, rngs=nnx.Rngs(0))],
    ids=["nnx.Dropout", "nnx.Linear"],
)
def test_what_a_layer_is_made_of_is_not_reported(made):
    with unamp.trace() as outside:
        made(X)
    with unamp.trace() as inside, unamp.autocast(dtype="bfloat16", level="O3"):
        made(X)
    assert [record.op for record in inside.records] == [record.op for record in outside.records]
