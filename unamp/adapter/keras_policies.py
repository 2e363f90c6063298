"""Keras' dtype policies in a region, for adapters whose framework Keras computes with.

In a region a layer of mixed precision counts as a float32 layer: its own casts would round tensors
that the policy wants in float32, or in the other low dtype. Its inputs stay as they are, and the
region's policy decides about them. Nothing here imports Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from unamp._function_types import Function
from unamp.adapter.framework_types import Layer
from unamp.adapter.keras_losses import AddedLosses, Hook
from unamp.adapter.keras_models import library
from unamp.adapter.state import PlanT, ThreadState, suspended
from unamp.dtypes import ELIGIBLE, FLOAT32, LOW_DTYPES

#: The module of `DTypePolicy`, whose `convert_input` and `compute_dtype` are replaced.
HOME = "keras.src.dtype_policies.dtype_policy"


def hooks(thread: ThreadState[PlanT], eligible: Callable[[object], bool]) -> Iterator[Hook]:
    """Yield the hooks of dtype policies, and of the functions that add losses up.

    They are for an adapter whose plan tells whether a policy decides.

    Args:
        thread: the adapter's state of the calling thread.
        eligible: returns whether an input is a tensor that rules are about.
    """

    def followed() -> bool:
        plan = thread.plan
        # where operations are only reported, none decides
        return plan is not None and plan.policy.active

    yield HOME, "DTypePolicy.convert_input", partial(converting_input, followed, eligible)
    yield HOME, "DTypePolicy.compute_dtype.fget", partial(computing_dtype, followed)
    yield from AddedLosses(
        thread, partial(suspended, thread), lambda: thread.plan is not None
    ).hooks()


def converting_input(
    followed: Callable[[], bool], eligible: Callable[[object], bool], original: Function
) -> Function:
    """Return the replacement of `DTypePolicy.convert_input`.

    That is the cast of a layer's inputs to its compute dtype.

    Args:
        followed: returns whether a region's policy decides in the calling thread.
        eligible: returns whether an input is a tensor that rules are about.
        original: the method.
    """

    def convert_input(self: object, x: object, autocast: bool, dtype: object) -> object:
        if followed() and str(dtype) in ELIGIBLE and eligible(x):
            return x
        return original(self, x, autocast, dtype)

    return convert_input


def computing_dtype(followed: Callable[[], bool], original: Function) -> Function:
    """Return the replacement of the getter of `DTypePolicy.compute_dtype`.

    In a region it returns the variables' dtype.

    Args:
        followed: returns whether a region's policy decides in the calling thread.
        original: the getter.
    """

    def compute_dtype(self: Any) -> object:
        if followed() and self._variable_dtype in ELIGIBLE and self._compute_dtype in ELIGIBLE:
            return self._variable_dtype
        return original(self)

    return compute_dtype


def states_float32(layer: Layer) -> bool:
    """Return whether a layer is known to have been made with ``dtype="float32"``.

    float32 is the default, too. Keras keeps the arguments that a layer was made with, if all are
    plain values. Otherwise float32 was stated if the global policy is one of mixed precision.
    """
    if getattr(layer.dtype_policy, "name", None) != FLOAT32:
        return False
    given = getattr(layer, "_auto_config", None)
    if given is not None:
        return bool(given.config.get("dtype") == FLOAT32)
    return library().config.dtype_policy().name.removeprefix("mixed_") in LOW_DTYPES


def layer_path(layer: Layer, path: str) -> str:
    """Return a layer's name in a trace, with the float32 that it states."""
    return f"{path}(dtype={FLOAT32})" if states_float32(layer) else path
