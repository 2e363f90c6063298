"""Gradients by name, and sums of their numbers, for `unamp.watch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mindspore
from mindspore import nn, ops

from unamp_mindspore.casting import cast
from unamp_mindspore.observing import dtype_name
from unamp_mindspore.state import FLOAT32, Parameter, Tensor

if TYPE_CHECKING:
    from unamp_mindspore.decoration import Optimizer

# The originals, held here: a region replaces the names.
_cast, _sum, _stack = ops.Cast(), ops.ReduceSum(), ops.Stack()


def named_gradients(
    network: nn.Cell, optimizer: Optimizer | None, given: Tensor | Sequence[Tensor]
) -> list[tuple[str, Parameter, Tensor]]:
    """See `unamp.adapter.NamesGradients.named_gradients`.

    The order is that of the optimizer's parameters.
    """
    parameters = list(network.trainable_params() if optimizer is None else optimizer.parameters)
    gradients = (given,) if isinstance(given, Tensor) else tuple(given)
    if len(gradients) != len(parameters):
        raise ValueError(
            f"there are {len(gradients)} gradients for {len(parameters)} parameters that are "
            "trained"
        )
    names = {id(parameter): name for name, parameter in network.parameters_and_names()}
    pairs = zip(parameters, gradients, strict=True)
    return [
        (names.get(id(each), each.name), each, gradient)
        for each, gradient in pairs
        if "float" in dtype_name(each.dtype)
    ]


def numbers(tensor: Tensor) -> Tensor:
    """See `unamp.adapter.NamesGradients.numbers`."""
    return cast(tensor, FLOAT32)


def total(numbers: Tensor) -> Tensor:
    """See `unamp.adapter.NamesGradients.total`."""
    return _cast(
        _sum(_cast(numbers, mindspore.int32) if numbers.dtype == mindspore.bool_ else numbers),
        mindspore.float64,
    )


def fetched(totals: Sequence[Tensor]) -> list[float]:
    """See `unamp.adapter.NamesGradients.fetched`."""
    return [float(each) for each in _stack(list(totals)).asnumpy()] if totals else []
