"""Eager functions: decorated, in threads, hooks and PyLayers, and beside Paddle's own AMP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import coroutine, decorated, generator, in_a_thread
from unamp_paddle.conformance.ways.opening import holding


def _method(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    layer = holding(function)
    layer.forward = region()(layer.forward)
    return layer(*inputs)


def _no_grad(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with paddle.no_grad(), region():
        return function(*inputs)


def _hooks(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Call the function in a hook of a layer."""
    layer = holding(lambda x: x)
    layer.register_forward_post_hook(lambda *_: function(*inputs))
    with region():
        return layer(inputs[0])


def _saved_tensors_hooks(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with (
        paddle.autograd.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        region(),
    ):
        return function(*inputs)


class _Passed(paddle.autograd.PyLayer):  # type: ignore[misc]
    """An operation of a user's own that returns its input."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


def _through_pylayers(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region():
        given = [
            _Passed.apply(tensor) if tensor.is_floating_point() else tensor for tensor in inputs
        ]
        return _Passed.apply(function(*given))


def _in_a_pylayer(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    class Called(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            return function(*given)

    with region():
        return Called.apply(*inputs)


def _auto_cast_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with paddle.amp.auto_cast(level="O2", dtype="bfloat16"), region():
        return function(*inputs)


def _auto_cast_off_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with paddle.amp.auto_cast(False), region():
        return function(*inputs)


def _auto_cast_closed_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    a = paddle.ones([2, 2])
    with region():
        with paddle.amp.auto_cast(dtype="bfloat16"):
            a @ a
        with paddle.amp.auto_cast(False):
            a @ a
        return function(*inputs)


def _between(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region(), paddle.amp.auto_cast(level="O2", dtype="bfloat16"), region():
        return function(*inputs)


WAYS = (
    Way("decorated function", "decorated", decorated),
    Way("decorated forward of a layer", "decorated", _method),
    Way("decorated generator", "decorated", generator),
    Way("decorated coroutine", "decorated", coroutine),
    Way("in a thread", "eager", in_a_thread),
    Way("no_grad", "eager", _no_grad, gradients=False),
    Way("in a hook of a layer", "eager", _hooks),
    Way("saved_tensors_hooks", "eager", _saved_tensors_hooks),
    Way("through PyLayers", "eager", _through_pylayers),
    Way("in the forward of a PyLayer", "eager", _in_a_pylayer, gradients=False),
    Way("paddle.amp.auto_cast around the region", "foreign AMP", _auto_cast_around),
    Way(
        "paddle.amp.auto_cast switched off around the region", "foreign AMP", _auto_cast_off_around
    ),
    Way(
        "paddle.amp.auto_cast opened and closed inside before",
        "foreign AMP",
        _auto_cast_closed_inside,
    ),
    Way("paddle.amp.auto_cast between two regions", "foreign AMP", _between),
)
