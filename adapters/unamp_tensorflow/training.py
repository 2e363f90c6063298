"""Gradients, variables, replicas and Keras: what must know about a region besides the operations themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from unamp.regions import innermost_region
from unamp_tensorflow.casting import cast, kind
from unamp_tensorflow.state import DTYPES, FLOAT32, thread

__all__ = ["assigning", "custom_gradient", "keras_input", "merging", "replica_made", "replica_run"]

_RECOMPUTED = "recompute_grad.<locals>.inner"


def custom_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    """For functions with a gradient of their own: it gets low gradients beside float32 values, maybe long after the region."""

    def decorate(function: Any, args: Any, kwargs: Any) -> Any:
        plan, region = thread.plan, innermost_region()
        if plan is None or region is None:
            return original(function, args, kwargs)
        again = getattr(function, "__qualname__", "") == _RECOMPUTED

        @functools.wraps(function)
        def forward(*inputs: Any, **keywords: Any) -> Any:
            result, gradient = function(*inputs, **keywords)
            if again:  # the forward pass runs a second time, under the policy of the first
                return result, region(gradient)
            return result, _assisted(gradient, plan, inputs)

        return original(forward, args, kwargs)

    return decorate


def _assisted(gradient: Callable[..., Any], plan: Any, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """A gradient in which differing inputs are widened, and that ends in its inputs' dtypes."""
    from unamp_tensorflow import patches

    @functools.wraps(gradient)
    def run(*args: Any, **kwargs: Any) -> Any:
        helping = plan.inside_function
        patches.acquire(helping)
        before, thread.plan = thread.plan, helping
        try:
            grads = gradient(*args, **kwargs)
            if variables := kwargs.get("variables"):  # then it gives two: the inputs', and the variables'
                return _like_inputs(grads[0], inputs), _like_inputs(grads[1], tuple(variables))
            return _like_inputs(grads, inputs)
        finally:
            thread.plan = before
            patches.release()

    return run


def _like_inputs(grads: Any, inputs: tuple[Any, ...]) -> Any:
    if isinstance(grads, (list, tuple)) and len(grads) == len(inputs):
        return type(grads)([_like(grad, value) for grad, value in zip(grads, inputs, strict=True)])
    return _like(grads, inputs[0]) if len(inputs) == 1 else grads


def _like(grad: Any, value: Any) -> Any:
    wanted = kind(value)
    return cast(grad, wanted) if wanted and not isinstance(grad, (list, tuple)) else grad


def assigning(original: Callable[..., Any]) -> Callable[..., Any]:
    """For variables, which take a tensor of their own dtype only."""

    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is not None and (own := kind(self)):
            value = cast(value, own)
        return original(self, value, *args, **kwargs)

    return assign


# --- replicas: a strategy runs each of them in a thread that it makes --------------------------------------------------------


def replica_made(original: Callable[..., Any]) -> Callable[..., Any]:
    """A replica's thread computes under the policy of the one that makes it."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
        original(self, *args, **kwargs)
        if thread.plan is not None:
            self._unamp_region = innermost_region()

    return __init__


def replica_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """The thread's work, in the region that it was made in."""

    def run(self: Any) -> Any:
        region = vars(self).get("_unamp_region")
        if region is None:
            return original(self)
        with region:
            return original(self)

    return run


def merging(original: Callable[..., Any]) -> Callable[..., Any]:
    """What replicas do together is done by the thread that started them, but as they would: an update without a policy."""

    def _merge_call(self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        plan = thread.plan

        @functools.wraps(fn)
        def merged(*given: Any, **named: Any) -> Any:
            before, thread.plan = thread.plan, plan
            try:
                return fn(*given, **named)
            finally:
                thread.plan = before

        return original(self, merged, args, kwargs)

    return _merge_call


# --- Keras -------------------------------------------------------------------------------------------------------------------


def keras_input(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer takes low inputs, or float32 ones where it is low, as they are: the policy decides what they are cast to."""

    def convert_input(self: Any, x: Any, autocast: Any, dtype: Any) -> Any:
        if thread.plan is not None and not isinstance(x, np.ndarray) and kind(x):
            own = DTYPES.get(str(dtype))
            if own == FLOAT32 or (own and self.variable_dtype == str(dtype)):  # not of a layer whose precision is mixed
                return x
        return original(self, x, autocast, dtype)

    return convert_input
