"""Keras' dtype policies in a region, for every adapter whose framework Keras computes with. Nothing here imports Keras.

A layer of mixed precision is a float32 layer in a region: its own casts would round what the policy wants in float32, or in
the other low dtype. What it is given stays as it is, for the region's policy to decide about.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from unamp.dtypes import ELIGIBLE, FLOAT32, LOW_DTYPES

__all__ = ["CALLS", "HOME", "Function", "call_hook", "compute_dtype_hook", "input_hook", "states_float32"]

Function: TypeAlias = Callable[..., Any]

#: The module of `DTypePolicy`, whose `convert_input` and `compute_dtype` are replaced.
HOME = "keras.src.dtype_policies.dtype_policy"

#: The module of `Operation`, whose ``__call__`` every layer's comes to, once its inputs are converted.
CALLS = "keras.src.ops.operation"


def states_float32(layer: Any) -> bool:
    """Return whether a layer states float32: it is the layer's dtype, while Keras' global policy is low or mixed.

    Under a global policy of float32 every layer is one of float32, and none says so. A model computes nothing itself.
    """
    keras = sys.modules["keras"]
    if keras.config.dtype_policy().name.removeprefix("mixed_") not in LOW_DTYPES:
        return False
    if not isinstance(layer, keras.layers.Layer) or isinstance(layer, keras.Model):
        return False
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy[layer.path]
    return bool(policy.name == FLOAT32)


def call_hook(
    followed: Callable[[], bool], in_float32: Callable[[], AbstractContextManager[Any]]
) -> Callable[[Function], Function]:
    """Return what makes the replacement of ``Operation.__call__``: a layer that states float32 computes in float32.

    Args:
        followed: returns whether a region's policy decides in the calling thread.
        in_float32: returns a region in which every operation is computed in float32.
    """

    def replacement(original: Function) -> Function:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it is one
            if not followed() or not states_float32(self):
                return original(self, *args, **kwargs)
            with in_float32():
                return original(self, *args, **kwargs)

        return __call__

    return replacement


def input_hook(followed: Callable[[], bool], eligible: Callable[[Any], bool]) -> Callable[[Function], Function]:
    """Return what makes the replacement of `DTypePolicy.convert_input`, the cast of a layer's inputs to its compute dtype.

    Args:
        followed: returns whether a region's policy decides in the calling thread.
        eligible: returns whether an input is a tensor that rules are about.
    """

    def replacement(original: Function) -> Function:
        def convert_input(self: Any, x: Any, autocast: Any, dtype: Any) -> Any:
            if followed() and str(dtype) in ELIGIBLE and eligible(x):
                return x
            return original(self, x, autocast, dtype)

        return convert_input

    return replacement


def compute_dtype_hook(followed: Callable[[], bool]) -> Callable[[Function], Function]:
    """Return what makes the replacement of the getter of `DTypePolicy.compute_dtype`: in a region it is the variables' dtype.

    Args:
        followed: returns whether a region's policy decides in the calling thread.
    """

    def replacement(original: Function) -> Function:
        def compute_dtype(self: Any) -> Any:
            if followed() and self._variable_dtype in ELIGIBLE and self._compute_dtype in ELIGIBLE:
                return self._variable_dtype
            return original(self)

        return compute_dtype

    return replacement
