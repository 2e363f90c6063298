"""Scale losses, and unscale and check the gradients that are passed to an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import nn, ops

from unamp_mindspore.casting import cast
from unamp_mindspore.decoration import have_master_weights
from unamp_mindspore.observing import dtype_name
from unamp_mindspore.state import FLOAT32, Dtype, Tensor

if TYPE_CHECKING:
    from unamp_mindspore.decoration import Optimizer

# The originals, held here: a region replaces the names.
_all, _and, _isfinite, _mul = ops.ReduceAll(), ops.LogicalAnd(), ops.IsFinite(), ops.Mul()


def scale_loss(loss: Tensor, scale: float) -> Tensor:
    """See `unamp.adapter.Adapter.scale_loss`.

    A low loss becomes float32, since bfloat16 has few kernels on the CPU.
    """
    return _mul(cast(loss, FLOAT32), _number(scale))


def backward(
    compute: Callable[[], tuple[Tensor, Tensor]], network: nn.Cell, optimizer: Optimizer
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `unamp.adapter.Adapter.backward`.

    It runs in PyNative mode, even in a program in GRAPH_MODE: `compute` may open regions, or be a
    function that MindSpore cannot compile.
    """
    with _pynative():
        (_, loss), gradients = mindspore.value_and_grad(
            compute, None, optimizer.parameters, has_aux=True
        )()
    return loss, gradients


@contextmanager
def _pynative() -> Iterator[None]:
    mode = mindspore.get_context("mode")
    if mode == mindspore.PYNATIVE_MODE:
        yield
        return
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mode)


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """See `unamp.adapter.Adapter.all_finite`."""
    return reduce(_and, map(_finite, tensors), Tensor(True))


class MindSporeGradients:
    """See `unamp.adapter.Gradients`.

    Gradients are a tuple of tensors, or one tensor, in the order of the optimizer's parameters.
    """

    def __init__(
        self, optimizer: Optimizer | None, given: Tensor | Sequence[Tensor] | None
    ) -> None:
        if given is None:
            raise TypeError(
                "MindSpore's gradients are values: hand them over, as in "
                "step(optimizer, gradients=gradients)"
            )
        self.values = (given,) if isinstance(given, Tensor) else tuple(given)
        self._optimizer: Any = optimizer
        self._finite: list[Tensor] = []

    def dtypes(self) -> frozenset[str]:
        return frozenset(dtype_name(dtype) for dtype in self._taken())

    def unscale(self, scale: float) -> None:
        # Divided in float32: it is more exact, and the CPU has few kernels for bfloat16.
        wide = [cast(gradient, FLOAT32) for gradient in self.values]
        self._finite = [_finite(gradient) for gradient in wide]
        unscaled = [_mul(gradient, _number(1.0 / scale)) for gradient in wide]
        self.values = tuple(
            cast(new, dtype) for new, dtype in zip(unscaled, self._taken(), strict=True)
        )

    def _taken(self) -> list[Dtype]:
        """Return the dtypes in which the optimizer takes the gradients."""
        wide = have_master_weights(self._optimizer) or (False,) * len(self.values)
        return [
            FLOAT32 if widened else each.dtype
            for each, widened in zip(self.values, wide, strict=True)
        ]

    def overflow(self) -> bool | None:
        return not all(bool(finite) for finite in self._finite) if self._finite else None

    def first_nonfinite(self, network: nn.Cell | None) -> str | None:
        parameters = self._optimizer.parameters
        names = (
            {} if network is None else {id(p): name for name, p in network.parameters_and_names()}
        )
        for parameter, gradient in zip(parameters, self.values, strict=True):
            if not bool(_finite(gradient)):
                return str(names.get(id(parameter), parameter.name))
        return None

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer(self.values, *args, **kwargs)


def _finite(tensor: Tensor) -> Tensor:
    return _all(_isfinite(cast(tensor, FLOAT32)))


def _number(value: float) -> Tensor:
    return Tensor(np.float32(value))
