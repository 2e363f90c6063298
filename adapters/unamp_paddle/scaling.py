"""Scale losses, and unscale and check the gradients of an optimizer's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import paddle

from unamp_paddle.masters import masters_of, parameters
from unamp_paddle.programs import refuse_scaling
from unamp_paddle.state import DTYPES, FLOAT32, LOW, NAMES, Tensor, Value, dtype_of

if TYPE_CHECKING:
    from paddle.base.framework import Variable
    from paddle.nn import Layer
    from paddle.optimizer import Optimizer

# The functions themselves, not the module's attributes, which a region replaces.
_add_n, _all, _cast, _isfinite = (
    paddle._C_ops.add_n,
    paddle._C_ops.all,
    paddle._C_ops.cast,
    paddle._C_ops.isfinite,
)
_scale_, _squared_norm = paddle._C_ops.scale_, paddle._C_ops.squared_l2_norm


def scale_loss(loss: Tensor | Value | Variable, scale: float) -> Tensor:
    """See `unamp.adapter.Adapter.scale_loss`.

    A low loss becomes float32, since Paddle cannot multiply low tensors on the CPU.
    """
    refuse_scaling(loss)
    return (loss.cast(FLOAT32) if dtype_of(loss) in LOW else loss) * scale


def backward(
    compute: Callable[[], tuple[Tensor, Tensor]], network: Layer, optimizer: Optimizer
) -> tuple[Tensor, None]:
    """See `unamp.adapter.Adapter.backward`."""
    optimizer.clear_grad()
    scaled, loss = compute()
    scaled.backward()
    return loss.detach(), None


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """See `unamp.adapter.Adapter.all_finite`."""
    with paddle.no_grad():
        return paddle.to_tensor(all(_is_finite(tensor) for tensor in tensors))


class PaddleGradients:
    """See `unamp.adapter.Gradients`. The parameters hold the gradients.

    Paddle's own `check_finite_and_unscale` takes only float32 on the CPU, and zeroes all gradients
    after the first that is not finite. Here the sum of squared norms is looked at: if it is finite,
    so are all gradients. That takes two thirds of the time.
    """

    def __init__(self, optimizer: Optimizer, given: object) -> None:
        if given is not None:
            raise TypeError("PaddlePaddle's parameters hold their gradients: none can be given")
        self.values = None
        self._optimizer = optimizer
        self._norms: list[Tensor] = []
        self._overflow: bool | None = None

    def dtypes(self) -> frozenset[str]:
        wide = masters_of(self._optimizer) is not None
        dtypes = {
            FLOAT32 if wide and gradient.dtype in LOW else gradient.dtype
            for _, gradient in self._held()
        }
        return frozenset(NAMES.get(dtype) or str(dtype) for dtype in dtypes)

    def unscale(self, scale: float) -> None:
        inverse = 1.0 / scale
        with paddle.no_grad():
            if (masters := masters_of(self._optimizer)) is not None:
                masters.widen_gradients()
            for _, gradient in self._held():
                self._norms.append(_finiteness(gradient))
                _scale_(gradient, inverse, 0.0, True)

    def overflow(self) -> bool | None:
        if self._overflow is None and self._norms:
            total = _add_n(self._norms).item()
            # A square may overflow where the number itself is finite: then look at the numbers.
            self._overflow = not total < float("inf") and self._first_nonfinite() is not None
            self._norms = []
        return self._overflow

    def first_nonfinite(self, network: Layer | None) -> str | None:
        parameter = self._first_nonfinite()
        if parameter is None:
            return None
        names = (
            {} if network is None else {id(each): name for name, each in network.named_parameters()}
        )
        return str(names.get(id(parameter), parameter.name))

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.step(*args, **kwargs)

    def _first_nonfinite(self) -> Tensor | None:
        with paddle.no_grad():
            return next((p for p, gradient in self._held() if not _is_finite(gradient)), None)

    def _held(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the parameters that have a gradient, each with its gradient as a dense tensor."""
        for parameter in parameters(self._optimizer):
            gradient = parameter._grad_ivar()
            if gradient is not None:
                yield parameter, dense(gradient)


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient, or the rows of a sparse one, which share its memory."""
    return (
        paddle.Tensor(gradient.get_selected_rows().get_tensor())
        if gradient.is_selected_rows()
        else gradient
    )


def _is_finite(tensor: Tensor) -> bool:
    wide = _cast(tensor, FLOAT32) if tensor.dtype in LOW else tensor
    return bool(_all(_isfinite(wide), [], False))


def _finiteness(gradient: Tensor) -> Tensor:
    """Return a gradient's squared norm, in float32: where it is finite, so is the gradient."""
    if dtype_of(gradient) is DTYPES["bfloat16"]:
        gradient = _cast(gradient, FLOAT32)
    norm = _squared_norm(gradient)
    return norm if dtype_of(norm) is FLOAT32 else _cast(norm, FLOAT32)
