"""float8 on JAX: a trace's shadow shows a product's error, and `tune` studies a network."""

from __future__ import annotations

import equinox as eqx
import floats8
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import linen, nnx
from jax import lax

import unamp
from unamp.adapter.float8 import in_float8


def test_numbers_are_those_of_ml_dtypes() -> None:
    from unamp_jax.shadowing import ARITHMETIC

    floats8.numbers_are_those_of_ml_dtypes(ARITHMETIC, jnp.asarray, np.asarray)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_the_error_of_a_product(dtype) -> None:
    x, y = map(jnp.asarray, floats8.FACTORS)
    layer = nnx.Linear(*y.shape, rngs=nnx.Rngs(0))
    layer.kernel[...] = y
    dense = linen.Dense(y.shape[1])
    variables = {"params": {"kernel": y, "bias": jnp.zeros(y.shape[1])}}
    for call in (
        lambda: layer(x),
        lambda: dense.apply(variables, x),
        lambda: x @ y,
        lambda: jnp.dot(x, y),
        lambda: jnp.einsum("ij,jk->ik", x, y),
        lambda: lax.dot_general(x, y, (((1,), (0,)), ((), ()))),
        lambda: jax.grad(lambda x: (x @ y).sum())(x),
    ):
        floats8.error_is_that_of_numpy(call, dtype)


def test_each_row_may_have_a_scale_of_its_own() -> None:
    a, b = floats8.FACTORS
    a = a * np.logspace(-2, 2, len(a), dtype=np.float32)[:, None]
    rows = np.concatenate([floats8.held(row[None], "float8_e4m3") for row in a])
    columns = np.concatenate([floats8.held(column[None], "float8_e4m3") for column in b.T]).T
    exact, low = (a @ b).astype(np.float64), (rows @ columns).astype(np.float64)
    with unamp.trace(shadow="float8_e4m3_rows") as trace:
        jnp.asarray(a) @ jnp.asarray(b)
    (record,) = trace.records
    assert record.shadow is not None
    assert record.shadow.error == pytest.approx(
        np.linalg.norm(low - exact) / np.linalg.norm(exact), rel=1e-4
    )


def test_what_is_not_computed_is_said() -> None:
    x = jnp.ones((4, 4))
    with unamp.trace(shadow="float8_e4m3_rows") as trace:
        jnp.exp(x)
        jnp.einsum("ij,jk,kl->il", x, x, x)
        jnp.einsum("i,j->ij", x[0], x[0])
        jax.vmap(lambda row: row @ x)(x)
        lax.dot_general_p.bind(
            x,
            x,
            dimension_numbers=(((1,), (0,)), ((), ())),
            precision=None,
            preferred_element_type=None,
            out_sharding=None,
        )
    said = [record.shadow.left_out for record in trace.records if record.shadow]
    assert said[0] == "float8 is for products of two matrices"
    assert said[1] == "it comes to 2 products of two; float8 is for one"
    assert "does not sum over an axis" in said[2]
    assert "jax.vmap" in said[3]
    assert "it is bound as a primitive" in said[4]


class Net(nnx.Module):
    """Two layers whose sizes kernels of float8 accept, and one whose sizes they refuse."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.second, self.head = (
            nnx.Linear(inner, outer, rngs=rngs) for inner, outer in ((32, 64), (64, 32), (32, 10))
        )

    def __call__(self, x):
        return self.head(jnp.tanh(self.second(jax.nn.gelu(self.first(x)))))


X = jax.random.normal(jax.random.key(0), (4, 32))


def gradients(net: Net, x):
    return nnx.value_and_grad(lambda net: jnp.mean(net(x) ** 2))(net)


@pytest.mark.parametrize("batched", [False, True])
def test_a_layer_from_float8_and_its_gradients(batched) -> None:
    """The backward pass multiplies gradients rounded to e5m2 with factors rounded to e4m3.

    The gradient of a bias is exact.
    """
    layer, weight = (
        nnx.Linear(32, 8, rngs=nnx.Rngs(1)),
        np.asarray(jax.random.normal(jax.random.key(2), (4, 8))),
    )

    def loss(layer, x):
        result = jax.vmap(layer)(x[None])[0] if batched else layer(x)
        return (result * weight).sum(), result

    with unamp.trace(), in_float8("float8_e4m3", ["Linear"]) as emulation:
        (of_layer, of_x), result = nnx.grad(loss, argnums=(0, 1), has_aux=True)(layer, X)
    assert emulation.reached == {"Linear"}
    gradient, x, kernel = (
        floats8.held(np.asarray(each), dtype)
        for each, dtype in (
            (weight, "float8_e5m2"),
            (X, "float8_e4m3"),
            (layer.kernel[...], "float8_e4m3"),
        )
    )
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(result, x @ kernel + np.asarray(layer.bias[...]), **close)
    np.testing.assert_allclose(of_x, gradient @ kernel.T, **close)
    np.testing.assert_allclose(of_layer.kernel[...], x.T @ gradient, **close)
    np.testing.assert_allclose(of_layer.bias[...], weight.sum(0), **close)
    assert not np.allclose(of_x, weight @ kernel.T, **close)


def test_the_study_finds_the_layer_that_cannot() -> None:
    """Outliers in one column of an input leave the other columns without digits.

    This holds where the tensor has a single scale.
    """
    net = Net()
    net.second.kernel[...] = net.second.kernel[...].at[0].set(0.0)
    # the outlier goes into the second layer, whose weight for it is zero
    net.first.bias[...] = net.first.bias[...].at[0].set(1e6)
    study = unamp.tune(net, net, [X, X * 2.0], dtype="float8_e4m3", tolerance=0.2)
    assert study.names == ["first"]
    assert {each.layer: each.why for each in study.layers} == {
        "first": "",
        "second": "beyond the tolerance alone",
        "head": "its weight is 32 x 10; kernels take multiples of 16",
    }
    assert net.first.kernel[...].dtype == jnp.float32


def test_gradients_of_training_may_be_studied() -> None:
    net = Net()
    study = unamp.tune(lambda x: gradients(net, x), net, [X], dtype="float8_e4m3", tolerance=0.5)
    assert study.names == ["first", "second"]


def test_other_libraries_may_be_studied() -> None:
    of_equinox = eqx.nn.MLP(32, 16, 64, 1, key=jax.random.key(0))
    assert unamp.tune(
        of_equinox, of_equinox, [X[0], X[1]], dtype="float8_e4m3", tolerance=0.2
    ).names == [
        "layers.0",
        "layers.1",
    ]
    network = linen.Sequential([linen.Dense(64), linen.relu, linen.Dense(16)])
    bound = network.bind(network.init(jax.random.key(0), X))
    assert unamp.tune(bound, bound, [X], dtype="float8_e4m3", tolerance=0.2).names == [
        "layers_0",
        "layers_2",
    ]


def test_the_study_of_a_model_of_keras_counts_the_work_of_its_layers() -> None:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(32)]
    )
    study = unamp.tune(
        model, model, [np.ones((16, 64), np.float32)], dtype="float8_e4m3", tolerance=0.2
    )
    assert [(each.layer, each.work) for each in study.layers] == [
        (model.layers[0].name, pytest.approx(2 / 3)),
        (model.layers[1].name, pytest.approx(1 / 3)),
    ]
