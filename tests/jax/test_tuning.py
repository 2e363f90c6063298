"""`unamp.tune` on JAX searches networks of flax, equinox, haiku and Keras.

It searches functions with named scopes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tuned
from flax import linen, nnx
from tuned import test_promises  # noqa: F401

import unamp

KEYS = jax.random.split(jax.random.key(0), 6)
BATCHES = [jax.random.normal(key, (4, 8)) for key in KEYS[2:]]

#: With this factor, the product of `b` exceeds float16.
TOO_LARGE = 1e6


class _Equinox(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __call__(self, x: Any) -> Any:
        return jax.vmap(lambda row: self.norm(self.b(self.a(row))))(x)


class _Nnx(nnx.Module):
    def __init__(self) -> None:
        self.a, self.b = nnx.Linear(8, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 8, rngs=nnx.Rngs(1))
        self.norm = nnx.LayerNorm(8, rngs=nnx.Rngs(2))

    def __call__(self, x: Any) -> Any:
        return self.norm(self.b(self.a(x)))


class _Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.LayerNorm(name="norm")(linen.Dense(8, name="b")(linen.Dense(8, name="a")(x)))


class _Tuned(NamedTuple):
    """A network, and a function that runs it."""

    run: Callable[[Any], Any]
    network: Any


def _equinox() -> _Tuned:
    net = _Equinox(
        eqx.nn.Linear(8, 8, key=KEYS[0]), eqx.nn.Linear(8, 8, key=KEYS[1]), eqx.nn.LayerNorm(8)
    )
    net = eqx.tree_at(lambda made: made.b.weight, net, net.b.weight * TOO_LARGE)
    return _Tuned(lambda x: net(x), net)


def _nnx() -> _Tuned:
    net = _Nnx()
    net.b.kernel[...] = net.b.kernel[...] * TOO_LARGE
    return _Tuned(lambda x: net(x), net)


def _linen() -> _Tuned:
    net = _Linen()
    variables = net.init(KEYS[0], BATCHES[0])
    variables["params"]["b"]["kernel"] = variables["params"]["b"]["kernel"] * TOO_LARGE
    return _Tuned(lambda x: net.apply(variables, x), net.bind(variables))


def _keras() -> _Tuned:
    layers = (
        keras.layers.Dense(8, name="a"),
        keras.layers.Dense(8, name="b"),
        keras.layers.LayerNormalization(name="norm"),
    )
    net = keras.Sequential([keras.Input((8,)), *layers])
    layers[1].kernel.assign(layers[1].kernel * TOO_LARGE)
    return _Tuned(lambda x: net(x), net)


@pytest.mark.parametrize("way", [lambda run: run, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("by", ["place", "layer", "operation"])
@pytest.mark.parametrize("make", [_equinox, _nnx, _linen, _keras])
def test_a_product_that_overflows_is_found(make: Callable[[], _Tuned], by: Any, way: Any) -> None:
    run, network = make()
    run = way(run)
    found = unamp.tune(run, network, BATCHES, dtype="float16", tolerance=1e-2, by=by)
    assert found.table().splitlines()[-3].startswith(f"{type(network).__name__}: ")
    held = {(place.layer, place.op) for place in found.report.held}
    assert {("b", "linear"), ("norm", "layer_norm")} <= held
    assert (("a", "linear") in held) is (by == "operation")
    exact = run(BATCHES[0])
    for call in (run, jax.jit(run)):
        with found.region(network):
            low = call(BATCHES[0])
        assert np.linalg.norm(np.float64(low) - np.float64(exact)) <= 1e-2 * np.linalg.norm(
            np.float64(exact)
        )
    with unamp.policy_region(unamp.Policy("O3", "float16")):
        assert not bool(jnp.all(jnp.isfinite(run(BATCHES[0]))))


# --- functions, whose layers are named scopes -----------------------------------------------------


def _scoped() -> _Tuned:
    weights = [jax.random.normal(key, (8, 8)) for key in KEYS[:3]]

    def network(x: Any) -> Any:
        with jax.named_scope("a"):
            x = x @ weights[0]
        with jax.named_scope("b"), jax.named_scope("wo"):
            x = x @ weights[1] * TOO_LARGE
        with jax.named_scope("scaled"):
            x = x / TOO_LARGE
        with jax.named_scope("head"):
            return x @ weights[2]

    return _Tuned(jax.jit(network), network)


def _haiku() -> _Tuned:
    def network(x: Any) -> Any:
        x = hk.Linear(8, with_bias=False, name="a")(x)
        x = hk.Linear(8, with_bias=False, name="b")(x) * TOO_LARGE
        return hk.Linear(8, with_bias=False, name="head")(x / TOO_LARGE)

    made = hk.without_apply_rng(hk.transform(network))
    variables = made.init(KEYS[0], BATCHES[0])
    return _Tuned(jax.jit(lambda x: made.apply(variables, x)), made)


@pytest.mark.parametrize("by", ["place", "layer", "operation"])
@pytest.mark.parametrize("make", [_scoped, _haiku])
def test_places_of_a_function_are_its_named_scopes(make: Callable[[], _Tuned], by: Any) -> None:
    run, network = make()
    scoped = make is _scoped

    def stepped(x: Any) -> Any:
        with jax.named_scope("step"):  # around the call: its name is in no layer's name
            return run(x)

    found = unamp.tune(stepped, network, BATCHES, dtype="float16", tolerance=1e-2, by=by)
    assert found.report.framework == "jax"
    assert found.report.network == ("network" if scoped else f"{type(network).__name__}.apply")
    products = {place.layer for place in found.report.places if place.op == "matmul"}
    assert products == ({"a", "b.wo", "head"} if scoped else {"a", "b", "head"})
    held = {(place.layer, place.op) for place in found.report.held}
    assert (
        {("b.wo", "mul"), ("scaled", "div")} <= held
        if scoped
        else {("", "mul"), ("", "div")} <= held
    )
    # All products in `b.wo` belong to one layer.
    assert {layer for layer, op in held if op == "matmul"} == (
        {"b.wo"} if scoped and by == "layer" else set()
    )
    exact = run(BATCHES[0])
    for call in (run, jax.jit(run)):
        with found.region(network):
            low = call(BATCHES[0])
        assert (
            0
            < np.linalg.norm(np.float64(low) - np.float64(exact))
            <= 1e-2 * np.linalg.norm(np.float64(exact))
        )


# --- the promises of every framework --------------------------------------------------------------


def _soft(x: Any) -> Any:
    e = jnp.exp(x)
    return e / jnp.sum(e, -1, keepdims=True)


def _total(x: Any) -> Any:
    return jnp.sum(x) / x.size


class _NnxFunction(nnx.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        return self.function(x)


class _NnxNet(nnx.Module):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.first, self.big = (
            nnx.Linear(tuned.WIDTH, tuned.WIDTH, use_bias=False, rngs=nnx.Rngs(0)) for _ in range(2)
        )
        self.norm = nnx.LayerNorm(tuned.WIDTH, rngs=nnx.Rngs(0))
        self.total, self.soft = _NnxFunction(_total), _NnxFunction(_soft)
        self.first.kernel[...], self.big.kernel[...] = weights["first"].T, weights["big"].T

    def __call__(self, x: Any, many: Any) -> Any:
        h = jax.nn.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _trained(network: _NnxNet, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    graph, state = nnx.split(network)

    def scaled(state: Any) -> tuple[Any, Any]:
        made = nnx.merge(graph, state)
        loss = jnp.mean(made.big(jax.nn.relu(made.first(batch[0]))) ** 2)
        return loss * scale, loss

    (_, loss), gradients = jax.value_and_grad(scaled, has_aux=True)(state)
    return loss, [gradients[name].kernel[...] / scale for name in ("first", "big")]


OF = tuned.Tunable(_NnxNet, jnp.asarray, _trained)
