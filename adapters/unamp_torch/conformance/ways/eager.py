"""Functions that are called as they are: no compiler, graph or transform is between.

They are decorated, run in modes and threads, through an operator, and beside PyTorch's own AMP.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import coroutine, decorated, generator, in_a_thread
from unamp_torch.conformance.ways.opening import Holding


def _method(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    network = Holding(function)
    network.forward = region()(network.forward)  # type: ignore[method-assign]
    return network(*inputs)


def _inference_mode(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with torch.inference_mode(), region():
        return function(*inputs)


class _Passing(TorchFunctionMode):
    """A mode of functions that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatching(TorchDispatchMode):
    """A mode of operators that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _function_mode(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with _Passing(), region():
        return function(*inputs)


def _dispatch_mode(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with _Dispatching(), region():  # type: ignore[no-untyped-call]
        return function(*inputs)


class _Labelled(torch.Tensor):
    """A class of tensors with nothing of its own."""


def _subclass(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region():
        return function(*(tensor.as_subclass(_Labelled) for tensor in inputs)).as_subclass(
            torch.Tensor
        )


_numbers = count()


def _custom_operator(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    library = torch.library.Library("unamp_conformance", "FRAGMENT")
    name = f"operator_{next(_numbers)}"
    try:
        library.define(f"{name}(Tensor[] inputs) -> Tensor")
        library.impl(name, lambda given: function(*given).clone(), "CompositeExplicitAutograd")
        with region():
            return getattr(torch.ops.unamp_conformance, name)(list(inputs))
    finally:
        library._destroy()


def _other(inputs: Sequence[Any]) -> torch.autocast:
    """Return PyTorch's own autocast in the device's default dtype."""
    return torch.autocast(inputs[0].device.type)


def _autocast_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with _other(inputs), region():
        return function(*inputs)


def _autocast_off_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with torch.autocast(inputs[0].device.type, enabled=False), region():
        return function(*inputs)


def _autocast_closed_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    a = torch.ones(2, 2, device=inputs[0].device)
    with region():
        with _other(inputs):
            a @ a
        with torch.autocast(inputs[0].device.type, enabled=False):
            a @ a
        return function(*inputs)


def _between(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region(), _other(inputs), region():
        return function(*inputs)


def _custom_forward(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Call the function in the forward of an `autograd.Function` with its caller's autocast."""
    device = inputs[0].device.type

    def forward(ctx: Any, *given: Any) -> Any:
        return function(*given).clone()

    called: Any = type("Called", (torch.autograd.Function,), {})
    called.forward = staticmethod(torch.amp.custom_fwd(forward, device_type=device))
    with region():
        return called.apply(*inputs)


WAYS = (
    Way("decorated function", "decorated", decorated),
    Way("decorated forward of a module", "decorated", _method),
    Way("decorated generator", "decorated", generator),
    Way("decorated coroutine", "decorated", coroutine),
    Way("in a thread", "eager", in_a_thread),
    Way("inference_mode", "eager", _inference_mode, gradients=False),
    Way("under a TorchFunctionMode", "eager", _function_mode),
    Way("under a TorchDispatchMode", "eager", _dispatch_mode),
    Way("tensors of a subclass", "eager", _subclass),
    Way("in an operator of the user's", "eager", _custom_operator, gradients=False),
    Way("torch.autocast around the region", "foreign AMP", _autocast_around),
    Way("torch.autocast switched off around the region", "foreign AMP", _autocast_off_around),
    Way("torch.autocast opened and closed inside before", "foreign AMP", _autocast_closed_inside),
    Way("torch.autocast between two regions", "foreign AMP", _between),
    Way("custom_fwd", "foreign AMP", _custom_forward, gradients=False),
)
