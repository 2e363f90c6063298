"""Rules for single layers of Keras, which the compiler of TensorFlow's functions must know of."""

from __future__ import annotations

from typing import Any

from unamp.adapter.keras_layers import KerasLayers
from unamp.adapter.layers import LayerRegion
from unamp_tensorflow import compiling, patches


def layered() -> KerasLayers:
    """Return the object that gives layers rules."""
    return KerasLayers(_note)


def _note(layer: Any, region: LayerRegion | None) -> None:
    compiling.layer_rules.put(layer, region, patches.compilers)
