"""Rules for single layers: a layer with a rule gets a class derived from its own."""

from __future__ import annotations

from collections.abc import Iterable

import paddle
from paddle.nn import Layer

from unamp.adapter.layers import Layered, LayerRegion, derive, put_by_class
from unamp.errors import NotExpressible
from unamp_paddle import compiling, patches
from unamp_paddle.hooks import HOOKS


class PaddleLayers(Layered):
    """See `unamp.adapter.layers.Layered`."""

    def unwrapped(self, network: Layer) -> Layer:
        while isinstance(network, paddle.DataParallel):
            network = HOOKS.attribute(network, "_layers")
        return network

    def inner(self, layer: Layer) -> Iterable[tuple[str, Layer]]:
        return ((name, each) for name, each in layer._sub_layers.items() if each is not None)

    def runs(self, layer: Layer) -> bool:
        return type(layer).forward is not Layer.forward

    def check(self, layer: Layer, region: LayerRegion) -> None:
        if not _is_of_class(layer):
            raise NotExpressible(
                f"this {type(layer).__name__} has a forward of its own, put on the instance (by "
                "paddle.jit.to_static, maybe), which goes past its class; put rules on first, or "
                "name the layers inside or around it"
            )

    def put(self, layer: Layer, region: LayerRegion | None) -> None:
        vars(layer).pop("forward", None)
        put_by_class(layer, region, lambda plain: derive(plain, "forward"))
        compiling.layer_rules.put(layer, region, patches.compilers)


def _is_of_class(layer: Layer) -> bool:
    """Return whether a layer's forward is its class's, which SOT also puts on the instance."""
    own = vars(layer).get("forward")
    return own is None or (
        getattr(own, "__self__", None) is layer
        and any(own.__func__ is vars(each).get("forward") for each in type(layer).__mro__)
    )
