"""The layers of a network by their names.

PyTorch's modules are named by their attributes, layers of Keras by the names they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from unamp.adapter.keras_layers import KerasLayers
from unamp.adapter.keras_models import is_layer, own_variables


def within(layer: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return the layers directly inside a layer, with their names."""
    held = [(name, each) for name, each in layer._modules.items() if each is not None]
    if not is_layer(layer, "torch"):
        return held
    # Beside layers and Keras' own attributes, only the module of a TorchModuleWrapper is left.
    wrapped = [
        (name, each)
        for name, each in held
        if not is_layer(each, "torch") and not isinstance(each, nn.ParameterDict)
    ]
    return [*KerasLayers().inner(layer), *wrapped]


def named_parameters(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a network by their layers and names.

    To PyTorch a network of Keras is one list of parameters.
    """
    if not is_layer(network, "torch"):
        yield from network.named_parameters()
        return
    for path, layer in (("", network), *named_layers(network)):
        for variable in own_variables(layer) if is_layer(layer, "torch") else ():
            yield f"{path}.{variable.name}".removeprefix("."), variable.value
        if not is_layer(layer, "torch"):
            for name, parameter in layer.named_parameters(recurse=False):
                yield f"{path}.{name}", parameter


def named_layers(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers inside a network, a shared one under its first name."""
    return _named(network, (), {id(network)})


def _named(
    layer: nn.Module, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    for name, inner in within(layer):
        if id(inner) not in seen:
            seen.add(id(inner))
            yield ".".join((*path, name)), inner
            yield from _named(inner, (*path, name), seen)
