"""`unamp.layer_policies` on Keras with TensorFlow."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import ruled
import tensorflow as tf
from ruled import BF16, EXPECTED, F32, LOW, RULE

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


def _made() -> Net:
    network = Net()
    network(OF.x)
    return network


def _share(network: Net) -> None:
    network.second._tracker.unlock()  # Keras would have it made like that
    del network.second.wo
    network.second.wo = network.first.wo


class _Overflows(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(name="block"), keras.layers.LayerNormalization(), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(self.norm(self.block.wo(tf.nn.relu(self.block.wi(x)) + 4)))


def _losses(rules: Any) -> list[float]:
    keras.utils.set_random_seed(1)
    network = _Overflows()
    network(OF.x)
    network.block.wo.kernel.assign(np.full((4, 4), 9000, "float32"))
    optimizer = keras.optimizers.SGD(0.05)
    handle = unamp.layer_policies(network, rules) if rules else None
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape, unamp.autocast(dtype="float16"):
            loss = tf.reduce_mean((network(OF.x) - 1) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables, strict=True)
        )
        losses.append(float(loss))
    if handle:
        handle.remove()
    return losses


OF = ruled.Layers(
    _made,
    tf.reshape(tf.linspace(-1.0, 1.0, 8), (2, 4)),
    dtype=lambda tensor: str(tensor.dtype.name),
    numbers=lambda tensor: tf.cast(tensor, tf.float32).numpy(),
    first="first",
    second="second",
    share=_share,
    low=lambda tensor: tf.cast(tensor, tf.bfloat16),
    losses=_losses,
)


@pytest.mark.parametrize("promise", ruled.PROMISES)
def test_promises(promise: Any) -> None:
    promise(OF)


@pytest.mark.parametrize("xla", [False, True])
def test_functions_are_traced_for_the_rules_too(xla: bool) -> None:
    network = _made()
    function = tf.function(network, jit_compile=xla)
    assert OF.dtypes(function) == [BF16] * 4
    for _ in range(2):
        with unamp.layer_policies(network, RULE):
            assert OF.dtypes(function) == EXPECTED
        assert OF.dtypes(function) == [BF16] * 4
    assert function.experimental_get_tracing_count() == 2
    assert OF.dtypes(function, region=False) == [F32] * 4
    with unamp.layer_policies(network, {"**.wi": LOW}):
        assert OF.dtypes(function, region=False) == [BF16, F32, BF16, F32]
    assert OF.dtypes(function, region=False) == [F32] * 4


def _sequential() -> Any:
    inner = keras.Sequential([keras.layers.Dense(3, name="inside")], name="inner")
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4, name="a"), inner, keras.layers.Dense(1, name="b")])


def test_fit_follows_rules() -> None:
    model = _sequential()
    model.compile("sgd", "mse")
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            seen.append(x.dtype)
            return x

    with unamp.autocast(dtype="bfloat16"), unamp.layer_policies(model, {"a": F32, "inner.*": F32}) as rules:
        assert set(rules.layers) == {"a", "inner.inside"}
        watched = keras.Sequential([model.layers[0], Seen(), model.layers[1], Seen(), model.layers[2], Seen()])
        watched.compile("sgd", "mse")
        watched.fit(np.ones((4, 4)), np.ones((4, 1)), verbose=0)
    assert [tf.as_dtype(dtype).name for dtype in seen[-3:]] == [F32, F32, BF16]


@keras.saving.register_keras_serializable("tests of unamp")
class _Twice(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


def test_what_is_saved_has_no_rules(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4, name="a"), _Twice(name="twice")])
    with unamp.layer_policies(model, {"*": F32}):
        assert model.get_config() == keras.Sequential.from_config(model.get_config()).get_config()
        model.save(tmp_path / "model.keras")
        for made in (keras.models.load_model(tmp_path / "model.keras"), copy.deepcopy(model), keras.models.clone_model(model)):
            assert [type(layer) for layer in made.layers] == [keras.layers.Dense, _Twice]
    assert [type(layer) for layer in model.layers] == [keras.layers.Dense, _Twice]


def test_decorated_networks_in_either_order() -> None:
    network = _made()
    rules = unamp.layer_policies(network, RULE)
    unamp.decorate(network, level="O2", dtype="bfloat16")
    assert OF.dtypes(network) == EXPECTED
    rules.remove()
    with unamp.layer_policies(network, RULE):
        assert OF.dtypes(network) == EXPECTED
    assert OF.dtypes(network) == [BF16] * 4


def test_a_call_of_the_instance_is_refused() -> None:
    network = _made()
    network.first.wo.call = network.first.wo.call
    with pytest.raises(unamp.NotExpressible, match="call of its own, put on the instance"):
        unamp.layer_policies(network, RULE)
