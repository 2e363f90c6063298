"""Functions inside Keras layers and models, which are called, trained, or exported and loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import both
from unamp_tensorflow.conformance.ways.opening import (
    Differentiates,
    ValueAndGrads,
    both_gradients,
    floating,
    of_tensors,
)


def _layer(function: Function) -> Any:
    """Return a Keras layer that calls a function with its inputs."""

    class Computing(tf.keras.layers.Layer):  # type: ignore[misc] # Keras comes without types
        def call(self, given: Any) -> Any:
            return function(*given)

    # With autocast Keras would cast the inputs to the layer's dtype before the call.
    return Computing(autocast=False)


def _called(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return _layer(taking)(tensors)


def _decorated_call(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)

    class Computing(tf.keras.layers.Layer):  # type: ignore[misc]
        @region()
        def call(self, given: Any) -> Any:
            return taking(*given)

    return Computing(autocast=False)(tensors)


def _model(function: Function, inputs: Sequence[Any]) -> tuple[Any, Any, list[int]]:
    """Return a model whose weights are the floating inputs, a row of data, and their places."""
    places = list(floating(inputs))

    class Network(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.held = [
                self.add_weight(
                    shape=inputs[place].shape, dtype=inputs[place].dtype.name,
                    initializer=lambda shape, dtype, place=place: inputs[place], autocast=False,
                )
                for place in places
            ]  # fmt: skip

        def call(self, row: Any) -> Any:
            given = list(inputs)
            for place, weight in zip(places, self.held, strict=True):
                given[place] = tf.convert_to_tensor(weight.value)
            result = function(*given)
            self.computed = result.dtype
            return result

    return Network(), tf.zeros((1, 1)), places


def _predicted(function: Function, inputs: Sequence[Any]) -> Any:
    """Return the result of `predict_on_batch`, whose Python code leaves low numbers as they are."""
    network, row, _ = _model(function, inputs)
    network.compile()
    return tf.constant(network.predict_on_batch(row))


class _Kept:
    """The gradients of a model's weights, in variables, which a step of any mode can write."""

    def __init__(self, network: Any) -> None:
        self._order = {id(weight): n for n, weight in enumerate(network.held)}
        self._kept = [tf.Variable(tf.zeros_like(weight.value)) for weight in network.held]
        self._arrived: set[int] = set()

    def take(self, gradients: Iterable[Any], weights: Iterable[Any]) -> None:
        """Store the gradients of the weights that have one."""
        for gradient, weight in zip(gradients, weights, strict=True):
            if gradient is not None:
                self._kept[self._order[id(weight)]].assign(gradient)
                self._arrived.add(self._order[id(weight)])

    def of(self, held: Sequence[int], places: Sequence[int]) -> list[Any]:
        """Return the gradients for the inputs in some places, from those of the weights."""
        found = {held[n]: tf.convert_to_tensor(self._kept[n]) for n in self._arrived}
        return [found.get(place) for place in places]


def _fitted(**options: Any) -> Differentiates:
    """Return a way that trains one step with `fit`; the optimizer stores the gradients."""

    def run(function: Function, inputs: Sequence[Any], places: Sequence[int]) -> ValueAndGrads:
        network, row, held = _model(function, inputs)
        network.build((1, 1))
        kept, optimizer = _Kept(network), tf.keras.optimizers.SGD(0.0)
        apply = optimizer.apply

        def keeping(grads: Any, trainable_variables: Any = None) -> Any:
            kept.take(grads, trainable_variables)
            return apply(grads, trainable_variables)

        optimizer.apply = keeping
        network.compile(optimizer=optimizer, loss=lambda wanted, found: found, **options)
        history = network.fit(row, row, epochs=1, verbose=0)
        return tf.cast(history.history["loss"][0], network.computed), kept.of(held, places)

    return run


def _exported(function: Function, inputs: Sequence[Any]) -> Any:
    network, row, _ = _model(function, inputs)
    network(row)
    with tempfile.TemporaryDirectory() as folder:
        network.export(
            folder, format="tf_saved_model", verbose=False, input_signature=[tf.TensorSpec((1, 1))]
        )
        loaded = tf.saved_model.load(folder)  # it holds the variables
        return loaded.serve(row)


def _trained_by_hand(**options: Any) -> Differentiates:
    """Return a way that trains by a user's own `train_step`."""

    def run(function: Function, inputs: Sequence[Any], places: Sequence[int]) -> ValueAndGrads:
        network, row, held = _model(function, inputs)
        network.build((1, 1))
        kept = _Kept(network)

        def train_step(data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = network(data[0] if isinstance(data, tuple) else data, training=True)
            kept.take(tape.gradient(loss, [weight.value for weight in network.held]), network.held)
            return {"value": tf.cast(loss, tf.float32)}

        network.train_step = train_step
        network.compile(**options)
        history = network.fit(row, epochs=1, verbose=0)
        return tf.cast(history.history["value"][0], network.computed), kept.of(held, places)

    return run


def ways() -> Iterator[Way]:
    """Yield the ways of Keras."""
    yield from both("Keras layer", "eager", _called)
    yield Way("Keras layer, call decorated", "decorated", _decorated_call)
    yield from both(
        "Keras predict", "compiled", _predicted, gradients=False, equal="bound", dear=True
    )
    modes: dict[str, dict[str, Any]] = {
        "run_eagerly": {"run_eagerly": True},
        "in a graph": {"jit_compile": False},
        "in XLA": {"jit_compile": True},
    }
    for name, options in modes.items():
        promised: dict[str, Any] = {
            "dear": True,
            "equal": "bits" if name == "run_eagerly" else "bound",
        }
        yield from both_gradients(f"Keras fit, {name}", "compiled", _fitted(**options), **promised)
    by_hand = _trained_by_hand(jit_compile=False)
    yield from both_gradients("Keras train_step", "compiled", by_hand, equal="bound", dear=True)
    yield from both(
        "Keras export", "exported", _exported, gradients=False, equal="bound", dear=True
    )
