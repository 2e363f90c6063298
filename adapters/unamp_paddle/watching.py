"""Gradients by name, and sums of their numbers, for `unamp.watch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import paddle

from unamp_paddle.scaling import dense
from unamp_paddle.state import FLOAT32, LOW, Tensor

if TYPE_CHECKING:
    from paddle.nn import Layer
    from paddle.optimizer import Optimizer

# The functions themselves, not the module's attributes, which a region replaces.
_cast, _sum, _stack = paddle._C_ops.cast, paddle._C_ops.sum, paddle._C_ops.stack
_FLOATING = (paddle.float64, FLOAT32, *LOW)


def named_gradients(
    network: Layer, optimizer: Optimizer | None, given: object
) -> list[tuple[str, Tensor, Tensor | None]]:
    """See `unamp.adapter.NamesGradients.named_gradients`."""
    trained = (
        (n, each)
        for n, each in network.named_parameters()
        if not each.stop_gradient and each.dtype in _FLOATING
    )
    return [(name, each, each._grad_ivar()) for name, each in trained]


def numbers(tensor: Tensor) -> Tensor:
    """See `unamp.adapter.NamesGradients.numbers`."""
    with paddle.no_grad():
        held = dense(tensor).detach()
        return _cast(held, FLOAT32) if held.dtype in LOW else held


def total(numbers: Tensor) -> Tensor:
    """See `unamp.adapter.NamesGradients.total`."""
    return _cast(_sum(numbers, [], None, False), paddle.float64)


def fetched(totals: Sequence[Tensor]) -> list[float]:
    """See `unamp.adapter.NamesGradients.fetched`."""
    return [float(each) for each in _stack(list(totals), 0).tolist()] if totals else []
