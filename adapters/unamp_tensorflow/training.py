"""Gradients of a user's own, replicas, and Keras's inputs.

Besides the operations themselves, these must know about a region.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from unamp._function_types import Function, Keywords
from unamp.adapter.keras_metrics import keeping_mask
from unamp.adapter.replacing import Replacement, as_replacement
from unamp.adapter.state import in_force, runs_without_policy
from unamp.regions import innermost_region
from unamp_tensorflow.casting import cast, cast_back, convert, eligible_dtype
from unamp_tensorflow.state import FLOAT32, Plan, thread

if TYPE_CHECKING:
    from tensorflow.python.distribute.mirrored_run import _MirroredReplicaThread

    from unamp_tensorflow.state import Value

_RECOMPUTED = "recompute_grad.<locals>.inner"


# --- gradients of a user's own --------------------------------------------------------------------


def custom_gradient(
    patched: Callable[[Plan], AbstractContextManager[None]],
) -> Replacement:
    """Return the replacement of the decorators of `tf.custom_gradient`.

    A gradient of a user's own gets low gradients beside float32 values, which TensorFlow would
    refuse to multiply. It runs when the backward pass comes to it, maybe long after the region,
    when no patch is applied any more.

    Args:
        patched: applies the patches that a plan needs while the context is open.
    """

    @as_replacement
    def decorate(
        original: Function, function: Function, args: Sequence[Value], kwargs: Keywords
    ) -> Value:
        plan, region = thread.plan, innermost_region()
        if plan is None or region is None or plan.for_parts is None:
            return original(function, args, kwargs)
        parts = plan.for_parts
        again = getattr(function, "__qualname__", "") == _RECOMPUTED

        @functools.wraps(function)
        def forward(*inputs: Any, **keywords: Any) -> tuple[Value, Function]:
            result, gradient = function(*inputs, **keywords)
            if again:
                return result, runs_without_policy(thread)(_recomputing(gradient, region))
            return result, _assisted(gradient, parts, patched, inputs)

        return original(forward, args, kwargs)

    return decorate


def _assisted(
    gradient: Function,
    plan: Plan,
    patched: Callable[[Plan], AbstractContextManager[None]],
    inputs: tuple[Value, ...],
) -> Function:
    """Wrap a gradient so that it widens inputs that differ, and ends in its inputs' dtypes."""

    @functools.wraps(gradient)
    def run(*args: Any, **kwargs: Any) -> Value:
        with patched(plan), in_force(thread, plan):
            grads = gradient(*args, **kwargs)
            if variables := kwargs.get("variables"):
                # Then it gives two structures: the inputs' and the variables'.
                return _like_inputs(grads[0], inputs), _like_inputs(grads[1], tuple(variables))
            return _like_inputs(grads, inputs)

    return run


def _recomputing(gradient: types.FunctionType, region: AbstractContextManager[object]) -> Function:
    """Return a gradient of `tf.recompute_grad` that recomputes in the region of the first run.

    What else it does with the inputs follows no rule: it would hand the function, and in the end
    the gradients, low ones.
    """
    cells = dict(zip(gradient.__code__.co_freevars, gradient.__closure__ or (), strict=True))
    function = cells["f"].cell_contents

    def again(*args: Any, **kwargs: Any) -> Value:
        with region:
            return function(*args, **kwargs)

    closure = tuple(types.CellType(again) if name == "f" else cell for name, cell in cells.items())
    made = types.FunctionType(
        gradient.__code__, gradient.__globals__, gradient.__name__, gradient.__defaults__, closure
    )
    made.__kwdefaults__ = gradient.__kwdefaults__
    return functools.wraps(gradient)(made)


def _like_inputs(grads: Value, inputs: tuple[Value, ...]) -> Value:
    """Return gradients in the dtypes of the values that they are for.

    Where their number is wrong, which TensorFlow will refuse, they stay as they are.
    """
    found, given = tf.nest.flatten(grads), tf.nest.flatten(inputs)
    if len(found) != len(given):
        return grads
    alike = [
        cast_back(grad, eligible_dtype(value)) for grad, value in zip(found, given, strict=True)
    ]
    return tf.nest.pack_sequence_as(grads, alike)


# --- gradients that are clipped -------------------------------------------------------------------


@as_replacement
def clipping(original: Function, /, *args: Any, **kwargs: Any) -> Value:
    """Wrap a function that clips gradients: as in a step, no rule reaches it.

    Low gradients beside float32 are widened.
    """
    plan = thread.plan
    if plan is None or plan.for_parts is None:
        return original(*args, **kwargs)
    with in_force(thread, plan.for_parts):
        return original(*args, **kwargs)


# --- replicas: a strategy runs each of them in a thread that it makes -----------------------------


@as_replacement
def replica_made(
    original: Function, /, self: _MirroredReplicaThread, *args: Any, **kwargs: Any
) -> None:
    """Stand in for the constructor of a replica's thread.

    The thread remembers the region that it is made in.
    """
    original(self, *args, **kwargs)
    if thread.plan is not None:
        self._unamp_region = innermost_region()


@as_replacement
def replica_run(original: Function, self: _MirroredReplicaThread) -> object:
    """Stand in for a replica's work, which is done in the region that its thread was made in."""
    region = vars(self).get("_unamp_region")
    if region is None:
        return original(self)
    with region:
        return original(self)


@as_replacement
def merging(
    original: Function,
    self: tf.distribute.ReplicaContext,
    fn: Function,
    args: Sequence[Value],
    kwargs: Keywords,
) -> Value:
    """Stand in for `merge_call`, by which one thread works for all replicas.

    The thread that started the replicas does the work, as a replica would: an optimizer, say, makes
    its update with no policy in force, and so must that thread.
    """
    plan = thread.plan

    @functools.wraps(fn)
    def merged(*given: Any, **named: Any) -> Value:
        with in_force(thread, plan):
            return fn(*given, **named)

    return original(self, merged, args, kwargs)


# --- Keras ----------------------------------------------------------------------------------------


def is_keras_input(x: object) -> bool:
    """Return whether an input of a Keras layer is a tensor that rules are about."""
    return not isinstance(x, np.ndarray) and eligible_dtype(x) != 0


def widened(value: Value) -> Value:
    """Return nested arguments with their low tensors in float32, and with Keras' masks of them."""
    return convert(keeping_mask(cast), FLOAT32, value)
