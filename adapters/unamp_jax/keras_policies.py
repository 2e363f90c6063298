"""Keras on JAX in a region: mixed-precision layers are float32, losses add up in float32."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax

from unamp._function_types import Function
from unamp.adapter import keras_metrics
from unamp.adapter.keras_policies import hooks
from unamp.adapter.patching import Patch, find, missing
from unamp.adapter.replacing import AttributePatch, as_replacement
from unamp.adapter.state import suspended
from unamp_jax.casting import cast, eligible_dtype, mapped
from unamp_jax.composites import code_patch
from unamp_jax.state import FLOAT32, PyTree, thread


def patches() -> Iterator[Patch]:
    """Yield the patches of Keras' dtype policies, and of the functions that add losses up.

    Raises:
        FrameworkNotSupported: naming the version of Keras and what is missing.
    """
    metrics = keras_metrics.hooks(
        partial(suspended, thread), lambda: thread.plan is not None, _widened
    )
    for module, path, replacement in (*hooks(thread, _is_eligible), *metrics):
        function = find(module, path)
        if not isinstance(function, types.FunctionType):
            raise missing("keras", sys.modules["keras"].__version__, f"function {module}.{path}")
        yield code_patch(function, replacement)


def tracing_patches(follow: Callable[[Function], Function]) -> tuple[Patch, ...]:
    """Return the patches by which a trace reports the layers of a Keras model.

    Calls by which Keras only infers shapes are kept out, and a training step calls the model by
    another method.

    Args:
        follow: returns the replacement of a method that calls a layer.
    """
    stateless = AttributePatch(find("keras.src.layers.layer", "Layer"), "stateless_call", follow)
    return stateless, AttributePatch(
        find("keras.src", "backend"), "compute_output_spec", _unreported
    )


@as_replacement
def _unreported(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    sink, thread.sink = thread.sink, None
    try:
        return original(*args, **kwargs)
    finally:
        thread.sink = sink


def _widened(value: PyTree) -> PyTree:
    """Return nested arguments with low tensors in float32, which keep their Keras masks."""
    return mapped(keras_metrics.keeping_mask(cast), FLOAT32, value)


def _is_eligible(x: object) -> bool:
    return isinstance(x, jax.Array) and eligible_dtype(x) is not None
