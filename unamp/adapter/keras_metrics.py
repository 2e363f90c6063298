"""Keras' metrics and regularizers in a region: they add up in float32, on whichever backend.

Nothing here imports Keras.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from unamp._function_types import Function
from unamp.adapter.framework_types import Dtype, Tensor
from unamp.adapter.keras_losses import Hook
from unamp.adapter.keras_models import facts
from unamp.adapter.replacing import as_replacement


def hooks(
    suspended: Callable[[], AbstractContextManager[None]],
    followed: Callable[[], bool],
    widened: Callable[[Any], Any],
) -> Iterator[Hook]:
    """Yield the hooks of metrics and regularizers.

    Args:
        suspended: makes the context with no policy in force.
        followed: returns whether there is a policy to be suspended.
        widened: returns nested arguments with their low tensors in float32.
    """

    @as_replacement
    def accumulating(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        if not followed():
            return original(*args, **kwargs)
        with suspended():
            args, kwargs = widened(args), widened(kwargs)
            return original(*args, **kwargs)

    for module, paths in facts().metrics.items():
        for path in paths:
            yield module, path, accumulating


def keeping_mask(cast: Function) -> Function:
    """Wrap a cast so that a tensor keeps the mask that Keras has for it."""

    @functools.wraps(cast)
    def run(value: Tensor, dtype: Dtype) -> Tensor:
        made = cast(value, dtype)
        if made is not value:
            masking = sys.modules["keras.src.backend.common.masking"]
            if (mask := masking.get_keras_mask(value)) is not None:
                masking.set_keras_mask(made, mask)
        return made

    return run
