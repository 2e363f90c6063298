"""Keras in a region, where it computes with JAX: a layer of mixed precision is a float32 layer, losses add up in float32."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from unamp.adapter.keras_policies import Function, hooks
from unamp.adapter.patching import Patch, find, missing
from unamp.adapter.replacing import AttributePatch, standing_in
from unamp_jax.casting import eligible_dtype
from unamp_jax.composites import code_patch
from unamp_jax.state import thread


def patches() -> Iterator[Patch]:
    """Yield the patches of Keras' dtype policies, and of what adds losses up.

    Raises:
        FrameworkNotSupported: naming the version of Keras and what is missing.
    """
    for module, path, replacement in hooks(thread, _is_eligible):
        function = find(module, path)
        if not isinstance(function, types.FunctionType):
            raise missing("keras", sys.modules["keras"].__version__, f"function {module}.{path}")
        yield code_patch(function, replacement)


def tracing_patches(follow: Callable[[Function], Function]) -> tuple[Patch, ...]:
    """Return the patches by which a trace tells what a model of Keras's runs.

    What Keras runs only to see shapes is kept out, and a training step calls the model by another method.

    Args:
        follow: returns the replacement of a method that calls a layer.
    """
    stateless = AttributePatch(find("keras.src.layers.layer", "Layer"), "stateless_call", follow)
    return stateless, AttributePatch(find("keras.src", "backend"), "compute_output_spec", _unreported)


@standing_in
def _unreported(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    sink, thread.sink = thread.sink, None
    try:
        return original(*args, **kwargs)
    finally:
        thread.sink = sink


def _is_eligible(x: Any) -> bool:
    return isinstance(x, jax.Array) and eligible_dtype(x) is not None
