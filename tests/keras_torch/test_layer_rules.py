"""`unamp.layer_policies` on Keras with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras_ruled as shared
import pytest
import ruled
import torch

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def _gradients(loss: Callable[[], Any], network: Any) -> tuple[Any, Any]:
    network.zero_grad()
    value = loss()
    value.backward()
    return value.detach(), [variable.value.grad for variable in network.trainable_variables]


OF = ruled.Layers(
    lambda: shared.made(X),
    X,
    dtype=lambda tensor: str(tensor.dtype).removeprefix("torch."),
    numbers=lambda tensor: tensor.detach().float().numpy(),
    first="first",
    second="second",
    share=shared.share,
    low=lambda tensor: tensor.bfloat16(),
    losses=shared.losses(X, _gradients),
)


@pytest.mark.parametrize("promise", [*ruled.PROMISES, *shared.PROMISES])
def test_promises(promise: Any) -> None:
    promise(OF)


def test_what_is_saved_has_no_rules(tmp_path: Path) -> None:
    shared.what_is_saved_has_no_rules(tmp_path)
