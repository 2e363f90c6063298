"""Rules for single layers of Keras, on whichever backend: a layer with a rule gets a class derived from its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from unamp.adapter.keras_models import library
from unamp.adapter.layers import LayerRegion, derive, put_by_class
from unamp.errors import NotExpressible

__all__ = ["KerasLayers"]


class KerasLayers:
    """See `unamp.adapter.layers.Layered`.

    Args:
        note: has the backend's compiler know of a layer's rule; see `unamp.adapter.layers.RulesInForce.put`. None where the
            compiler notices a layer's new class by itself.
    """

    def __init__(self, note: Callable[[Any, LayerRegion | None], None] | None = None) -> None:
        self._note = note

    def unwrapped(self, network: Any) -> Any:
        """Return the network: nothing is wrapped around it."""
        return network

    def stays(self, network: Any) -> bool:
        """Return True."""
        return True

    def inner(self, layer: Any) -> Iterable[tuple[str, Any]]:
        """Return the layers directly inside a layer, with their names."""
        return ((str(each.name), each) for each in layer._layers)

    def runs(self, layer: Any) -> bool:
        """Return whether a layer has a call of its own."""
        layers = library().layers
        return type(layer).call is not layers.Layer.call and not isinstance(layer, layers.InputLayer)

    def check(self, layer: Any, region: LayerRegion) -> None:
        """Raise NotExpressible where a layer's call is not its class's."""
        if "call" in vars(layer):
            raise NotExpressible(
                f"this {type(layer).__name__} has a method call of its own, put on the instance, which goes past its class; "
                "put rules on first, or name the layers inside or around it"
            )

    def put(self, layer: Any, region: LayerRegion | None) -> None:
        """Have a layer run in a region, and its backend know of it."""
        put_by_class(layer, region, _derived)
        if self._note is not None:
            self._note(layer, region)


def _derived(plain: type) -> type:
    # Keras copies and pickles a model by saving it, as what it is without rules.
    return derive(plain, "call", copied=False)
