"""The code of Keras that reduces losses and adds them up, on whichever backend.

Keras states float32 for it. A policy's rules would run it low at O2, where a float16 sum overflows
above 65,504. So it runs with no policy in force. The losses themselves compute under the policy
around. Nothing here imports Keras.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from unamp._function_types import Function
from unamp.adapter.framework_types import Layer, Tensor
from unamp.adapter.keras_models import library
from unamp.adapter.replacing import Replacement
from unamp.adapter.state import Step, ThreadState
from unamp.dtypes import FLOAT32, LOW_DTYPES

#: A function's module, its path there, and the maker of its replacement.
Hook = tuple[str, str, Replacement]


class _Adding(threading.local):
    """The step that is open in one thread while losses are being added up."""

    step: Step | None = None


class AddedLosses:
    """The hooks of the functions that add losses up.

    Args:
        thread: the adapter's state of the calling thread.
        suspended: makes the context with no policy in force.
        followed: returns whether there is a policy to be suspended.
    """

    def __init__(
        self,
        thread: ThreadState[Any],
        suspended: Callable[[], AbstractContextManager[None]],
        followed: Callable[[], bool],
    ) -> None:
        self._thread, self._suspended, self._followed = thread, suspended, followed
        self._adding = _Adding()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks."""
        yield "keras.src.trainers.compile_utils", "CompileLoss.call", self.adding
        yield "keras", "Model.compute_loss", self.adding
        if hasattr(library().Model, "_aggregate_additional_loss"):
            # versions without it (Keras 3.5) cast to float32 themselves
            yield "keras", "Model._aggregate_additional_loss", self.widening
        yield "keras.losses", "Loss.__call__", self.loss
        yield "keras.src.losses.loss", "reduce_weighted_values", self.adding
        yield "keras", "Layer._get_regularization_losses", self.adding

    def adding(self, original: Function) -> Function:
        """Wrap a function so that it adds losses up with no policy in force."""

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._followed():
                return original(*args, **kwargs)
            around = self._adding.step
            with Step(self._thread, self._suspended) as self._adding.step:
                try:
                    return original(*args, **kwargs)
                finally:
                    self._adding.step = around

        return run

    def widening(self, original: Function) -> Function:
        """Wrap the method that takes a loss of a layer, so that a low one is widened.

        TensorFlow refuses to add a low loss to a float32 one.
        """

        @functools.wraps(original)
        def run(model: Layer, loss: Tensor) -> Tensor:
            keras = library()
            low = (
                self._adding.step is not None
                and keras.backend.standardize_dtype(loss.dtype) in LOW_DTYPES
            )
            return original(model, keras.ops.cast(loss, FLOAT32) if low else loss)

        return run

    def loss(self, original: Function) -> Function:
        """Wrap a loss so that it computes under the policy around the sum that it is a part of."""

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            step = self._adding.step
            return (
                original(*args, **kwargs)
                if step is None
                else step.call_under_policy(original, *args, **kwargs)
            )

        return run
