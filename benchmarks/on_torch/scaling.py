"""The share of loss scaling in a step: scale, unscale and check the gradients, adjust the scale."""

from __future__ import annotations

from typing import Any

import torch

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.on_torch.networks import DEVICE

__all__ = ["comparisons"]

_ITERATION = "scaler.scale(loss); scaler.step(optimizer); scaler.update()"
_CLIPPED = "scaler.scale(loss); scaler.unscale_(optimizer); scaler.step(optimizer); scaler.update()"


class _Idle(torch.optim.SGD):
    """An optimizer that holds gradients and does nothing: its work would hide the scaler's."""

    def step(self) -> None:  # type: ignore[override]
        pass


def _idle(parameters: int) -> _Idle:
    torch.manual_seed(0)
    held = [torch.randn(64, 64, device=DEVICE, requires_grad=True) for _ in range(parameters)]
    for parameter in held:
        parameter.grad = torch.randn(64, 64, device=DEVICE)
    return _Idle(held, lr=0.1)


def _contender(
    name: str, scaler: Any, statement: str, optimizer: _Idle, goal: float | None = None
) -> Contender:
    loss = torch.ones((), device=DEVICE, requires_grad=True)
    return Contender(
        name, statement, {"scaler": scaler, "optimizer": optimizer, "loss": loss}, goal=goal
    )


def comparisons() -> list[Comparison]:
    """Compare with few and many gradients. The scale stays 1: unscaling must not shrink them."""
    found = []
    for parameters in (4, 50, 200):
        for what, statement in (("", _ITERATION), (", unscale_ first", _CLIPPED)):
            optimizer = _idle(parameters)
            theirs = torch.amp.GradScaler(DEVICE, init_scale=1.0, growth_interval=2**31 - 1)
            ours = unamp.GradScaler(1.0, growth_interval=2**31 - 1)
            contenders = (
                _contender("torch.amp.GradScaler", theirs, statement, optimizer),
                _contender("unamp.GradScaler", ours, statement, optimizer, 1.05),
            )
            found.append(
                Comparison(f"loss scaling, {parameters} gradients of 64 x 64{what}", contenders)
            )
    return found
