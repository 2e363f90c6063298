"""Gradients by name, and sums of their numbers, for `unamp.watch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from unamp.adapter.keras_masters import stepped
from unamp.errors import NotExpressible
from unamp_tensorflow.composite_tensors import values
from unamp_tensorflow.observing import variable_name

if TYPE_CHECKING:
    from unamp_tensorflow.state import Gradient, SomeTensor


def named_gradients(
    network: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer | None,
    given: Sequence[Gradient | None] | None,
) -> list[tuple[str, tf.Variable | tf.keras.Variable, Gradient | None]]:
    """See `unamp.adapter.NamesGradients.named_gradients`.

    The order is that of the optimizer's variables, once it is built.
    """
    if not tf.executing_eagerly():
        raise NotExpressible(
            "unamp.watch looks at numbers, which a tf.function does not have yet: step() is for "
            "outside of it"
        )
    variables = list(network.trainable_variables)
    if optimizer is not None and optimizer.built:
        variables = stepped(optimizer)
    if not isinstance(given, (list, tuple)) or len(given) != len(variables):
        said = f"{len(given)}" if isinstance(given, (list, tuple)) else f"a {type(given).__name__}"
        raise ValueError(
            f"gradients must be a list, one for each of {len(variables)} trained variables; not "
            f"{said}"
        )
    if any(isinstance(gradient, tf.distribute.DistributedValues) for gradient in given):
        raise NotExpressible(
            "unamp.watch takes gradients of one replica; in a strategy, of "
            "strategy.local_results(...)[0]"
        )
    pairs = zip(variables, given, strict=True)
    return [
        (variable_name(variable), variable, gradient)
        for variable, gradient in pairs
        if variable.dtype in _FLOATING
    ]


_FLOATING = ("float16", "bfloat16", "float32", "float64")


def numbers(tensor: SomeTensor) -> tf.Tensor:
    """See `unamp.adapter.NamesGradients.numbers`."""
    held = tf.convert_to_tensor(values(tensor))
    return held if held.dtype == tf.float64 else tf.cast(held, tf.float32)


def total(numbers: tf.Tensor) -> tf.Tensor:
    """See `unamp.adapter.NamesGradients.total`."""
    return tf.math.count_nonzero(numbers) if numbers.dtype == tf.bool else tf.reduce_sum(numbers)


def fetched(totals: Sequence[tf.Tensor]) -> list[float]:
    """See `unamp.adapter.NamesGradients.fetched`."""
    return (
        [float(each) for each in tf.stack([tf.cast(each, tf.float64) for each in totals]).numpy()]
        if totals
        else []
    )
