"""Gradients by name, and sums of their numbers, for `unamp.watch`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unamp_torch import keras
from unamp_torch.numbers import local


def named_gradients(
    network: torch.nn.Module, optimizer: object, given: object
) -> list[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """See `unamp.adapter.NamesGradients.named_gradients`."""
    # To PyTorch a network of Keras is one list of parameters, whose names are paths.
    named = (
        keras.trained_parameters(network) if keras.is_layer(network) else network.named_parameters()
    )
    floating = ((name, each) for name, each in named if each.is_floating_point())
    return [(name, each, each.grad) for name, each in floating if each.requires_grad]


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """See `unamp.adapter.NamesGradients.numbers`."""
    held = local(tensor)
    dense = (held._values() if held.is_sparse else held).detach()
    return dense if dense.dtype is torch.float64 else dense.float()


def total(numbers: torch.Tensor) -> torch.Tensor:
    """See `unamp.adapter.NamesGradients.total`."""
    return numbers.sum()


def fetched(totals: Sequence[torch.Tensor]) -> list[float]:
    """See `unamp.adapter.NamesGradients.fetched`."""
    found = {
        device: iter(
            torch.stack([each.double() for each in totals if each.device == device]).tolist()
        )
        for device in {each.device for each in totals}
    }
    return [next(found[each.device]) for each in totals]
