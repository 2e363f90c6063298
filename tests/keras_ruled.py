"""Models of Keras with rules for their layers, on every backend; see `ruled`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import ruled
from ruled import BF16, EXPECTED, F32, RULE

import unamp


class Block(keras.layers.Layer):
    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest)
        self.wi, self.wo = keras.layers.Dense(4, name="wi"), keras.layers.Dense(4, name="wo")

    def call(self, x: Any) -> Any:
        return self.wi(x), self.wo(x)


class Net(keras.Model):
    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest)
        self.first, self.second = Block(name="first"), Block(name="second")

    def call(self, x: Any) -> Any:
        return (*self.first(x), *self.second(x))


def made(x: Any) -> Net:
    network = Net()
    network(x)
    return network


def share(network: Net) -> None:
    network.second._tracker.unlock()  # Keras forbids to change a layer that is built
    del network.second.wo
    network.second.wo = network.first.wo


class _Overflows(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = (
            Block(name="block"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(1),
        )

    def call(self, x: Any) -> Any:
        return self.head(self.norm(self.block.wo(keras.ops.relu(self.block.wi(x)) + 4)))


def losses(
    x: Any, gradients: Callable[[Callable[[], Any], Any], tuple[Any, Any]]
) -> Callable[[Any], list[float]]:
    """Return a function that trains a network whose `wo` overflows; see `ruled.Layers.losses`.

    Args:
        x: the input.
        gradients: returns the loss that a function computes, and the gradients of a network's
            trainable variables.
    """

    def trained(rules: Any) -> list[float]:
        keras.utils.set_random_seed(1)
        network, optimizer = _Overflows(), keras.optimizers.SGD(0.05)
        network(x)
        network.block.wo.kernel.assign(np.full((4, 4), 9000, "float32"))

        def loss() -> Any:
            with unamp.autocast(dtype="float16"):
                return keras.ops.mean((network(x) - 1) ** 2)

        handle = unamp.layer_policies(network, rules) if rules else None
        found = []
        for _ in range(4):
            value, slopes = gradients(loss, network)
            optimizer.apply(slopes, network.trainable_variables)
            found.append(float(value))
        if handle:
            handle.remove()
        return found

    return trained


def _dtype(tensor: Any) -> str:
    return str(keras.backend.standardize_dtype(tensor.dtype))


def fit_follows_rules(of: ruled.Layers) -> None:
    """Check `fit`, also with a model inside a model, and with one that was fitted before."""
    seen: list[str] = []

    class Seen(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            seen.append(_dtype(x))
            return x

    inner = keras.Sequential([keras.layers.Dense(3, name="inside"), Seen()], name="inner")
    a, b = keras.layers.Dense(4, name="a"), keras.layers.Dense(1, name="b")
    model = keras.Sequential([keras.layers.Input((4,)), a, Seen(), inner, b, Seen()])
    model.compile("sgd", "mse")

    def fitted() -> list[str]:
        with unamp.autocast(dtype="bfloat16"):
            model.fit(np.ones((4, 4), "float32"), np.ones((4, 1), "float32"), verbose=0)
        return seen[-3:]

    assert fitted() == [BF16, BF16, BF16]
    with unamp.layer_policies(model, {"a": F32, "inner.*": F32}) as rules:
        assert {"a", "inner.inside"} <= set(rules.layers)
        assert fitted() == [F32, F32, BF16]


def functional_models_follow_rules(of: ruled.Layers) -> None:
    """Check a layer that is called twice: both calls have its rule.

    A trace names the layer and its rule.
    """
    dense = keras.layers.Dense
    x = keras.Input((4,))
    twice = dense(4, name="twice")
    inner = keras.Model(x, dense(4, name="deep")(x), name="inner")
    model = keras.Model(x, dense(4, name="last")(twice(inner(twice(x)))), name="outer")
    with unamp.layer_policies(model, {"twice": F32, "inner.deep": F32}), unamp.trace() as trace:
        assert of.dtypes(lambda x: [model(x)]) == [BF16]
    found = [
        (each.layer, each.rule.name, each.compute) for each in trace.records if each.op == "linear"
    ]
    kind = type(model).__name__
    assert found == [
        (f"{kind}.twice", "FP32", F32),
        (f"{kind}.inner.deep", "FP32", F32),
        (f"{kind}.twice", "FP32", F32),
        (f"{kind}.last", "LOW", BF16),
    ]


@keras.saving.register_keras_serializable("tests of unamp")
class Twice(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


def test_what_is_saved_has_no_rules(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(4, name="a"), Twice(name="twice")]
    )
    with unamp.layer_policies(model, {"*": F32}):
        assert model.get_config() == keras.Sequential.from_config(model.get_config()).get_config()
        model.save(tmp_path / "model.keras")
        for other in (
            keras.models.load_model(tmp_path / "model.keras"),
            copy.deepcopy(model),
            keras.models.clone_model(model),
        ):
            assert [type(layer) for layer in other.layers] == [keras.layers.Dense, Twice]
    assert [type(layer) for layer in model.layers] == [keras.layers.Dense, Twice]


def decorated_networks_have_rules_in_either_order(of: ruled.Layers) -> None:
    network = of.network()
    rules = unamp.layer_policies(network, RULE)
    unamp.decorate(network, level="O2", dtype="bfloat16")
    assert of.dtypes(network) == EXPECTED
    rules.remove()
    with unamp.layer_policies(network, RULE):
        assert of.dtypes(network) == EXPECTED
    assert of.dtypes(network) == [BF16] * 4


def a_call_of_the_instance_is_refused(of: ruled.Layers) -> None:
    network = of.network()
    network.first.wo.call = network.first.wo.call
    with pytest.raises(unamp.NotExpressible, match="call of its own, put on the instance"):
        unamp.layer_policies(network, RULE)


def a_quantized_layer_is_refused(of: ruled.Layers) -> None:
    network = of.network()
    network.first.wo.quantize("int8")
    with pytest.raises(unamp.NotExpressible, match=r"wo is quantized \(int8\)"):
        unamp.layer_policies(network, RULE)
    with unamp.layer_policies(network, {"second.wo": F32}):
        assert of.dtypes(network)[3] == F32


def a_layer_that_is_quantized_later_is_refused(of: ruled.Layers) -> None:
    """Check that it is refused until its rule is removed; eagerly, and in compiled `fit`."""
    network = of.network()
    rules = unamp.layer_policies(network, {"first.wo": F32})
    assert of.dtypes(network)[1] == F32
    network.quantize("int8", filters="wo")
    refused = r"wo is quantized \(int8\).*remove the rule"
    for run in (network, lambda x: network.first(x)):
        with pytest.raises(unamp.NotExpressible, match=refused):
            of.dtypes(run)
    assert unamp.current_policy() is None
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, name="wo")])
    with unamp.layer_policies(model, {"wo": F32}):
        model.quantize("float8")  # Keras can train float8
        model.compile("sgd", "mse")
        with pytest.raises(RuntimeError, match=r"wo is quantized \(float8\)"):
            # Keras may quote it in an error of its own
            model.fit(np.ones((4, 4), "float32"), np.ones((4, 1), "float32"), verbose=0)
    rules.remove()
    assert "quantized_call" not in vars(network.first.wo)
    with pytest.raises(unamp.NotExpressible, match=r"wo is quantized \(int8\).*leave it out"):
        unamp.layer_policies(network, {"first.wo": F32})
    assert len(of.dtypes(network)) == 4


#: The promises for Keras' layers, beside `ruled.PROMISES`.
PROMISES = (
    fit_follows_rules,
    functional_models_follow_rules,
    decorated_networks_have_rules_in_either_order,
    a_call_of_the_instance_is_refused,
    a_quantized_layer_is_refused,
    a_layer_that_is_quantized_later_is_refused,
)


@pytest.mark.parametrize("promise", [*ruled.PROMISES, *PROMISES])
def test_promises(request: pytest.FixtureRequest, promise: Callable[[ruled.Layers], None]) -> None:
    """Check one promise; the folder's module has the network as `OF`."""
    promise(request.module.OF)
