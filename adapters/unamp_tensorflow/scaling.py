"""Scale losses, and unscale and check the gradients that are passed to an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from unamp.adapter.keras_masters import has_master_weights, stepped
from unamp.dtypes import LOW_DTYPES
from unamp.errors import NotExpressible
from unamp_tensorflow.composite_tensors import VALUES, values
from unamp_tensorflow.spellings import keras_in_use

if TYPE_CHECKING:
    from unamp_tensorflow.state import Gradient, SomeTensor

    #: A variable's gradient as a caller passes it: a tensor, one for each replica, or None.
    Given: TypeAlias = Gradient | tf.distribute.DistributedValues | None

_LOW = (tf.float16, tf.bfloat16)


def is_optimizer(value: object) -> bool:
    """Return whether a value is one of Keras's optimizers, where Keras computes with TensorFlow."""
    return keras_in_use() and isinstance(value, tf.keras.optimizers.Optimizer)


def scale_loss(loss: tf.Tensor | tf.Variable, scale: float) -> tf.Tensor:
    """See `unamp.adapter.Adapter.scale_loss`."""
    if not tf.executing_eagerly():
        raise NotExpressible(
            "tf.function makes the loss scale a constant of its graph; scale the loss outside of "
            "it, or hand it scaler.scale(tf.constant(1.0)) to multiply it by"
        )
    if type(loss) in VALUES or not loss.dtype.is_floating:
        raise TypeError(
            f"scale() takes a loss that is one dense floating tensor, not a {type(loss).__name__} "
            f"of {loss.dtype.name}; reduce it (tf.reduce_mean), or cast it "
            "(tf.cast(loss, tf.float32))"
        )
    wide = tf.cast(loss, tf.float32) if loss.dtype in _LOW else tf.convert_to_tensor(loss)
    return wide * tf.constant(scale, wide.dtype)


def backward(
    compute: Callable[[], tuple[tf.Tensor, tf.Tensor]],
    network: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
) -> tuple[tf.Tensor, list[Gradient | None]]:
    """See `unamp.adapter.Adapter.backward`."""
    with tf.GradientTape() as tape:
        scaled, loss = compute()
    if not optimizer.built:
        optimizer.build(network.trainable_variables)
    return loss, tape.gradient(scaled, stepped(optimizer))


def all_finite(tensors: Sequence[SomeTensor]) -> tf.Tensor:
    """See `unamp.adapter.Adapter.all_finite`."""
    return tf.reduce_all([tf.constant(True), *map(_finite, tensors)])


class TensorFlowGradients:
    """See `unamp.adapter.Gradients`.

    Gradients are a list in the order of the optimizer's variables, with None for a variable without
    one. In a strategy each replica has its own; the optimizer adds them up.
    """

    def __init__(
        self, optimizer: tf.keras.optimizers.Optimizer | None, given: Iterable[Given] | None
    ) -> None:
        if given is None:
            raise TypeError(
                "TensorFlow's gradients are values: hand them over, as in "
                "step(optimizer, gradients=gradients)"
            )
        self.values = _listed(given)
        # None only where `apply` is never called
        self._optimizer: tf.keras.optimizers.Optimizer = optimizer
        self._widened = optimizer is not None and has_master_weights(optimizer)
        self._finite: list[tf.Tensor] = []

    def dtypes(self) -> frozenset[str]:
        names = frozenset(
            each.dtype.name for gradient in self.values for each in _replicas(gradient)
        )
        return frozenset(
            "float32" if self._widened and name in LOW_DTYPES else name for name in names
        )

    def unscale(self, scale: float) -> None:
        self._finite = [_finite(each) for gradient in self.values for each in _replicas(gradient)]
        self.values = [
            _on_each(gradient, lambda each: _divided(each, scale, self._widened))
            for gradient in self.values
        ]

    def overflow(self) -> bool | None:
        return not bool(tf.reduce_all(self._finite)) if self._finite else None

    def first_nonfinite(self, network: tf.keras.Model | None) -> str | None:
        variables = stepped(self._optimizer) if network is None else network.trainable_variables
        for variable, gradient in zip(variables, self.values, strict=True):
            if not all(bool(_finite(each)) for each in _replicas(gradient)):
                return str(variable.path)
        return None

    def apply(self, *args: Any, **kwargs: Any) -> object:
        if not any(
            isinstance(gradient, tf.distribute.DistributedValues) for gradient in self.values
        ):
            return self._optimizer.apply(self.values, *args, **kwargs)
        return self._optimizer._distribution_strategy.run(
            self._optimizer.apply, (self.values, *args), kwargs
        )


def _listed(given: Iterable[Given]) -> list[Given]:
    alone = hasattr(given, "dtype")
    values = [] if alone else list(given)
    parts = [each for value in values for each in _replicas(value)]
    wrong = given if alone else next((each for each in parts if not hasattr(each, "dtype")), None)
    if wrong is not None:
        raise TypeError(
            "gradients must be a list of tensors, in the order of the optimizer's variables; "
            f"got a {type(wrong).__name__}{'' if alone else ' in it'}. Of pairs, as "
            "apply_gradients takes them, hand over the gradients alone: "
            "step(optimizer, variables, gradients=gradients)"
        )
    return values


def _replicas(gradient: Given) -> tuple[Gradient, ...]:
    """Return a gradient's tensors, one for each replica."""
    if gradient is None:
        return ()
    return gradient.values if isinstance(gradient, tf.distribute.DistributedValues) else (gradient,)


def _on_each(gradient: Given, function: Callable[[Gradient], Gradient]) -> Given:
    if isinstance(gradient, tf.distribute.DistributedValues):
        return type(gradient)([function(each) for each in gradient.values])
    return gradient if gradient is None else function(gradient)


def _finite(gradient: SomeTensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values(gradient)))


def _divided(gradient: Gradient, scale: float, widened: bool) -> Gradient:
    numbers = values(gradient)
    wide = tf.cast(numbers, tf.float32) if numbers.dtype in _LOW else numbers
    divided = wide * (1.0 / scale)
    if not widened:
        divided = tf.cast(divided, numbers.dtype)
    found = VALUES.get(type(gradient))
    return divided if found is None else found.replaced(gradient, divided)
