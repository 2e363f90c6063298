"""Functions that are recomputed for gradients, differentiated as functions, or run in replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import paddle
from paddle.distributed.fleet.utils import recompute

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp_paddle.conformance.ways.opening import both, inside


def ways() -> Iterator[Way]:
    """Yield the ways of gradients."""
    for use_reentrant in (True, False):
        name = f"recompute, use_reentrant={use_reentrant}"
        yield from both(name, "recomputed", partial(_recomputed, use_reentrant=use_reentrant))
    yield Way(
        "paddle.grad after the region", "transformed", value_and_grad=partial(_grad, within=False)
    )
    yield Way(
        "paddle.grad in the region", "transformed", value_and_grad=partial(_grad, within=True)
    )
    for around in (True, False):
        run = partial(_replicated, around=around)
        yield Way(
            f"DataParallel, region {'around' if around else 'inside'}",
            "replicated",
            value_and_grad=run,
        )


def _recomputed(function: Function, inputs: Sequence[Any], *, use_reentrant: bool) -> Any:
    return recompute(function, *inputs, use_reentrant=use_reentrant)


def _with(inputs: Sequence[Any], places: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    """Return the inputs with others in some places."""
    named = dict(zip(places, leaves, strict=True))
    return [named.get(place, tensor) for place, tensor in enumerate(inputs)]


def _grad(
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    places: Sequence[int],
    *,
    within: bool,
) -> tuple[Any, list[Any]]:
    leaves = [inputs[place].detach() for place in places]
    for leaf in leaves:
        leaf.stop_gradient = False
    with region():
        value = function(*_with(inputs, places, leaves))
        found = paddle.grad([value], leaves, allow_unused=True) if within else []
    return value.detach(), found or paddle.grad([value], leaves, allow_unused=True)


class _Weighed(paddle.nn.Layer):  # type: ignore[misc]
    """A layer with some of a function's arguments as parameters, and all as its inputs."""

    def __init__(self, function: Function, inputs: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        self.places = places
        for place in places:
            weight = self.create_parameter(inputs[place].shape, dtype=inputs[place].dtype)
            weight.set_value(inputs[place].detach())
            self.add_parameter(f"p{place}", weight)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*_with(inputs, self.places, self.parameters()))


def _replicated(
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    places: Sequence[int],
    *,
    around: bool,
) -> tuple[Any, list[Any]]:
    layer = _Weighed(function if around else inside(function, region), inputs, places)
    network = paddle.DataParallel(layer)
    if around:
        with region():
            value = network(*inputs)
    else:
        value = network(*inputs)
    value.backward()
    return value.detach(), [parameter.grad for parameter in layer.parameters()]
