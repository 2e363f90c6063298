"""The numbers in an operation's tensors, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unamp.adapter.arguments import within

_is_transformed = torch._C._functorch.is_functorch_wrapped_tensor


def flat(args: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or results, however deep."""
    return within(args, torch.Tensor)


def floating(value: object) -> list[torch.Tensor]:
    """Return the floating tensors in arguments or results."""
    return [tensor for tensor in flat((value,)) if tensor.is_floating_point()]


def has_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one number at each place of its shape.

    Sparse, nested and oneDNN's tensors hold numbers otherwise, tensors without data hold none, and
    inside a transform of `torch.func` there are several at a place.
    """
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta
    return plain and not isinstance(tensor, FakeTensor) and not _is_transformed(tensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process holds, where it is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def row(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor as one row in float64, apart from any graph."""
    with torch.no_grad():
        return tensor.detach().double().reshape(-1)
