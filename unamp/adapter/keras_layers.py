"""Rules for single layers of Keras, on whichever backend.

A layer with a rule gets a `call` of its own. Keras copies, clones and saves a layer by its class
and its configuration: the new layer has the same class, and no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, NoReturn

from unamp.adapter.framework_types import Layer
from unamp.adapter.keras_models import library
from unamp.adapter.layers import REGION, Layered, LayerRegion, in_region
from unamp.errors import NotExpressible


class KerasLayers(Layered):
    """See `unamp.adapter.layers.Layered`.

    Args:
        note: tells the backend's compiler of a layer's rule; see
            `unamp.adapter.layers.RulesInForce.put`. None where the compiler notices by itself.
    """

    def __init__(self, note: Callable[[Layer, LayerRegion | None], None] | None = None) -> None:
        self._note = note

    def inner(self, layer: Layer) -> Iterable[tuple[str, Layer]]:
        """Return the layers directly inside a layer, with their names."""
        return ((str(each.name), each) for each in layer._layers)

    def runs(self, layer: Layer) -> bool:
        """Return whether a layer has a call of its own."""
        layers = library().layers
        return type(layer).call is not layers.Layer.call and not isinstance(
            layer, layers.InputLayer
        )

    def check(self, layer: Layer, region: LayerRegion) -> None:
        """Raise NotExpressible where Keras does not run a layer by its class's call."""
        if "call" in vars(layer) and REGION not in vars(layer):
            raise NotExpressible(
                f"this {type(layer).__name__} has a method call of its own, put on the instance, "
                "which goes past its class; put rules on first, or name the layers inside or "
                "around it"
            )
        if getattr(layer, "quantization_mode", None) is not None:
            raise NotExpressible(
                _quantized(layer, "leave it out of the rules, or do not quantize it")
            )

    def put(self, layer: object, region: LayerRegion | None) -> None:
        """Have a layer run in a region, and tell its backend."""
        kind: Any = type(layer)
        held, under = vars(layer), in_region(kind, "call")
        if region is None:
            held.pop(REGION, None)
            for method, ours in (("call", under), ("quantized_call", _refuse)):
                if getattr(held.get(method), "__func__", None) is ours:
                    # A method that is not ours wraps ours, and was put there since: it stays.
                    del held[method]
        else:
            if REGION not in held:
                held["call"] = MethodType(under, layer)
                held["quantized_call"] = MethodType(_refuse, layer)
            held[REGION] = region
        if self._note is not None:
            self._note(layer, region)


def _refuse(layer: Layer, *args: object, **kwargs: object) -> NoReturn:
    """Stand in for the `quantized_call` of a layer with a rule, and raise NotExpressible."""
    raise NotExpressible(
        _quantized(layer, "remove the rule, which was put on before, or do not quantize it")
    )


def _quantized(layer: Layer, way_out: str) -> str:
    return (
        f"{layer.name} is quantized ({layer.quantization_mode}): Keras runs it by its "
        f"quantized_call, where no rule is followed; {way_out}"
    )
