"""The ways in which PaddlePaddle runs a function; see `unamp.adapter.ways`."""

from unamp.adapter import Way
from unamp_paddle.conformance.ways import control_flow, eager, gradients, graphs, programs

__all__ = ["ways"]


def ways() -> tuple[Way, ...]:
    """Return the ways of this version of PaddlePaddle."""
    return (*eager.WAYS, *graphs.ways(), *programs.ways(), *control_flow.ways(), *gradients.ways())
