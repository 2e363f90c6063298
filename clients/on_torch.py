"""A training step of a module, and declarations of torchvision's operators where they do not load.

The scripts for PyTorch share these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from client import Region, Step

#: The library is kept alive: its operators are removed with it.
_declared: torch.library.Library | None = None


def step_of(model: torch.nn.Module, region: Region, loss_of: Callable[[], torch.Tensor]) -> Step:
    """Return a step of SGD that computes the loss in a region."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        with region():
            loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def native() -> Any:
    """Return a region of torch's own mixed precision."""
    return torch.autocast("cpu", torch.bfloat16)


def declare_operators_of_torchvision() -> None:
    """Declare torchvision's operators, so that torchvision can be imported.

    Its own operators do not load where its wheel is built for CUDA and torch's is not.
    """
    global _declared
    if not torch.cuda.is_available():
        _declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            _declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
