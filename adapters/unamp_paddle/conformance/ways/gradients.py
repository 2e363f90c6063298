"""Functions that are computed again for their gradients, differentiated as functions, or trained in replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute

from unamp.adapter import OpenRegion, Way
from unamp_paddle.conformance.ways.opening import Function, both, inside

__all__ = ["ways"]


def ways() -> Iterator[Way]:
    """Yield the ways of gradients."""
    for use_reentrant in (True, False):
        name = f"recompute, use_reentrant={use_reentrant}"
        yield from both(name, "recomputed", partial(_recomputed, use_reentrant=use_reentrant))
    yield Way("paddle.grad after the region", "transformed", value_and_grad=partial(_grad, within=False))
    yield Way("paddle.grad in the region", "transformed", value_and_grad=partial(_grad, within=True))
    yield Way("incubate.autograd.vjp", "transformed", value_and_grad=_vjp)
    for around in (True, False):
        run = partial(_replicated, around=around)
        yield Way(f"DataParallel, region {'around' if around else 'inside'}", "replicated", value_and_grad=run)


def _recomputed(function: Function, inputs: Sequence[Any], *, use_reentrant: bool) -> Any:
    return recompute(function, *inputs, use_reentrant=use_reentrant)


def _floating(inputs: Sequence[Any]) -> list[int]:
    return [place for place, tensor in enumerate(inputs) if tensor.is_floating_point()]


def _leaves(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs, those that are floating as tensors to differentiate by."""
    leaves = [tensor.detach() for tensor in inputs]
    for place in _floating(inputs):
        leaves[place].stop_gradient = False
    return leaves


def _grad(function: Function, region: OpenRegion, inputs: Sequence[Any], *, within: bool) -> tuple[Any, list[Any]]:
    leaves, places = _leaves(inputs), _floating(inputs)
    wanted = [leaves[place] for place in places]
    with region():
        value = function(*leaves)
        found = paddle.grad([value], wanted, allow_unused=True) if within else []
    if not within:
        found = paddle.grad([value], wanted, allow_unused=True)
    named = dict(zip(places, found, strict=True))
    return value.detach(), [named.get(place) for place in range(len(inputs))]


def _vjp(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    places = _floating(inputs)

    def of_floating(*given: Any) -> Any:
        rest = dict(zip(places, given, strict=True))
        with region():
            return function(*(rest.get(place, tensor) for place, tensor in enumerate(inputs)))

    value, found = paddle.incubate.autograd.vjp(of_floating, [inputs[place] for place in places])
    named = dict(zip(places, found if isinstance(found, (list, tuple)) else [found], strict=True))
    return value, [named.get(place) for place in range(len(inputs))]


class _Weighed(paddle.nn.Layer):  # type: ignore[misc]
    """A layer with a function's floating arguments as parameters, and the others as its inputs."""

    def __init__(self, function: Function, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.function = function
        for place in _floating(inputs):
            tensor = inputs[place]
            weight = self.create_parameter(tensor.shape, dtype=tensor.dtype)
            weight.set_value(tensor.detach())
            self.add_parameter(f"p{place}", weight)

    def forward(self, *inputs: Any) -> Any:
        named = dict(self.named_parameters())
        return self.function(*(named.get(f"p{place}", tensor) for place, tensor in enumerate(inputs)))


def _replicated(function: Function, region: OpenRegion, inputs: Sequence[Any], *, around: bool) -> tuple[Any, list[Any]]:
    layer = _Weighed(function if around else inside(function, region), inputs)
    network = paddle.DataParallel(layer)
    if around:
        with region():
            value = network(*inputs)
    else:
        value = network(*inputs)
    value.backward()
    named = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return value.detach(), [named.get(f"p{place}") for place in range(len(inputs))]
