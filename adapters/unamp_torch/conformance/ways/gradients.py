"""Functions that are computed again for their gradients, or transformed by `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from unamp.adapter import OpenRegion, Way
from unamp_torch.conformance.ways.opening import Function, both, inside

__all__ = ["WAYS"]


def _floating(inputs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(place for place, tensor in enumerate(inputs) if tensor.is_floating_point())


def _grad(function: Function, region: OpenRegion, inputs: Sequence[Any], *, around: bool) -> tuple[Any, list[Any]]:
    places = _floating(inputs)
    if around:
        with region():
            gradients, value = torch.func.grad_and_value(function, places)(*inputs)
    else:
        gradients, value = torch.func.grad_and_value(inside(function, region), places)(*inputs)
    return value, _in_places(inputs, places, gradients)


def _in_places(inputs: Sequence[Any], places: Sequence[int], gradients: Sequence[Any]) -> list[Any]:
    found = dict(zip(places, gradients, strict=True))
    return [found.get(place) for place in range(len(inputs))]


def _vjp(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    places = _floating(inputs)

    def of_floating(*given: Any) -> Any:
        rest = dict(zip(places, given, strict=True))
        with region():
            return function(*(rest.get(place, tensor) for place, tensor in enumerate(inputs)))

    value, back = torch.func.vjp(of_floating, *(inputs[place] for place in places))
    return value, _in_places(inputs, places, back(torch.ones_like(value)))


def _vmap(function: Function, inputs: Sequence[Any]) -> Any:
    return torch.vmap(function)(*(tensor.unsqueeze(0) for tensor in inputs))[0]


def _jvp(function: Function, inputs: Sequence[Any]) -> Any:
    places = _floating(inputs)

    def of_floating(*given: Any) -> Any:
        rest = dict(zip(places, given, strict=True))
        return function(*(rest.get(place, tensor) for place, tensor in enumerate(inputs)))

    primals = tuple(inputs[place] for place in places)
    return torch.func.jvp(of_floating, primals, tuple(map(torch.ones_like, primals)))[0]


class _Weighed(nn.Module):
    """A network with a function's floating arguments as parameters, and the others as its inputs."""

    def __init__(self, function: Function, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.function, self.places = function, _floating(inputs)
        for place in self.places:
            self.register_parameter(f"p{place}", nn.Parameter(inputs[place].detach().clone()))

    def forward(self, *inputs: Any) -> Any:
        named = dict(self.named_parameters())
        return self.function(*(named.get(f"p{place}", tensor) for place, tensor in enumerate(inputs)))


def _functional_call(function: Function, inputs: Sequence[Any]) -> Any:
    network = _Weighed(function, inputs)
    given = {f"p{place}": inputs[place] for place in network.places}
    return torch.func.functional_call(network, given, tuple(inputs))


def _recomputed(*, reentrant: bool) -> Callable[[Function, Sequence[Any]], Any]:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        return checkpoint(function, *inputs, use_reentrant=reentrant)

    return run


WAYS = (
    *both("checkpoint", "recomputed", _recomputed(reentrant=False)),
    *both("checkpoint, reentrant", "recomputed", _recomputed(reentrant=True)),
    Way("func.grad, region inside", "transformed", value_and_grad=partial(_grad, around=False)),
    Way("func.grad, region around", "transformed", value_and_grad=partial(_grad, around=True)),
    Way("func.vjp", "transformed", value_and_grad=_vjp),
    *both("vmap", "transformed", _vmap, equal="bound"),
    *both("func.jvp", "transformed", _jvp, gradients=False),
    *both("functional_call", "transformed", _functional_call),
)
