"""Patches for a user's own gradients, steps, clipping and replicas, and casts for Keras."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from unamp._function_types import Function, Keywords
from unamp.adapter.keras_metrics import keeping_mask
from unamp.adapter.replacing import Replacement, as_replacement
from unamp.adapter.state import in_force, runs_without_policy, suspended
from unamp.regions import innermost_region
from unamp_tensorflow.casting import cast, cast_back, convert, eligible_dtype
from unamp_tensorflow.state import DTYPES, FLOAT32, Plan, thread

if TYPE_CHECKING:
    from tensorflow.python.distribute.mirrored_run import _MirroredReplicaThread

    from unamp_tensorflow.state import Value

_RECOMPUTED = "recompute_grad.<locals>.inner"


# --- a user's own gradients -----------------------------------------------------------------------


def custom_gradient(
    patched: Callable[[Plan], AbstractContextManager[None]],
) -> Replacement:
    """Return the replacement of the decorators of `tf.custom_gradient`.

    A user's own gradient function gets low gradients beside float32 values, and TensorFlow raises
    when it multiplies them. It runs in the backward pass, maybe long after the region, when the
    patches that would cast are undone: so it applies them itself.

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
    """Return a gradient function that widens differing tensors, with results in inputs' dtypes."""

    @functools.wraps(gradient)
    def run(*args: Any, **kwargs: Any) -> Value:
        with patched(plan), in_force(thread, plan):
            grads = gradient(*args, **kwargs)
            if variables := kwargs.get("variables"):
                # With variables there are two structures: the gradients of inputs and of variables.
                return _like_inputs(grads[0], inputs), _like_inputs(grads[1], tuple(variables))
            return _like_inputs(grads, inputs)

    return run


def _recomputing(gradient: types.FunctionType, region: AbstractContextManager[object]) -> Function:
    """Return a gradient of `tf.recompute_grad` that recomputes in the region of the first run.

    The rest of it must follow no rule, or low inputs would reach the function, and low gradients
    the caller. So only the function inside its closure is exchanged.
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
    """Return gradients in their inputs' dtypes, or unchanged if too many or few: that raises."""
    found, given = tf.nest.flatten(grads), tf.nest.flatten(inputs)
    if len(found) != len(given):
        return grads
    alike = [
        cast_back(grad, eligible_dtype(value)) for grad, value in zip(found, given, strict=True)
    ]
    return tf.nest.pack_sequence_as(grads, alike)


# --- steps and clipping ---------------------------------------------------------------------------


@as_replacement
def stepping(
    original: Function,
    self: tf.compat.v1.train.Optimizer,
    grads_and_vars: Iterable[tuple[Value, tf.Variable]],
    *args: Any,
    **kwargs: Any,
) -> object:
    """Have an optimizer step with no policy in force, with gradients in their variables' dtypes.

    TensorFlow's kernels take no others, and some end the process.
    """
    if thread.plan is None:
        return original(self, grads_and_vars, *args, **kwargs)
    with suspended(thread):
        pairs = [(cast_back(grad, eligible_dtype(of)), of) for grad, of in grads_and_vars]
        return original(self, pairs, *args, **kwargs)


@as_replacement
def keras_stepping(
    original: Function,
    self: tf.keras.optimizers.Optimizer,
    grads: Sequence[Value],
    trainable_variables: Iterable[tf.Variable | tf.keras.Variable] | None = None,
) -> object:
    """Have an optimizer of Keras step as `stepping` has one of version 1.

    Keras itself converts gradients only after it has clipped them and added them up over steps.
    """
    if thread.plan is None:
        return original(self, grads, trainable_variables)
    of = list(self._trainable_variables if trainable_variables is None else trainable_variables)
    with suspended(thread):
        if len(grads) == len(of):  # any other number of gradients is an error of Keras'
            dtypes = (DTYPES.get(str(each.dtype), 0) for each in of)
            grads = [*map(cast_back, grads, dtypes)]
        return original(self, grads, None if trainable_variables is None else of)


@as_replacement
def differentiating(
    original: Function, self: tf.GradientTape, target: Value, sources: Value, *args: Any, **kw: Any
) -> Value:
    """Have a tape compute a Jacobian with no rule but for tensors whose dtypes differ.

    Without vectorization TensorFlow keeps each gradient in an array of the target's dtype, so a low
    target is float32 where a source is.
    """
    plan = thread.plan
    if plan is None or plan.for_parts is None:
        return original(self, target, sources, *args, **kw)
    with in_force(thread, plan.for_parts):
        if FLOAT32 in map(eligible_dtype, tf.nest.flatten(sources)):
            with self._ensure_recording():
                target = cast(target, FLOAT32)
        return original(self, target, sources, *args, **kw)


@as_replacement
def updating(
    original: Function,
    self: tf.distribute.StrategyExtended,
    var: tf.Variable,
    fn: Function,
    args: Sequence[Value] = (),
    *rest: Any,
    **named: Any,
) -> object:
    """Have a strategy update a variable as an optimizer steps; see `stepping`.

    Where Keras 2 has computed low numbers for the step before, they are widened beside float32.
    """
    plan = thread.plan
    if plan is None:
        return original(self, var, fn, args, *rest, **named)
    with in_force(thread, plan.for_parts):
        like = tuple(cast_back(each, eligible_dtype(var)) for each in args)
        return original(self, var, fn, like, *rest, **named)


@as_replacement
def clipping(original: Function, /, *args: Any, **kwargs: Any) -> Value:
    """Wrap a function that clips gradients, so that it only widens low ones beside float32 ones.

    No other rule applies, as in an optimizer's step.
    """
    plan = thread.plan
    if plan is None or plan.for_parts is None:
        return original(*args, **kwargs)
    with in_force(thread, plan.for_parts):
        return original(*args, **kwargs)


# --- replicas: a strategy makes a thread for each -------------------------------------------------


@as_replacement
def replica_made(
    original: Function, /, self: _MirroredReplicaThread, *args: Any, **kwargs: Any
) -> None:
    """Wrap the constructor of a replica's thread, which remembers the region of its maker."""
    original(self, *args, **kwargs)
    if thread.plan is not None:
        self._unamp_region = innermost_region()


@as_replacement
def replica_run(original: Function, self: _MirroredReplicaThread) -> object:
    """Wrap the work of a replica's thread, which runs in the region of the thread's maker."""
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
    """Wrap `merge_call`, by which the thread that started the replicas works for all of them.

    The plan of the replica is in force in that thread meanwhile. An optimizer, say, updates with no
    policy in force in a replica, and must not have one there.
    """
    plan = thread.plan

    @functools.wraps(fn)
    def merged(*given: Any, **named: Any) -> Value:
        with in_force(thread, plan):
            return fn(*given, **named)

    return original(self, merged, args, kwargs)


# --- Keras ----------------------------------------------------------------------------------------


def is_keras_input(x: object) -> bool:
    """Return whether an input of a Keras layer is a tensor that rules cast."""
    return not isinstance(x, np.ndarray) and eligible_dtype(x) != 0


def widened(value: Value) -> Value:
    """Return nested arguments with low tensors in float32, which keep Keras's masks."""
    return convert(keeping_mask(cast), FLOAT32, value)
