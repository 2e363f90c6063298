"""Reverse-mode differentiation of functions on NumPy arrays.

A function is written as its value and its pullback: ``y, pull = function(*arrays)``, and
``pull(dy)`` gives the cotangent of every array, None for one that has none (indices). `apply` calls
it on tensors, `gradients` goes back over what it recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

__all__ = ["Change", "Function", "Pullback", "Tensor", "apply", "gradients", "leaf", "same"]

Array = np.ndarray[Any, np.dtype[Any]]
Pullback = Callable[[Array], Sequence[Array | None]]
Function = Callable[..., tuple[Array, Pullback]]

#: Changes every result and every cotangent: it may round them.
Change = Callable[[Array], Array]

_numbers = count()


def same(array: Array) -> Array:
    """Return the array: the `Change` that changes nothing."""
    return array


@dataclass(eq=False)
class Tensor:
    """An array, and how it was computed.

    Attributes:
        array: the values.
        number: larger than that of every tensor that it was computed from.
        sources, pull: the tensors that it was computed from, and the pullback to their cotangents;
            a leaf has neither.
        change: changes its cotangent before that is pulled back.
    """

    array: Array
    number: int
    sources: tuple[Tensor, ...] = ()
    pull: Pullback | None = None
    change: Change = same

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return tuple(self.array.shape)


def leaf(array: Array, change: Change = same) -> Tensor:
    """Return a tensor that is given, and not computed.

    `change` changes its array, and its gradient, too.
    """
    return Tensor(change(array), next(_numbers), change=change)


def apply(function: Function, *tensors: Tensor, change: Change = same, **attributes: Any) -> Tensor:
    """Call a function on tensors.

    Args:
        function: see the module.
        tensors: its arguments.
        change: changes the result and its cotangent.
        attributes: further arguments, which have no gradient.
    """
    value, pull = function(*(tensor.array for tensor in tensors), **attributes)
    return Tensor(change(value), next(_numbers), tensors, pull, change)


def gradients(value: Tensor, leaves: Sequence[Tensor], scale: float = 1.0) -> list[Array | None]:
    """Return the gradient of ``scale`` times a scalar, for each leaf.

    None for a leaf that the scalar does not depend on.
    """
    cotangents: dict[int, Array] = {value.number: np.full_like(value.array, scale)}
    for tensor in sorted(_reached(value), key=lambda tensor: tensor.number, reverse=True):
        if tensor.number not in cotangents:  # indices, and what is computed of them alone
            continue
        cotangent = cotangents[tensor.number] = tensor.change(cotangents[tensor.number])
        if tensor.pull is None:
            continue
        for source, part in zip(tensor.sources, tensor.pull(cotangent), strict=True):
            if part is not None:
                before = cotangents.get(source.number)
                cotangents[source.number] = part if before is None else before + part
    return [cotangents.get(leaf.number) for leaf in leaves]


def _reached(value: Tensor) -> list[Tensor]:
    """Return everything that a tensor was computed from, and itself."""
    found, todo = {value.number: value}, [value]
    while todo:
        for source in todo.pop().sources:
            if source.number not in found:
                found[source.number] = source
                todo.append(source)
    return list(found.values())
