"""`unamp.tune` on Keras with PyTorch keeps the promises of `tuned` and `keras_tuned`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras_tuned as shared
import torch
import tuned
from keras_tuned import *  # noqa: F403
from tuned import test_promises  # noqa: F401


def _trained(network: Any, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    loss = (network.big(torch.relu(network.first(batch[0]))) ** 2).mean()
    gradients = torch.autograd.grad(
        loss * scale, [network.first.kernel.value, network.big.kernel.value]
    )
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(shared.made, torch.from_numpy, _trained)
