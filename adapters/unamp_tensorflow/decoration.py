"""Cast Keras models to low variables, for `unamp.decorate`; `masters` is about their optimizers.

A Keras variable stays the same object. The `tf.Variable` inside it is replaced by a low one, since
a `tf.Variable` cannot change its dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from unamp.adapter import Decoration
from unamp.adapter.keras_masters import check_new, give_master_weights, rebuild, with_inner
from unamp.adapter.keras_models import (
    check_float32,
    check_saved,
    compute_low,
    layers_to_cast,
    own_variables,
)
from unamp.adapter.state import suspended
from unamp.errors import NotExpressible
from unamp_tensorflow.masters import TensorFlowMasters
from unamp_tensorflow.state import thread


def decorate(
    networks: Sequence[tf.keras.Model],
    optimizers: Sequence[tf.keras.optimizers.Optimizer],
    decoration: Decoration,
) -> None:
    """See `unamp.adapter.Adapter.decorate`.

    Models and optimizers need not be built yet.
    """
    _check_expressible(decoration)
    layers, kept = layers_to_cast(networks, decoration.excluded)
    steppers = [inner for optimizer in optimizers for inner in with_inner(optimizer)]
    check_float32(layers)
    for optimizer in steppers:
        check_new(optimizer, int(tf.convert_to_tensor(optimizer._iterations)))

    # A variable that is shared with a layer that stays float32 stays float32, too.
    variables = [each for layer in layers for each in own_variables(layer) if id(each) not in kept]
    originals = _read(variables) if optimizers and decoration.master_weights else []
    replaced = [
        (each, old) for each in variables if (old := _cast(each, decoration.dtype)) is not None
    ]
    compute_low(networks, layers, decoration.dtype)
    if decoration.master_weights:
        for optimizer in steppers:
            give_master_weights(optimizer, TensorFlowMasters, originals)
    rebuild(optimizers, steppers, replaced)


# --- checks ---------------------------------------------------------------------------------------


def _check_expressible(decoration: Decoration) -> None:
    if decoration.master_grad:
        raise NotExpressible(
            "TensorFlow's gradients are values, in the dtype of their variable (master_grad): cast "
            "them to float32 where you add them up; GradScaler.unscale_ and the optimizer "
            "(clipping, gradient_accumulation_steps) compute in float32"
        )
    check_saved(decoration)


# --- models ---------------------------------------------------------------------------------------


def _read(variables: Iterable[tf.keras.Variable]) -> list[tuple[tf.keras.Variable, tf.Tensor]]:
    """Return the trainable variables, each with a tensor of its value now."""
    with tf.init_scope(), suspended(thread):
        return [
            (each, tf.convert_to_tensor(each._value))
            for each in variables
            if each.trainable and each._value is not None
        ]


def _cast(variable: tf.keras.Variable, dtype: str) -> tf.Variable | None:
    """Put a low `tf.Variable` into a Keras variable, and return the old one; None if it stays."""
    old = variable._value
    if old is None or variable._dtype == dtype:
        return None
    variable._dtype = dtype
    strategy = getattr(old, "distribute_strategy", None) or tf.distribute.get_strategy()
    with tf.init_scope(), strategy.scope():
        variable._initialize(tf.cast(old, dtype))
    # A function that was traced before would silently compute with the old variable. With another
    # shape in that, it raises.
    for each in getattr(old, "values", (old,)):
        tf.raw_ops.AssignVariableOp(resource=each.handle, value=tf.zeros([0, 0, 0], old.dtype))
    return old
