"""JAX's binding of `unamp.adapter.Operations`: every operation by its canonical name.

NumPy arrays go in and come out. Canonical signatures are PyTorch's; `bindings` and `layers` hold
the functions whose signatures differ. Tensors are channels-first there, and channels-last in flax's
layers. The suite predicts in float64, which JAX has only where it is told to: every call is made
under `jax.enable_x64`, and nothing is changed for the process. `calling` makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax._src import core

from unamp.adapter import NamedOperations, Way
from unamp.adapter.absent_devices import AbsentDevice
from unamp.adapter.layered_networks import LayeredNetworks
from unamp.adapter.tensor_kinds import TensorKind
from unamp.dtypes import LOW_DTYPES
from unamp.vocabulary import vocabulary
from unamp_jax.casting import dtype_of
from unamp_jax.conformance.absent_devices import absent_devices
from unamp_jax.conformance.bindings import BINDINGS
from unamp_jax.conformance.calling import PROGRAMS, Calls, in_float64, one_program, rounding
from unamp_jax.conformance.layered import layered
from unamp_jax.conformance.layers import LAYERS, Statistic
from unamp_jax.conformance.tensor_kinds import tensor_kinds
from unamp_jax.conformance.ways import ways
from unamp_jax.spellings import library_of, named
from unamp_jax.state import CONTEXT, Array, thread


class JaxOperations(NamedOperations):
    """See `unamp.adapter.Operations`."""

    # XLA's CPU kernels take subnormal numbers for zeros.
    subnormals = False
    # XLA compiles every kernel, for its dtypes and shapes.
    dear = True

    def __init__(self) -> None:
        super().__init__("jax", _find)

    def set_up(self) -> None:
        """See `Operations`: most of a run's time is compilation."""
        PROGRAMS.compile_fast()

    def names(self) -> frozenset[str]:
        """Return the canonical operations that JAX has."""
        PROGRAMS.forget()  # a caller that asks for names has no call under way
        return super().names()

    def tensor(
        self, array: np.ndarray, *, device: str = "cpu", requires_grad: bool = False
    ) -> Array:
        """Return an array with these values, shape and dtype.

        `requires_grad` has no effect: `value_and_grad` computes gradients.
        """
        with in_float64():
            return _put(np.asarray(array), device)

    def buffer(self, array: np.ndarray, *, device: str = "cpu") -> Statistic:
        """Return a statistic whose array a layer replaces, as arrays do not change."""
        return Statistic(self.tensor(array, device=device))

    def ways(self) -> tuple[Way, ...]:
        """Return the ways in which JAX runs a function."""
        return ways()

    def absent_devices(self) -> tuple[AbsentDevice, ...]:
        """Return the platforms that are not here, for which JAX lowers."""
        return absent_devices()

    def layered(self) -> LayeredNetworks:
        """Return the networks with layers, and the ways to run them."""
        return layered()

    def tensor_kinds(self) -> tuple[TensorKind, ...]:
        """Return the kinds of tensor beside the dense array."""
        return tensor_kinds()

    def adam(self, array: np.ndarray, *, device: str = "cpu") -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that steps Adam with a gradient and returns the parameter's values."""
        optimizer, parameter = optax.adam(0.1), self.tensor(array, device=device)
        state = optimizer.init(parameter)

        def step(gradient: np.ndarray) -> np.ndarray:
            nonlocal parameter, state
            updates, state = optimizer.update(
                self.tensor(gradient, device=device), state, parameter
            )
            parameter = optax.apply_updates(parameter, updates)
            return self.numpy(parameter)

        return step

    def numpy(self, tensor: Any) -> np.ndarray:
        """Return an array's values; low dtypes arrive as float32."""
        values = np.asarray(_there(tensor))
        return values.astype(np.float32) if values.dtype.name in LOW_DTYPES else values

    def dtype(self, tensor: Any) -> str:
        """Return the name of an array's dtype."""
        return dtype_of(_there(tensor))

    def value_and_grad(
        self, function: Callable[..., Any], inputs: Sequence[Array], *, loss_scale: float = 1.0
    ) -> tuple[Array, list[Array]]:
        """Return ``function(*inputs)`` and the gradients of its scaled value."""

        def scaled(*leaves: Any) -> Any:
            value = function(*leaves)
            return value if loss_scale == 1.0 else value * jax.numpy.asarray(
                loss_scale, value.dtype
            ), value

        PROGRAMS.forget()
        with in_float64():
            (_, value), gradients = jax.value_and_grad(
                scaled, argnums=tuple(range(len(inputs))), has_aux=True
            )(*inputs)
            return value, list(gradients)

    def pull_back(
        self, function: Callable[..., tuple[Array, Array]], *, compiled: bool
    ) -> Callable[..., tuple[Array, Sequence[Array]]]:
        """See `Operations.pull_back`.

        Compiled, forward and backward are one program, which leaves out none of its roundings.
        """
        program = jax.jit(partial(_forward_and_backward, function), compiler_options=rounding())
        forward = jax.jit(lambda others: function([], others)[1], compiler_options=rounding())

        def both(
            leaves: Sequence[Array], others: Sequence[Any], cotangent: Callable[[Any, Any], Array]
        ) -> tuple[Array, Sequence[Array]]:
            PROGRAMS.forget()
            with in_float64():
                if compiled:
                    with one_program():
                        if not leaves:
                            return PROGRAMS.of_trace(forward.trace(others))(others), ()
                        given = leaves, others, cotangent(*jax.eval_shape(function, leaves, others))
                        result, gradients = PROGRAMS.of_trace(program.trace(*given))(*given)
                        return result, gradients
                with jax.disable_jit():  # as in `Calls`: primitives are compiled once for both
                    found, back, result = jax.vjp(
                        lambda *given: function(given, others), *leaves, has_aux=True
                    )
                    return result, back(cotangent(found, result))

        return both


