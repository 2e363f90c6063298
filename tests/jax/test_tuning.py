"""`unamp.tune` on networks of flax, equinox and Keras with JAX, whose layers have rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tuned
from flax import linen, nnx

import unamp

KEYS = jax.random.split(jax.random.key(0), 6)
BATCHES = [jax.random.normal(key, (4, 8)) for key in KEYS[2:]]

#: The product of `b` is beyond float16.
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
    net = _Equinox(eqx.nn.Linear(8, 8, key=KEYS[0]), eqx.nn.Linear(8, 8, key=KEYS[1]), eqx.nn.LayerNorm(8))
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
    layers = keras.layers.Dense(8, name="a"), keras.layers.Dense(8, name="b"), keras.layers.LayerNormalization(name="norm")
    net = keras.Sequential([keras.Input((8,)), *layers])
    layers[1].kernel.assign(layers[1].kernel * TOO_LARGE)
    return _Tuned(lambda x: net(x), net)


@pytest.mark.parametrize("way", [lambda run: run, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("by", ["place", "layer", "operation"])
@pytest.mark.parametrize("make", [_equinox, _nnx, _linen, _keras])
def test_a_product_that_overflows_is_found(make: Callable[[], _Tuned], by: Any, way: Any) -> None:
    run, network = make()
    run = way(run)
    tuned = unamp.tune(run, network, BATCHES, dtype="float16", tolerance=1e-2, by=by)
    held = {(place.layer, place.op) for place in tuned.report.held}
    assert {("b", "linear"), ("norm", "layer_norm")} <= held
    assert (("a", "linear") in held) is (by == "operation")
    exact = run(BATCHES[0])
    for call in (run, jax.jit(run)):
        with tuned.region(network):
            found = call(BATCHES[0])
        assert np.linalg.norm(np.float64(found) - np.float64(exact)) <= 1e-2 * np.linalg.norm(np.float64(exact))
    with unamp.policy_region(unamp.Policy("O3", "float16")):
        assert not bool(jnp.all(jnp.isfinite(run(BATCHES[0]))))


# --- the promises of every framework --------------------------------------------------------------------------------------------


def _soft(x: Any) -> Any:
    e = jnp.exp(x)
    return e / jnp.sum(e, -1, keepdims=True)


def _total(x: Any) -> Any:
    return jnp.sum(x) / x.size


class _EquinoxFunction(eqx.Module):
    function: Any = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.function(x)


class _EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    big: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    total: _EquinoxFunction
    soft: _EquinoxFunction

    def __call__(self, x: Any, many: Any) -> Any:
        h = jax.nn.relu(jax.vmap(self.first)(x))
        return jax.vmap(self.norm)(jax.vmap(self.big)(h)), self.total(many), self.soft(h + 12)


def _equinox_of(weights: dict[str, np.ndarray]) -> Any:
    first, big = (eqx.nn.Linear(tuned.WIDTH, tuned.WIDTH, use_bias=False, key=KEYS[0]) for _ in range(2))
    net = _EquinoxNet(first, big, eqx.nn.LayerNorm(tuned.WIDTH), _EquinoxFunction(_total), _EquinoxFunction(_soft))
    new = [jnp.asarray(weights["first"]), jnp.asarray(weights["big"])]
    return eqx.tree_at(lambda made: [made.first.weight, made.big.weight], net, new)


class _NnxFunction(nnx.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        return self.function(x)


class _NnxNet(nnx.Module):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.first, self.big = (nnx.Linear(tuned.WIDTH, tuned.WIDTH, use_bias=False, rngs=nnx.Rngs(0)) for _ in range(2))
        self.norm = nnx.LayerNorm(tuned.WIDTH, rngs=nnx.Rngs(0))
        self.total, self.soft = _NnxFunction(_total), _NnxFunction(_soft)
        self.first.kernel[...], self.big.kernel[...] = weights["first"].T, weights["big"].T

    def __call__(self, x: Any, many: Any) -> Any:
        h = jax.nn.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


class _LinenFunction(linen.Module):
    function: Any

    @linen.compact
    def __call__(self, x: Any) -> Any:
        # A layer of linen is found by its variables.
        return self.function(x) * self.param("one", linen.initializers.ones, ())


class _LinenNet(linen.Module):
    def setup(self) -> None:
        self.first, self.big = (linen.Dense(tuned.WIDTH, use_bias=False) for _ in range(2))
        self.norm, self.total, self.soft = linen.LayerNorm(), _LinenFunction(_total), _LinenFunction(_soft)

    def __call__(self, x: Any, many: Any) -> Any:
        h = jax.nn.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _linen_of(weights: dict[str, np.ndarray]) -> Any:
    net = _LinenNet()
    variables = net.init(KEYS[0], jnp.zeros((1, tuned.WIDTH)), jnp.zeros((1,)))
    for name, array in weights.items():
        variables["params"][name]["kernel"] = jnp.asarray(array.T)
    return net.bind(variables)


class _KerasFunction(keras.layers.Layer):
    def __init__(self, function: Any, **rest: Any) -> None:
        super().__init__(**rest)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


class _KerasNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.big = (keras.layers.Dense(tuned.WIDTH, use_bias=False, name=name) for name in ("first", "big"))
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, name="norm")
        self.total, self.soft = _KerasFunction(_total, name="total"), _KerasFunction(_soft, name="soft")

    def call(self, x: Any, many: Any) -> Any:
        h = keras.ops.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _keras_of(weights: dict[str, np.ndarray]) -> Any:
    network = _KerasNet()
    network(jnp.zeros((1, tuned.WIDTH)), jnp.zeros((1,)))
    for name, array in weights.items():
        getattr(network, name).kernel.assign(array.T)
    return network


def _pure(network: Any) -> tuple[Callable[[Any, Any, Any], Any], Any]:
    """Return a network as a function of its leaves and an input, and its leaves."""
    if isinstance(network, nnx.Module):
        graph, state = nnx.split(network)
        return (lambda leaves, x, many: nnx.merge(graph, leaves)(x, many)), state
    if isinstance(network, linen.Module):
        return network.unbind()[0].apply, network.variables
    if isinstance(network, keras.Model):
        leaves = [variable.value for variable in network.trainable_variables]
        return (lambda leaves, x, many: network.stateless_call(leaves, [], x, many)[0]), leaves
    leaves, static = eqx.partition(network, eqx.is_array)
    return (lambda leaves, x, many: eqx.combine(leaves, static)(x, many)), leaves


def _trained(network: Any, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    run, leaves = _pure(network)

    def scaled(leaves: Any) -> tuple[Any, Any]:
        loss = jnp.mean(run(leaves, *batch)[0] ** 2)
        return loss * scale, loss

    (_, loss), gradients = jax.value_and_grad(scaled, has_aux=True)(leaves)
    # Those of the matrices: the others are of layers that the loss does not need.
    return loss, [gradient / scale for gradient in jax.tree.leaves(gradients) if gradient.ndim == 2]


OF = {
    name: tuned.Tunable(make, jnp.asarray, _trained)
    for name, make in {"equinox": _equinox_of, "nnx": _NnxNet, "linen": _linen_of, "keras": _keras_of}.items()
}


@pytest.mark.parametrize("library", OF)
@pytest.mark.parametrize("promise", tuned.PROMISES)
def test_promises(promise: Any, library: str) -> None:
    promise(OF[library])
