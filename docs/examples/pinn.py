"""A library of physics-informed networks that offers "mixed" on five frameworks.

They are PyTorch, PaddlePaddle, MindSpore, TensorFlow and JAX. The library imports none of them: its
users bring points and a network. Only derivatives are another few lines for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import unamp

__all__ = ["Problem", "second_derivative"]

Function = Callable[[Any], Any]

POLICIES = {"float32": unamp.Policy("O0"), "mixed": unamp.Policy("O1", "bfloat16")}


class Problem:
    """A network, and the residual of the equation that it is to solve.

    Args:
        network: the network.
        residual: gives the residual at some points, from a function and the points.
        precision: what the network computes in. Derivatives and residuals are float32 either way.
    """

    def __init__(
        self,
        network: Function,
        residual: Callable[[Function, Any], Any],
        precision: Literal["float32", "mixed"] = "float32",
    ) -> None:
        self.network, self.residual = network, residual
        self.policy = POLICIES[precision]

    def value(self, x: Any) -> Any:
        """Return the network's result, in float32."""

        @unamp.float32_results
        def value(x: Any) -> Any:
            with unamp.policy_region(self.policy):
                return self.network(x)

        return value(x)

    def loss(self, x: Any) -> Any:
        """Return the mean square of the residual."""
        return _backend_of(x).mean(self.residual(self.value, x) ** 2)


def second_derivative(u: Function, x: Any) -> Any:
    """Return the second derivative of a function at some points.

    Each of its values depends on its own point.
    """
    return _backend_of(x).second_derivative(u, x)


class Backend(NamedTuple):
    """The functions that no two frameworks spell alike."""

    second_derivative: Callable[[Function, Any], Any]
    mean: Function = lambda x: x.mean()


def _backend_of(x: Any) -> Backend:
    name = next(
        (
            name
            for each in type(x).__mro__
            if (name := each.__module__.partition(".")[0]) in _BACKENDS
        ),
        None,
    )
    if name is None:
        raise TypeError(f"expected an array of {', '.join(_BACKENDS)}; got {type(x).__name__}")
    return _BACKENDS[name]()


def _torch() -> Backend:
    import torch

    def second_derivative(u: Function, x: Any) -> Any:
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(u(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return bend

    return Backend(second_derivative)


def _paddle() -> Backend:
    import paddle

    def second_derivative(u: Function, x: Any) -> Any:
        x.stop_gradient = False
        (slope,) = paddle.grad(u(x).sum(), x, create_graph=True)
        (bend,) = paddle.grad(slope.sum(), x, create_graph=True)
        return bend

    return Backend(second_derivative)


def _tensorflow() -> Backend:
    import tensorflow as tf

    def second_derivative(u: Function, x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = u(x)
            slope = inner.gradient(value, x)
        return outer.gradient(slope, x)

    return Backend(second_derivative, tf.reduce_mean)


def _mindspore() -> Backend:
    import mindspore

    return _of_functions(mindspore.grad)


def _jax() -> Backend:
    import jax

    return _of_functions(jax.grad)


def _of_functions(grad: Callable[[Function], Function]) -> Backend:
    def second_derivative(u: Function, x: Any) -> Any:
        slope = grad(lambda x: u(x).sum())
        return grad(lambda x: slope(x).sum())(x)

    return Backend(second_derivative)


_BACKENDS = {
    "torch": _torch, "paddle": _paddle, "tensorflow": _tensorflow, "mindspore": _mindspore,
    "jax": _jax, "jaxlib": _jax,
}  # fmt: skip
