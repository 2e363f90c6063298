"""The ways in which PyTorch runs a function. `unamp.adapter.ways` explains what is in one."""

from unamp.adapter import Way
from unamp_torch.conformance.ways import control_flow, eager, gradients, graphs, replicated

__all__ = ["ways"]


def ways() -> tuple[Way, ...]:
    """Return the ways of this version of PyTorch."""
    return (*eager.WAYS, *graphs.ways(), *control_flow.ways(), *gradients.WAYS, *replicated.ways())
