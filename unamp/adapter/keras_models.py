"""Models of Keras, for every adapter whose framework Keras computes with.

Nothing here imports Keras.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from unamp.adapter.contract import Decoration
from unamp.adapter.facts import read_facts
from unamp.adapter.framework_types import Layer, Variable
from unamp.adapter.layers import excluded_layers
from unamp.dtypes import ELIGIBLE, LOW_DTYPES
from unamp.errors import NotExpressible


@dataclass(frozen=True)
class Facts:
    """Facts about Keras, whatever it computes with.

    `data/keras.toml` holds them, with the explanations.

    Attributes:
        parts: for layers with an activation of the user's choice, the operations that belong to the
            layer itself.
        suspended: functions inside which no policy is in force, by module.
        metrics: methods of metrics and regularizers, by module, which get low tensors in float32.
    """

    parts: Mapping[str, frozenset[str]]
    suspended: Mapping[str, tuple[str, ...]]
    metrics: Mapping[str, tuple[str, ...]]


@cache
def facts() -> Facts:
    """Return the facts, read from their data file."""
    return read_facts(Facts, "unamp", "data/keras.toml")


def keras_on(backend: str) -> bool:
    """Return whether Keras is imported and computes with a framework, by its import name."""
    module = sys.modules.get("keras.src.backend")
    return (
        module is not None
        and getattr(module, "backend", lambda: "")() == backend
        and "keras" in sys.modules
    )


def library() -> Any:
    """Return Keras, which must be imported."""
    return sys.modules["keras"]


def is_layer(value: object, backend: str) -> bool:
    """Return whether a value is a layer or model of Keras, where that computes with `backend`."""
    return keras_on(backend) and isinstance(value, library().layers.Layer)


def layers_to_cast(
    networks: Sequence[Layer], excluded: Sequence[object]
) -> tuple[list[Layer], set[int]]:
    """Return the layers that `unamp.decorate` makes low, and the ids of variables kept float32.

    Raises:
        TypeError: where an excluded layer is no layer.
    """
    layers = library().layers
    instances, chosen = excluded_layers(
        excluded, layers.Layer, "layers and classes of layers of Keras"
    )
    classes = (layers.BatchNormalization, layers.Normalization, *chosen)
    seen: set[int] = set()
    kept: set[int] = set()

    def layers_of(layer: Layer) -> Iterator[Layer]:
        if id(layer) in instances or isinstance(layer, classes):
            kept.update(map(id, layer.variables))
            return
        if id(layer) in seen:
            return
        seen.add(id(layer))
        # A model that has no variables of its own leaves its inputs to its layers.
        if not isinstance(layer, (library().Model, layers.InputLayer)) or own_variables(layer):
            yield layer
        for each in layer._flatten_layers(include_self=False, recursive=False):
            yield from layers_of(each)

    return [layer for network in networks for layer in layers_of(network)], kept


def own_variables(layer: Layer) -> list[Variable]:
    """Return the floating variables of a layer itself."""
    held = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [variable for variable in held if variable._dtype in ELIGIBLE]


def named_variables(network: Layer) -> list[tuple[str, Variable]]:
    """Return a network's trainable variables in its order, each with its path as a dotted name."""
    return [(str(each.path).replace("/", "."), each) for each in network.trainable_variables]


def check_saved(decoration: Decoration) -> None:
    """Raise NotExpressible for a ``save_dtype`` that Keras cannot save in."""
    if decoration.save_dtype not in (None, decoration.dtype):
        raise NotExpressible(
            "Keras saves a variable in the dtype that it has "
            f"(save_dtype={decoration.save_dtype!r}): cast what get_weights() returns, or save the "
            "optimizer, which holds float32 master weights"
        )


def check_float32(layers: Sequence[Layer]) -> None:
    """Raise ValueError where a variable of layers that are to be cast is low already."""
    found = [
        f"parameter {each.path} is {each._dtype}"
        for of in layers
        for each in own_variables(of)
        if each._dtype in LOW_DTYPES
    ]
    found += [
        f"layer {layer.name} is {layer.variable_dtype}"
        for layer in layers
        if layer.variable_dtype in LOW_DTYPES
    ]
    if found:
        raise ValueError(f"{found[0]} already; decorate a model whose parameters are float32, once")


def compute_low(networks: Sequence[Layer], layers: Sequence[Layer], dtype: str) -> None:
    """Tell Keras of layers whose variables are low.

    Variables that they still have to make will be low, and compiled functions are made anew.
    Outside a region the layers compute in the low dtype.
    """
    for layer in layers:
        layer.dtype_policy = dtype
    for layer in (layer for network in networks for layer in network._flatten_layers()):
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
