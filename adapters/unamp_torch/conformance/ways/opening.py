"""The modules that ways run, and the inputs of ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from unamp._function_types import Function


class Holding(nn.Module):
    """A network without parameters whose forward is a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Call the function."""
        return self.function(*inputs)


def floating(inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the places of floating tensors."""
    return tuple(place for place, tensor in enumerate(inputs) if tensor.is_floating_point())


class Weighed(nn.Module):
    """A network that has some of a function's arguments as parameters, and is given the others."""

    def __init__(self, function: Function, inputs: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__()
        self.function, self.places = function, places
        for place in places:
            self.register_parameter(f"p{place}", nn.Parameter(inputs[place].detach().clone()))

    def forward(self, *inputs: Any) -> Any:
        """Call the function with the parameters."""
        named = dict(self.named_parameters())
        return self.function(
            *(named.get(f"p{place}", tensor) for place, tensor in enumerate(inputs))
        )


def with_leaves(inputs: Sequence[Any], places: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    """Return the inputs with `leaves` in some places."""
    found = dict(zip(places, leaves, strict=True))
    return [found.get(place, tensor) for place, tensor in enumerate(inputs)]
