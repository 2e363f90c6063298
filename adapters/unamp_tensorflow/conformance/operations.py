"""TensorFlow's binding of `unamp.adapter.Operations`: every operation by its canonical name.

NumPy arrays go in and come out. Canonical signatures are PyTorch's; `bindings` holds the functions
whose signatures differ. PyTorch's tensors have channels first, and these have channels last:
TensorFlow has no other kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import NamedOperations, Way
from unamp.adapter.absent_devices import AbsentDevice
from unamp.adapter.layered_networks import LayeredNetworks
from unamp.adapter.tensor_kinds import TensorKind
from unamp.dtypes import LOW_DTYPES
from unamp.vocabulary import vocabulary
from unamp_tensorflow.casting import dtype_of
from unamp_tensorflow.conformance.absent_devices import absent_devices
from unamp_tensorflow.conformance.bindings import BINDINGS
from unamp_tensorflow.conformance.layered import layered
from unamp_tensorflow.conformance.signatures import check_keras, keras
from unamp_tensorflow.conformance.tensor_kinds import tensor_kinds
from unamp_tensorflow.conformance.ways import ways
from unamp_tensorflow.spellings import named


class TensorFlowOperations(NamedOperations):
    """See `unamp.adapter.Operations`."""

    # Some of TensorFlow's threads flush subnormal numbers to zero, and a kernel may run in any:
    # https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/platform/denormal.h
    subnormals = False

    def __init__(self) -> None:
        _ = tf.keras.layers  # imports Keras, whose layers and functions are operations, too
        super().__init__("tensorflow", _find)

    def layered(self) -> LayeredNetworks:
        """Return the network for checks of layer rules."""
        return layered()

    def tensor(
        self, array: np.ndarray, *, device: str = "cpu", requires_grad: bool = False
    ) -> tf.Tensor:
        """Return a tensor with the array's values, shape and dtype.

        Nothing is done for `requires_grad`: `value_and_grad` has a tape.
        """
        with tf.device(device):
            return tf.constant(np.asarray(array))

    def buffer(self, array: np.ndarray, *, device: str = "cpu") -> tf.Variable:
        """Return a variable, since a tensor cannot be changed in place."""
        with tf.device(device):
            return tf.Variable(np.asarray(array), trainable=False)

    def parameter(self, array: np.ndarray, *, device: str = "cpu") -> tf.Variable:
        """Return a variable, as layers have for parameters."""
        with tf.device(device):
            return tf.Variable(np.asarray(array))

    def assign(self, parameter: tf.Variable, array: np.ndarray) -> None:
        """Change a parameter in place, as optimizers do."""
        parameter.assign(array)

    def adam(self, array: np.ndarray, *, device: str = "cpu") -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that takes one step of Adam with a gradient, and returns the result."""
        with tf.device(device):
            parameter = keras("Variable")(array)
        optimizer = keras("optimizers.Adam")(0.1)
        optimizer.build([parameter])

        def step(gradient: np.ndarray) -> np.ndarray:
            optimizer.apply([self.tensor(gradient, device=device)], [parameter])
            return self.numpy(parameter.value)

        return step

    def numpy(self, tensor: tf.Tensor) -> np.ndarray:
        """Return a tensor's values; low dtypes arrive as float32."""
        values = tf.convert_to_tensor(tensor).numpy()
        return np.asarray(values, np.float32) if values.dtype.name in LOW_DTYPES else values

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's dtype."""
        return dtype_of(tensor)

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[tf.Tensor], *, loss_scale: float = 1.0
    ) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        """Return ``function(*inputs)`` and the gradients of its scaled value.

        The gradient is None for an input that the value does not depend on.
        """
        leaves = [tf.identity(tensor) for tensor in inputs]
        with tf.GradientTape() as tape:
            for leaf in leaves:
                tape.watch(leaf)
            value = function(*leaves)
            scaled = value if loss_scale == 1.0 else value * tf.cast(loss_scale, value.dtype)
        return value, [
            None if g is None else tf.convert_to_tensor(g) for g in tape.gradient(scaled, leaves)
        ]

    def pull_back(
        self, function: Callable[..., tuple[tf.Tensor, tf.Tensor]], *, compiled: bool
    ) -> Callable[..., tuple[tf.Tensor, Sequence[tf.Tensor | None]]]:
        """See `Operations.pull_back`. The tape works operation by operation."""

        def both(
            leaves: Sequence[tf.Tensor],
            others: Sequence[Any],
            cotangent: Callable[[Any, Any], tf.Tensor],
        ) -> tuple[tf.Tensor, Sequence[tf.Tensor | None]]:
            with tf.GradientTape() as tape:
                tape.watch(leaves)
                found, result = function(leaves, others)
            gradients = tape.gradient(found, leaves, output_gradients=cotangent(found, result))
            return result, [None if g is None else tf.convert_to_tensor(g) for g in gradients]

        return both

    def tensor_kinds(self) -> tuple[TensorKind, ...]:
        """Return the kinds of tensor that are not one dense array."""
        return tensor_kinds()

    def ways(self) -> tuple[Way, ...]:
        """Return the ways in which TensorFlow and Keras run a function."""
        return ways()

    def absent_devices(self) -> tuple[AbsentDevice, ...]:
        """Return the GPU, if this machine has none: graphs are traced for it."""
        return absent_devices()


def _find(op: str) -> Function | None:
    if op in BINDINGS:
        return BINDINGS[op]
    for path in sorted(
        vocabulary()[op].spellings.get("tensorflow", ()), key=lambda path: path.startswith("keras.")
    ):
        if path.startswith("keras."):
            check_keras()
        found: Function = named(path)
        if callable(found) and not isinstance(found, type):
            return found
    return None
