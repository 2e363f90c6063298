"""Keras' dtype policies in a region, where Keras computes with JAX: a layer of mixed precision is a float32 layer there."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from unamp.adapter.keras_policies import HOME, Function, compute_dtype_hook, input_hook
from unamp.adapter.patching import Patch, find, missing
from unamp_jax.casting import eligible_dtype
from unamp_jax.composites import code_patch
from unamp_jax.state import thread


def patches() -> Iterator[Patch]:
    """Yield the patches of Keras' dtype policies.

    Raises:
        FrameworkNotSupported: naming the version of Keras and what is missing.
    """
    yield _patch("DTypePolicy.convert_input", input_hook(_followed, _is_eligible))
    yield _patch("DTypePolicy.compute_dtype.fget", compute_dtype_hook(_followed))


def _patch(path: str, replacement: Callable[[Function], Function]) -> Patch:
    function = find(HOME, path)
    if not isinstance(function, types.FunctionType):
        raise missing("keras", sys.modules["keras"].__version__, f"function {HOME}.{path}")
    return code_patch(function, replacement)


def _followed() -> bool:
    """Return whether a region's policy decides here. Where operations are only reported, none could."""
    plan = thread.plan
    return plan is not None and plan.policy.active


def _is_eligible(x: Any) -> bool:
    return isinstance(x, jax.Array) and eligible_dtype(x) is not None
