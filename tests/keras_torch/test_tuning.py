"""`unamp.tune` on Keras with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras_tuned as shared
import pytest
import torch
import tuned


def _trained(network: Any, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    loss = (network.big(torch.relu(network.first(batch[0]))) ** 2).mean()
    gradients = torch.autograd.grad(loss * scale, [network.first.kernel.value, network.big.kernel.value])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(shared.made, torch.from_numpy, _trained)


@pytest.mark.parametrize("promise", tuned.PROMISES)
def test_promises(promise: Any) -> None:
    promise(OF)


def test_a_layer_that_runs_under_another_name_is_held() -> None:
    shared.a_layer_that_runs_under_another_name_is_held()


def test_dropout_is_named() -> None:
    shared.dropout_is_named()
