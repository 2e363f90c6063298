"""Rules for single layers of Keras: a layer with a rule gets a class derived from its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from unamp.adapter.layers import LayerRegion, derive, put_by_class
from unamp.errors import NotExpressible
from unamp_tensorflow import compiling, patches

__all__ = ["KerasLayers"]


class KerasLayers:
    """See `unamp.adapter.layers.Layered`."""

    def unwrapped(self, network: Any) -> Any:
        return network

    def inner(self, layer: Any) -> Iterable[tuple[str, Any]]:
        return ((str(each.name), each) for each in layer._layers)

    def runs(self, layer: Any) -> bool:
        return type(layer).call is not tf.keras.layers.Layer.call and not isinstance(layer, tf.keras.layers.InputLayer)

    def check(self, layer: Any, region: LayerRegion) -> None:
        if "call" in vars(layer):
            raise NotExpressible(
                f"this {type(layer).__name__} has a method call of its own, put on the instance, which goes past its class; "
                "put rules on first, or name the layers inside or around it"
            )

    def put(self, layer: Any, region: LayerRegion | None) -> None:
        put_by_class(layer, region, _derived)
        compiling.layer_rules.put(layer, region, patches.compilers)


def _derived(plain: type) -> type:
    # Keras copies and pickles a model by saving it, as what it is without rules.
    return derive(plain, "call", copied=False)