def _forward_and_backward(
    function: Callable[..., tuple[Any, Any]],
    leaves: Sequence[Any],
    others: Sequence[Any],
    cotangent: Any,
) -> tuple[Any, Any]:
    _, back, result = jax.vjp(lambda *given: function(given, others), *leaves, has_aux=True)
    return result, back(cotangent)


def _cast(input: Any, dtype: str) -> Any:
    """Return an array in another dtype.

    NumPy casts it where no policy and no trace is open: XLA would compile a program for each shape.
    """
    if CONTEXT.value is not None or thread.sink is not None or not _is_there(input):
        return _COMPILED_CAST(input, dtype)
    with in_float64():
        return _put(np.asarray(input).astype(dtype), next(iter(input.devices())).platform)


_COMPILED_CAST = Calls(BINDINGS["cast"])


def _put(array: np.ndarray, device: str) -> Array:
    return jax.device_put(
        array, None if device == jax.default_backend() else jax.devices(device)[0]
    )


def _is_there(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, core.Tracer)


def _there(tensor: Any) -> Any:
    """Return the array behind a tensor of `value_and_grad`.

    There is one from the start, except in `pull_back`.
    """
    found = tensor.value if isinstance(tensor, Statistic) else tensor
    while isinstance(found, core.Tracer) and hasattr(found, "primal"):
        found = found.primal
    return found


def _find(op: str) -> Callable[..., Any] | None:
    if op == "cast":
        return _cast
    found = BINDINGS.get(op) or LAYERS.get(op)
    if found is None:
        paths = [
            path
            for path in vocabulary()[op].spellings.get("jax", ())
            if library_of(path) in ("jax", "optax")
        ]
        values = (named(path) for path in paths)
        found = next(
            (value for value in values if callable(value) and not isinstance(value, type)), None
        )
    return None if found is None else Calls(found)
