"""The cost of a rule for a layer, in each call of the layer."""

from __future__ import annotations

from typing import Any

import torch

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

#: The most seconds of a call with a rule; the layer itself does nothing.
_AT_MOST = 26e-6


def _ruled(**options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return two layers of one network: one without a rule, and one with a rule."""
    network = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
    unamp.layer_policies(network, {"1": "float32"}, **options)
    return network[0], network[1]


def comparisons() -> list[Comparison]:
    x = torch.ones(4, 4)
    beside, ruled = _ruled()
    low = _ruled(result="low")[1]

    def contender(
        name: str,
        layer: torch.nn.Module,
        region: Any,
        goal: float | None,
        at_most: float | None = None,
    ) -> Contender:
        return Contender(name, "layer(x)", {"layer": layer, "x": x}, region, goal, at_most)

    found = []
    for where, region in (
        ("in a region", lambda: unamp.autocast("cpu", dtype="bfloat16")),
        ("without a region", lambda: torch.enable_grad()),
    ):
        contenders = (
            contender("no rules", torch.nn.Identity(), region, None),
            contender("another layer has a rule", beside, region, 1.0),
            contender("the layer has a rule", ruled, region, None, _AT_MOST),
            contender("the same with result='low'", low, region, None),
        )
        found.append(Comparison(f"calling a layer that does nothing, {where}", contenders))
    return found
