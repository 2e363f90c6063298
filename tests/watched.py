"""The findings that every framework's monitor must have.

Each framework's folder tests them with its own network and step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import unamp

#: The end of the name of the layer whose gradients are made subnormal in float16.
PLANTED = "tiny"


def finds_the_layer_that_underflows(
    watch: unamp.Watch, steps: int, step: Callable[[], None]
) -> None:
    """Take steps, and check that the findings name the planted layer, and no other.

    A trace of a step names it, too.
    """
    for _ in range(steps - 1):
        step()
    with unamp.trace(gradients=True) as trace:
        step()
    assert watch.steps == steps
    lines = trace.gradient_summary("float16")
    assert lines[0].layer is not None
    assert lines[0].layer.split(".")[-1] == PLANTED, trace.gradient_table()
    small = {line.layer for line in lines if line.parameter and line.subnormal + line.flushed > 0.5}
    assert small == {lines[0].layer}, trace.gradient_table()
    (said,) = watch.findings()
    layer, _, what = said.partition(": underflow, ")
    assert layer.split(".")[-1] == PLANTED
    assert "of its gradients are subnormal in float16" in what


def swallowed(before: Sequence[float], gradient: Sequence[float], after: Sequence[float]) -> float:
    """Return the share of numbers that did not move although their gradient is not zero."""
    moves = [
        (old, new)
        for old, slope, new in zip(before, gradient, after, strict=True)
        if slope and math.isfinite(slope)
    ]
    return sum(1 for old, new in moves if old == new) / len(moves)
