"""Keras' dtype policies in a region, for every adapter whose framework Keras computes with. Nothing here imports Keras.

A layer of mixed precision is a float32 layer in a region: its own casts would round what the policy wants in float32, or in
the other low dtype. What it is given stays as it is, for the region's policy to decide about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from unamp.dtypes import ELIGIBLE

__all__ = ["HOME", "Function", "compute_dtype_hook", "input_hook"]

Function: TypeAlias = Callable[..., Any]

#: The module of `DTypePolicy`, whose `convert_input` and `compute_dtype` are replaced.
HOME = "keras.src.dtype_policies.dtype_policy"


def input_hook(followed: Callable[[], bool], eligible: Callable[[Any], bool]) -> Callable[[Function], Function]:
    """Return the maker of the replacement of `DTypePolicy.convert_input`, the cast of a layer's inputs to its compute dtype.

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
    """Return the maker of the replacement of the getter of `DTypePolicy.compute_dtype`: in a region it is the variables' dtype.

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
